"""Held-out sequences of a records folder, and counts of pieces in its training text.

The sequences are those of the evaluation in pre-training (`data.sequences`): documents
are joined and cut to one length. If only some sequences are used, they are evenly
spaced over the text of their language, because neighbours come from one document and
are similar.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.configs.analyses import MaskedLmSettings
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.data.reading import count_pieces, named_errors
from decoupled.data.records import RecordsManifest, read_manifest
from decoupled.data.sequence_order import EVAL, TRAIN
from decoupled.data.sequences import evaluation_batches, evaluation_count
from decoupled.data.vocabulary import Vocabulary
from decoupled.runs.saved_run import Model

# Number of sequences that are read at once.
_READ = 512


class HeldOutText(NamedTuple):
    """The sequences to predict, language after language.

    languages: their names. language: int64 [n], the index of each sequence's language.
    numbers: int64 [n], the index of the sequence in the held-out text of its language.
    ids: int32 [n, sequence_length]. counts: int64 [languages, V], how often each piece
    occurs in the training text. all_counts: int64 [V], the same for all languages of
    the records, including those that are not predicted.
    """

    languages: tuple[str, ...]
    language: np.ndarray
    numbers: np.ndarray
    ids: np.ndarray
    counts: np.ndarray
    all_counts: np.ndarray


def read_held_out(
    records_dir: str,
    models: Sequence[Model],
    settings: MaskedLmSettings,
    languages: Sequence[str] | None = None,
) -> HeldOutText:
    """Reads held-out sequences, and counts the pieces of the training text.

    Args:
      records_dir: the output of build_records.
      models: of the vocabulary of the records.
      settings: `max_sequences` are read per language, evenly spaced over its text.
      languages: the languages of the held-out text to read; None for all.

    Raises:
      UserError: the records have another vocabulary than a model, are damaged, or lack
        held-out or training text of a language.
    """
    manifest = read_manifest(records_dir)
    for model in models:
        pieces = model.vocabulary
        manifest.check_vocabulary(pieces.fingerprint, pieces.path)
    names = _languages(manifest, languages)
    with named_errors(records_dir):
        counts = {
            name: count_pieces(manifest, manifest.language(TRAIN, name))
            for name in console.track(
                sorted(manifest.splits[TRAIN]), "counting pieces of the training text"
            )
        }
        parts = list(_read_sequences(manifest, names, settings, pieces))
    sizes = [len(numbers) for numbers, _ in parts]
    return HeldOutText(
        languages=tuple(names),
        language=np.repeat(np.arange(len(names)), sizes),
        numbers=np.concatenate([numbers for numbers, _ in parts]),
        ids=np.concatenate([ids for _, ids in parts]),
        counts=np.stack([counts[name] for name in names]),
        all_counts=np.sum(list(counts.values()), axis=0),
    )


def _languages(manifest: RecordsManifest, wanted) -> list[str]:
    """The languages with held-out text, sorted; each must have training text."""
    there = manifest.splits.get(EVAL, {})
    names = sorted(name for name, entry in there.items() if entry.records)
    if wanted is not None:
        for name in wanted:
            if name not in names:
                raise UserError(
                    f"--languages: {manifest.folder} has no held-out text of {name!r} "
                    f"(there: {', '.join(names) or 'none'})"
                )
        names = sorted(set(wanted))
    if not names:
        raise UserError(
            f"{manifest.folder}: no held-out text (split {EVAL!r}); build corpus and "
            "records with some"
        )
    for name in names:
        if not manifest.language(TRAIN, name).records:
            raise UserError(
                f"{manifest.folder}: no training text of {name!r} to count pieces in; "
                "leave it out with --languages"
            )
    return names


def _read_sequences(
    manifest: RecordsManifest,
    names: list[str],
    settings: MaskedLmSettings,
    vocabulary: Vocabulary,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Numbers and ids of the sequences of each language."""
    length, limit = settings.masking.sequence_length, settings.max_sequences
    entries = [manifest.language(EVAL, name) for name in names]
    counts = [evaluation_count(entry, length) for entry in entries]
    batched = iter(
        evaluation_batches(manifest, entries, counts, _READ, length, vocabulary)
    )
    for count in counts:
        chosen = np.arange(count)
        if limit and limit < count:
            chosen = np.arange(limit) * count // limit
        found = []
        for first in range(0, count, _READ):
            ids = next(batched)[0].numpy()
            here = chosen[(chosen >= first) & (chosen < first + _READ)]
            found.append(ids[here - first])
        yield chosen, np.concatenate(found)
