"""A model with another vocabulary: fewer pieces, or those of another file.

Trimming keeps the pieces that a corpus needs. The best segmentation of a text by a
unigram model stays the best if all of its pieces are kept, and the longest WordPieces
that match stay the longest. Such a text therefore has the same pieces as before, and
the model computes the same hidden states.

With another vocabulary, each new piece gets the row of the same piece, or else the mean
of the rows of the old pieces into which its text is cut (Tai et al. 2020, exBERT;
Hewitt 2021). Input embedding, output embedding and output bias are treated alike. The
two vocabularies may be of different kinds: "▁the" begins a word, as "the" does among
WordPieces, and "ing" continues one, as "##ing" does. Among WordPieces, punctuation and
Chinese characters are words of their own, so that "," and "▁," are both ",".

If pairs of texts need more types than the model has, the last type is repeated.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.core.files import check_target
from decoupled.core.release import tf
from decoupled.corpora.corpus import Corpus
from decoupled.data.sentencepiece_file import MARK, UNIGRAM
from decoupled.data.vocabulary import (
    WORDPIECE,
    SentencePiece,
    Vocabulary,
    WordPiece,
    open_vocabulary,
)
from decoupled.data.wordpiece import stands_alone
from decoupled.exports.interop.conversion import (
    Contents,
    kept_data,
    write_converted_folder,
)
from decoupled.model import variables as names
from decoupled.runs.saved_run import Model, open_model

# A piece that stands for a byte (byte fallback of SentencePiece).
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# Sentences that are encoded at once.
_BATCH = 4096


class NewRows(NamedTuple):
    """sources: for each new piece, the ids of the old rows whose mean it gets.
    copied_count: how many new pieces are also old pieces.
    """

    sources: list[list[int]]
    copied_count: int


def trim_vocabulary(
    model_dir: str,
    checkpoint: str | None,
    new_model_dir: str,
    corpus_dir: str,
    languages: Sequence[str],
    min_count: int,
) -> dict[str, Any]:
    """Writes the model with the pieces that the training text of a corpus uses.

    A piece is kept if it occurs at least `min_count` times in one of the languages.
    Special pieces, bytes, and all single characters of the kept pieces are kept too.
    """
    check_target(new_model_dir)
    model = open_model(model_dir, checkpoint, verify=False)
    old = model.vocabulary
    if isinstance(old, SentencePiece) and old.settings.model_type != UNIGRAM:
        raise UserError(f"{old.path}: not a unigram model; it cannot be trimmed")
    corpus = Corpus(corpus_dir)
    chosen_languages = _languages(corpus, languages)
    kept_ids = _used_ids(old, corpus, chosen_languages, min_count)
    if {*kept_ids} <= {*old.special_ids, old.unk_id, *old.byte_ids}:
        raise UserError(
            f"--min_count: no piece occurs {min_count} times in {corpus_dir}"
        )
    rows = NewRows([[index] for index in kept_ids], len(kept_ids))
    new = old.trimmed(kept_ids)
    return _convert(model, new, rows, new_model_dir)


def replace_vocabulary(
    model_dir: str,
    checkpoint: str | None,
    new_model_dir: str,
    vocabulary: str,
) -> dict[str, Any]:
    """Writes the model with the pieces of another vocabulary."""
    check_target(new_model_dir)
    model = open_model(model_dir, checkpoint, verify=False)
    new = open_vocabulary(vocabulary)
    rows = matching_rows(model.vocabulary, new)
    return _convert(model, new, rows, new_model_dir)


def _languages(corpus: Corpus, languages: Sequence[str]) -> list[str]:
    known_languages = corpus.languages("train")
    missing = [language for language in languages if language not in known_languages]
    if missing:
        raise UserError(
            f"--languages: {corpus.folder} has no {missing[0]}; it has "
            f"{', '.join(known_languages)}"
        )
    return list(languages) or known_languages


def _used_ids(vocabulary, corpus, languages, min_count) -> list[int]:
    """The ids of the kept pieces, in their order."""
    used_ids = set()
    for language in languages:
        counts = collections.Counter()
        sentences = iter(corpus.sentences("train", language))
        steps = -(-corpus.counts("train")[language] // _BATCH)
        for _ in console.track(range(steps), f"{language}: counting pieces", steps):
            batch = list(itertools.islice(sentences, _BATCH))
            for ids in vocabulary.encode_batch(batch):
                counts.update(ids)
        used_ids |= {index for index, count in counts.items() if count >= min_count}
    fixed_ids = {*vocabulary.special_ids, vocabulary.unk_id, *vocabulary.byte_ids}
    characters = {
        character for index in used_ids for character in vocabulary.id_to_piece(index)
    }
    character_ids = {
        vocabulary.piece_to_id(_name(vocabulary, character, begins_word))
        for character in characters
        for begins_word in (False, True)
        # "▁a" is no single character.
        if vocabulary.kind == WORDPIECE or not begins_word
    }
    return sorted(used_ids | fixed_ids | character_ids)


def matching_rows(old: Vocabulary, new: Vocabulary) -> NewRows:
    """The old rows for each new piece: that of the same piece, or those of its parts.

    Special pieces match by their role. A piece whose text is unknown to the old
    vocabulary gets the mean of all rows.
    """
    roles = [
        (new.pad_id, old.pad_id), (new.unk_id, old.unk_id), (new.cls_id, old.cls_id),
        (new.sep_id, old.sep_id), (new.mask_id, old.mask_id),
    ]  # fmt: skip
    by_role = dict(roles)
    is_own_word = _words_of_their_own(old, new)
    special_ids = set(old.special_ids) | {old.unk_id}
    ordinary_ids = [index for index in range(old.size) if index not in special_ids]
    sources: list[list[int]] = []
    other_pieces = []
    for index in range(new.size):
        piece = new.id_to_piece(index)
        text, begins_word = _text(new, piece)
        spellings = [piece] if _BYTE.fullmatch(piece) else []
        if is_own_word(text):
            spellings += [text, MARK + text]
            # Where a text begins with it, nothing comes before.
            begins_word = old.kind == WORDPIECE
        else:
            spellings.append(_name(old, text, begins_word))
        old_ids = map(old.piece_to_id, spellings)
        same_ids = [i for i in old_ids if old.id_to_piece(i) in spellings]
        if index in by_role:
            sources.append([by_role[index]])
        elif same_ids:
            sources.append(same_ids[:1])
        else:
            sources.append([])
            other_pieces.append((index, text.replace(MARK, " "), begins_word))
    parts = _parts(old, [(text, begins_word) for _, text, begins_word in other_pieces])
    for (index, text, _), ids in zip(other_pieces, parts, strict=True):
        known_ids = [i for i in ids if i != old.unk_id]
        # The blank before a word says nothing of its text.
        says_nothing = known_ids == [old.blank_id] and text.strip()
        sources[index] = ordinary_ids if says_nothing or not known_ids else known_ids
    return NewRows(sources, new.size - len(other_pieces))


def _words_of_their_own(old: Vocabulary, new: Vocabulary) -> Callable[[str], bool]:
    """Tells whether a text begins with a word of its own among WordPieces; never so if
    both vocabularies have WordPieces, or none has them."""
    rules = [each.rules for each in (old, new) if isinstance(each, WordPiece)]
    if len(rules) != 1:
        return lambda text: False
    return lambda text: bool(text) and stands_alone(text[0], rules[0])


def _text(vocabulary: Vocabulary, piece: str) -> tuple[str, bool]:
    """The characters of a piece, and whether it begins a word."""
    if vocabulary.kind == WORDPIECE:
        return piece.removeprefix("##"), not piece.startswith("##")
    if byte := _BYTE.fullmatch(piece):
        # A byte that is no character by itself has no text.
        code = int(byte[1], 16)
        return chr(code) if 0x20 < code < 0x7F else "", False
    return piece.removeprefix(MARK), piece.startswith(MARK)


def _name(vocabulary: Vocabulary, text: str, begins_word: bool) -> str:
    """The piece that has these characters."""
    if vocabulary.kind == WORDPIECE:
        return text if begins_word else f"##{text}"
    return MARK + text if begins_word else text


def _parts(old: Vocabulary, pieces: list[tuple[str, bool]]) -> Iterator[list[int]]:
    """The old pieces of the text of each piece."""
    if old.kind == WORDPIECE:
        encodings = old.encode_batch([text for text, _ in pieces])
        for (_, begins_word), ids in zip(pieces, encodings, strict=True):
            if ids and not begins_word:
                name = f"##{old.id_to_piece(ids[0])}"
                inner_id = old.piece_to_id(name)
                ids[0] = inner_id if inner_id != old.unk_id else ids[0]
            yield ids
        return
    for text, begins_word in pieces:
        yield old.encode_unspaced(" " * begins_word + text)


def mean_rows(table: np.ndarray, rows: NewRows) -> np.ndarray:
    """The new rows of a table or vector, float32 [new pieces, ...]."""
    result = table[[source[0] for source in rows.sources]].astype(np.float32)
    # All pieces without a source share one list: most of the table.
    means: dict[int, np.ndarray] = {}
    for index, source in enumerate(rows.sources):
        if len(source) > 1:
            if id(source) not in means:
                means[id(source)] = table[source].mean(axis=0, dtype=np.float64)
            result[index] = means[id(source)]
    return result


def _convert(
    model: Model, new: Vocabulary, rows: NewRows, folder: str
) -> dict[str, Any]:
    types = model.config.type_vocab_size
    if model.vocabulary.pairs.fit(model.config):
        types = max(types, new.pairs.second_type + 1)
    more_types = types - model.config.type_vocab_size
    config = dataclasses.replace(
        model.config, vocab_size=new.size, type_vocab_size=types
    )
    variables = names.declare(model.config, names.MASKED_LM)
    row_names = {
        name for name, variable in variables.items() if variable.dims[0].name == "vocab"
    }

    def value_of(name: str) -> np.ndarray | tf.Tensor:
        value = model.weights.read_tensor(name)
        if name == names.TYPE_EMBEDDINGS and more_types:
            value = np.asarray(value)
            return np.concatenate([value, *[value[-1:]] * more_types])
        return mean_rows(np.asarray(value), rows) if name in row_names else value

    shapes = {name: model.weights.shapes[name] for name in model.weights}
    shapes |= {name: (new.size, *shapes[name][1:]) for name in row_names & {*shapes}}
    shapes[names.TYPE_EMBEDDINGS] = (types, *shapes[names.TYPE_EMBEDDINGS][1:])
    task = model.description.task
    about = {
        "encoder_only": names.OUTPUT_BIAS not in shapes and task is None,
        "vocabulary": {
            "before": model.config.vocab_size,
            "after": new.size,
            "copied": rows.copied_count,
            "mean_of_others": len(rows.sources) - rows.copied_count,
        },
        **({"repeated_types": more_types} if more_types else {}),
    }
    return write_converted_folder(
        folder,
        Contents(
            source=model.weights.path,
            kind="model with another vocabulary",
            model=config,
            vocabulary=new,
            task=task,
            shapes=shapes,
            value_of=value_of,
            step=model.weights.global_step or 0,
            about=about,
            data=kept_data(model),
            run=model.folder,
        ),
    )
