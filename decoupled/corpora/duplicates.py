"""Duplicates within a language, and documents that languages need in a split.

The first of several equal documents is kept. "First" refers to the order of the files
and of the documents in them, and does not depend on the number of processes. If the
digests assign no document of a language to eval, the document with the lowest digest is
held out, because a larger share would hold it out first. If they assign none to train,
the one with the highest digest is trained on. Units that change are written again, into
UNIT-unique beside UNIT; most units of most corpora do not change.
"""

import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from decoupled.core import files
from decoupled.corpora import text_units
from decoupled.corpora.corpus import Document, read_documents
from decoupled.corpora.corpus_writer import write_documents
from decoupled.corpora.text_units import DIGEST, TextJob, TextUnit, digests_path

# There are as many passes over the files. One takes 40 bytes for each: 640 MiB.
DOCUMENTS_AT_ONCE = 1 << 24


def find_duplicates(paths: Sequence[str]) -> list[np.ndarray]:
    """The documents of each file that occurred earlier, in that file or one before it.

    Args:
      paths: files of digests; the first of equal documents in this order is kept.

    Returns:
      for each file, the indices of its repeated documents, int64, ascending.
    """
    counts = [_read(path).size for path in paths]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    passes = -(-int(starts[-1]) // DOCUMENTS_AT_ONCE)
    places_by_pass = [np.zeros(0, np.int64)]
    for number in range(passes):
        places_by_pass.append(_repeated(paths, starts, number, passes))
    repeated = np.sort(np.concatenate(places_by_pass))
    places = np.searchsorted(repeated, starts)
    return [
        repeated[places[index] : places[index + 1]] - starts[index]
        for index in range(len(paths))
    ]


def find_moved(paths: Sequence[str], splits: Collection[str]) -> int | None:
    """The digest of the document that changes its split, so that a language has text in
    both; None if no document does.

    `paths` are the digests of all its documents, `splits` those that have some. Where
    all documents are equal, or there is only one, training needs it.
    """
    ends = [
        (int(digests.min()), int(digests.max()))
        for digests in map(_read, paths)
        if digests.size
    ]
    if not ends:
        return None
    lowest, highest = min(low for low, _ in ends), max(high for _, high in ends)
    if "train" not in splits:
        return highest
    return lowest if "eval" not in splits and lowest != highest else None


def has_document(path: str, number: int) -> bool:
    """True if a file of digests contains this digest."""
    return bool((_read(path) == number).any())


def _repeated(paths, starts, number: int, passes: int) -> np.ndarray:
    """Places of repeated digests among those that belong to one pass."""
    values, places = [], []
    for path, start in zip(paths, starts[:-1], strict=True):
        read = _read(path)
        chosen = np.flatnonzero(read % np.uint64(passes) == number)
        values.append(read[chosen])
        places.append(chosen + start)
    values, places = np.concatenate(values), np.concatenate(places)
    # Stable: equal digests stay in the order of the text.
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    return places[order[1:][ordered[1:] == ordered[:-1]]]


def _read(path: str) -> np.ndarray:
    return np.frombuffer(files.read_bytes(path), DIGEST)


@dataclasses.dataclass(frozen=True)
class UniqueUnit:
    """A unit to write again, with the documents to leave out or to move.

    splits: from the unit's result. duplicates: a file of indices, int64.
    sha256: of that file.
    moved: the digest of a document that moves to the other split, or None.
    """

    unit: TextUnit
    splits: dict[str, Any]
    duplicates: str
    sha256: str
    moved: int | None = None

    @property
    def name(self) -> str:
        """A folder's name."""
        return f"{self.unit.name}-unique"

    @property
    def weight(self) -> int:
        """Bytes of its text."""
        return sum(
            entry["bytes"]
            for counts in self.splits.values()
            for entry in counts["files"]
        )


class UniqueJob(TextJob):
    """Writes units again, without some of their documents or with one moved."""

    def inputs(self, unit: UniqueUnit) -> dict[str, Any]:
        """All that the text depends on."""
        changes = {"duplicates": unit.sha256, "moved": unit.moved}
        return {**super().inputs(unit.unit), "splits": unit.splits, **changes}

    def run(self, unit: UniqueUnit) -> dict[str, Any]:
        """Writes a unit's text again; returns counts by split."""
        share = self.settings.eval_share
        kept = _without_duplicates(self.corpus_dir, unit, share)
        splits = write_documents(
            self.corpus_dir,
            f"{unit.unit.language}/{unit.name}",
            text_units.with_splits(kept, share, unit.moved),
        )
        return {"splits": splits}


def unique_unit(
    job: TextJob, unit: TextUnit, splits, duplicates, moved: int | None
) -> UniqueUnit:
    """The unit that leaves out `duplicates`, indices of documents, int64."""
    path = os.path.join(job.work_dir, f"{unit.name}.duplicates")
    content = duplicates.astype("<i8").tobytes()
    with files.atomic_write(path, "wb") as handle:
        handle.write(content)
    return UniqueUnit(unit, splits, path, files.fingerprint(content), moved)


def _without_duplicates(
    folder: str, unit: UniqueUnit, eval_share: float
) -> Iterator[tuple[int, Document]]:
    """The documents that are kept, with their digests; train first, then eval."""
    digests = _read(digests_path(folder, unit.unit))
    stays = np.ones(digests.size, bool)
    stays[np.frombuffer(files.read_bytes(unit.duplicates), "<i8")] = False
    for split, counts in unit.splits.items():
        inside = (
            (int(number), keep)
            for number, keep in zip(digests, stays, strict=True)
            if text_units.split_of(int(number), eval_share) == split
        )
        written = read_documents(folder, counts["files"])
        for (number, keep), document in zip(inside, written, strict=True):
            if keep:
                yield number, document
