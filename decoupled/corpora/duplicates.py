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

# One pass over the files handles about this many, with 40 bytes for each: 640 MiB.
DOCUMENTS_AT_ONCE = 1 << 24


def find_duplicates(paths: Sequence[str]) -> list[np.ndarray]:
    """The documents of each file that occurred earlier, in that file or one before it.

    Args:
      paths: files of digests; the first of equal documents in this order is kept.

    Returns:
      for each file, the indices of its repeated documents, int64, ascending.
    """
    counts = [_read_digests(path).size for path in paths]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    passes = -(-int(starts[-1]) // DOCUMENTS_AT_ONCE)
    places_by_pass = [np.zeros(0, np.int64)]
    for number in range(passes):
        places_by_pass.append(_repeated_places(paths, starts, number, passes))
    places = np.sort(np.concatenate(places_by_pass))
    bounds = np.searchsorted(places, starts)
    return [
        places[bounds[index] : bounds[index + 1]] - starts[index]
        for index in range(len(paths))
    ]


def find_moved_document(paths: Sequence[str], splits: Collection[str]) -> int | None:
    """The digest of the document that changes its split, so that a language has text in
    both; None if no document does.

    `paths` are the digests of all its documents, `splits` those that have some. Where
    all documents are equal, or there is only one, training needs it.
    """
    digest_ranges = [
        (int(digests.min()), int(digests.max()))
        for digests in map(_read_digests, paths)
        if digests.size
    ]
    if not digest_ranges:
        return None
    lowest = min(low for low, _ in digest_ranges)
    highest = max(high for _, high in digest_ranges)
    if "train" not in splits:
        return highest
    return lowest if "eval" not in splits and lowest != highest else None


def has_document(path: str, digest: int) -> bool:
    """True if a file of digests contains this digest."""
    return bool((_read_digests(path) == digest).any())


def _repeated_places(paths, starts, number: int, passes: int) -> np.ndarray:
    """Places of repeated digests among those that belong to one pass."""
    digests, places = [], []
    for path, start in zip(paths, starts[:-1], strict=True):
        file_digests = _read_digests(path)
        indices = np.flatnonzero(file_digests % np.uint64(passes) == number)
        digests.append(file_digests[indices])
        places.append(indices + start)
    digests, places = np.concatenate(digests), np.concatenate(places)
    # Stable: equal digests stay in the order of the text.
    order = np.argsort(digests, kind="stable")
    sorted_digests = digests[order]
    return places[order[1:][sorted_digests[1:] == sorted_digests[:-1]]]


def _read_digests(path: str) -> np.ndarray:
    return np.frombuffer(files.read_bytes(path), DIGEST)


@dataclasses.dataclass(frozen=True)
class UniqueUnit:
    """A unit to write again, with the documents to leave out or to move.

    splits: from the unit's result. duplicates_path: a file of indices, int64.
    sha256: of that file.
    moved_digest: of the document that moves to the other split, or None.
    """

    unit: TextUnit
    splits: dict[str, Any]
    duplicates_path: str
    sha256: str
    moved_digest: int | None = None

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
        changes = {"duplicates": unit.sha256, "moved": unit.moved_digest}
        return {**super().inputs(unit.unit), "splits": unit.splits, **changes}

    def run(self, unit: UniqueUnit) -> dict[str, Any]:
        """Writes a unit's text again; returns counts by split."""
        share = self.settings.eval_share
        documents = _without_duplicates(self.corpus_dir, unit, share)
        splits = write_documents(
            self.corpus_dir,
            f"{unit.unit.language}/{unit.name}",
            text_units.with_splits(documents, share, unit.moved_digest),
        )
        return {"splits": splits}


def unique_unit(
    job: TextJob, unit: TextUnit, splits, indices, moved_digest: int | None
) -> UniqueUnit:
    """The unit that leaves out the documents at `indices`, int64."""
    path = os.path.join(job.work_dir, f"{unit.name}.duplicates")
    content = indices.astype("<i8").tobytes()
    with files.atomic_write(path, "wb") as handle:
        handle.write(content)
    return UniqueUnit(unit, splits, path, files.fingerprint(content), moved_digest)


def _without_duplicates(
    folder: str, unit: UniqueUnit, eval_share: float
) -> Iterator[tuple[int, Document]]:
    """The documents that are kept, with their digests; train first, then eval."""
    digests = _read_digests(digests_path(folder, unit.unit))
    keep_mask = np.ones(digests.size, bool)
    keep_mask[np.frombuffer(files.read_bytes(unit.duplicates_path), "<i8")] = False
    for split, counts in unit.splits.items():
        digests_of_split = (
            (int(digest), keep)
            for digest, keep in zip(digests, keep_mask, strict=True)
            if text_units.split_of(int(digest), eval_share) == split
        )
        documents = read_documents(folder, counts["files"])
        for (digest, keep), document in zip(digests_of_split, documents, strict=True):
            if keep:
                yield digest, document
