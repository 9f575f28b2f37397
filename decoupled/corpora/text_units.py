"""One unit of a text corpus: a file, or every n-th document of it -> clean text files.

    text/{train,eval}/LANGUAGE/UNIT/text-00000-of-0000N.txt
    work/UNIT.digests       8 bytes a document, to find equal documents

Each part of a dump reads the whole dump, because reading is much faster than cleaning.
So no document is sent between processes.
"""

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from decoupled.configs.corpora import CorpusSettings
from decoupled.core import files, installed
from decoupled.core.errors import UserError
from decoupled.corpora import sources
from decoupled.corpora.corpus import SPLITS, Document, check_counts, hash_bits
from decoupled.corpora.corpus_writer import MAX_FILE_BYTES, WORK, write_documents
from decoupled.corpora.sources import Reading, Source, source_of
from decoupled.corpora.text_lines import normal_form

# Increased when the same input gives other text or other files than before.
RULES = 3
DIGEST = np.dtype("<u8")
_SPLITTER = installed.NeededModule("sentencex", purpose="splitting text into sentences")


@dataclasses.dataclass(frozen=True)
class TextUnit:
    """Part `part` of `parts` of a file; sha256 and size are those of the file."""

    language: str
    path: str
    sha256: str
    size: int
    part: int
    parts: int

    @property
    def name(self) -> str:
        """The folder's name. It depends on the contents only, not on the path."""
        return f"{self.language}-{self.sha256[:16]}-{self.part}-of-{self.parts}"

    @property
    def weight(self) -> int:
        """The unit's part of the file's size, in bytes."""
        return self.size // self.parts


@dataclasses.dataclass(frozen=True)
class TextJob:
    """Writes the text of each unit into the corpus folder; see the module."""

    corpus_dir: str
    settings: CorpusSettings

    @property
    def work_dir(self) -> str:
        """Where the notes lie."""
        return os.path.join(self.corpus_dir, WORK)

    def is_intact(self, result: dict[str, Any]) -> bool:
        """False if a text file is missing, has another size, or is not one of this
        job's. `result` comes from the note of a unit, and notes are not trusted.
        """
        try:
            for counts in result["splits"].values():
                check_counts(self.corpus_dir, counts)
            dropped = result.get("dropped", {}).values()
        except (UserError, KeyError, TypeError, AttributeError):
            return False
        splits_known = set(SPLITS).issuperset(result["splits"])
        return splits_known and all(isinstance(count, int) for count in dropped)

    def inputs(self, unit: TextUnit) -> dict[str, Any]:
        """All that the text depends on."""
        return {
            "rules": cleaning_rules([unit.path], self.settings),
            "libraries": libraries([unit.path], self.settings),
            "settings": self.settings.text_settings(unit.language),
            "max_file_bytes": MAX_FILE_BYTES,
            "language": unit.language,
            "sha256": unit.sha256,
            "part": [unit.part, unit.parts],
        }

    def run(self, unit: TextUnit) -> dict[str, Any]:
        """Writes a unit; returns counts by split, and what was dropped by reason."""
        dropped = collections.Counter()
        documents = read_unit(unit, self.settings, dropped)
        path = digests_path(self.corpus_dir, unit)
        with files.atomic_write(path, "wb") as handle:
            # The file of digests exists even if there are no documents.
            handle.write(b"")
            splits = write_documents(
                self.corpus_dir,
                f"{unit.language}/{unit.name}",
                with_splits(_with_digests(documents, handle), self.settings.eval_share),
            )
        return {"splits": splits, "dropped": dict(sorted(dropped.items()))}


def check_installed(paths: Iterable[str], settings: CorpusSettings) -> None:
    """Raises a UserError if a package is missing that one of the files needs."""
    for package in _packages(paths, settings):
        package.check()


def cleaning_rules(paths: Iterable[str], settings: CorpusSettings) -> list[int]:
    """Versions of the rules that turn such files into text."""
    rules = [RULES]
    used_sources = _sources(paths)
    if any(source.splits(settings) for source in used_sources):
        # Imported here: text that is not split needs no library.
        from decoupled.corpora import sentences

        rules.append(sentences.RULES)
    for source in used_sources:
        rules += source.rules()
    return rules


def libraries(paths: Iterable[str], settings: CorpusSettings) -> dict[str, str]:
    """Versions of the libraries that the text of such files depends on."""
    return installed.versions(package.module for package in _packages(paths, settings))


def _sources(paths: Iterable[str]) -> list[Source]:
    names = {source_of(path).name for path in paths}
    return [source for source in sources.SOURCES if source.name in names]


def _packages(
    paths: Iterable[str], settings: CorpusSettings
) -> list[installed.NeededModule]:
    used_sources = _sources(paths)
    is_split = any(source.splits(settings) for source in used_sources)
    needed_packages = [package for source in used_sources for package in source.needs]
    return [_SPLITTER, *needed_packages] if is_split else needed_packages


def make_units(
    language: str, path: str, sha256: str, size: int, settings: CorpusSettings
) -> list[TextUnit]:
    """The parts of a file; their number depends only on its size and kind."""
    parts = 1
    if source_of(path).splits(settings):
        parts = min(max(-(-size // settings.part_bytes), 1), settings.max_parts)
    return [
        TextUnit(language, path, sha256, size, part, parts) for part in range(parts)
    ]


def digests_path(corpus_dir: str, unit: TextUnit) -> str:
    """Where the digests of a unit's documents lie, in the order of its text."""
    return os.path.join(corpus_dir, WORK, f"{unit.name}.digests")


def read_unit(
    unit: TextUnit, settings: CorpusSettings, dropped: collections.Counter
) -> Iterator[Document]:
    """Yields the documents of a unit as sentences; memory holds one at a time.

    Raises:
      UserError: the file cannot be read or is damaged; file and place are named.
    """
    source = source_of(unit.path)
    part = (unit.part, unit.parts)
    reading = Reading(unit.path, unit.language, settings, dropped, *part)
    for lines in source.reads(reading):
        document = lines
        if source.splits(settings):
            from decoupled.corpora.sentences import clean_sentences

            document = clean_sentences(
                lines, unit.language, settings.min_characters, dropped
            )
        if document:
            yield document
        else:
            dropped["document without sentences"] += 1


def digest(document: Document) -> int:
    """64 bits of the SHA-256 of a document's normal form."""
    # Any two of a billion different documents collide with a probability of 3%.
    lines = filter(None, map(normal_form, document))
    return hash_bits("\n".join(lines))


def split_of(document_digest: int, eval_share: float) -> str:
    """The split of a document: a function of its text alone."""
    return "eval" if document_digest / 2**64 < eval_share else "train"


def with_splits(
    documents: Iterable[tuple[int, Document]],
    eval_share: float,
    moved_digest: int | None = None,
) -> Iterator[tuple[str, Document]]:
    """Yields documents with their splits; a `moved_digest` gets the other split."""
    for document_digest, document in documents:
        split = split_of(document_digest, eval_share)
        if document_digest == moved_digest:
            split = "train" if split == "eval" else "eval"
        yield split, document


def _with_digests(documents, handle) -> Iterator[tuple[int, Document]]:
    for document in documents:
        document_digest = digest(document)
        handle.write(np.array([document_digest], DIGEST).tobytes())
        yield document_digest, document
