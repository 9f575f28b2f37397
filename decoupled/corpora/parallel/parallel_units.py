"""The text of a language as a unit of work: training text, and sentences with ids.

    text/{train,eval}/LANGUAGE/UNIT/text-00000-of-0000N.txt
        a document is a group (a chapter, a page); `eval` has those of dev and test
    work/UNIT.sentences.jsonl
        [split, id, text, repeated]: all held-out sentences and, for a Bible in English,
        verses of the training text to train a task on. `repeated` is true if a text
        of the same normal form occurs in the training text, or earlier in the split.
    work/UNIT.training.tsv
        id<TAB>text: all sentences of the training text

Memory holds one group, the held-out sentences, and 8 bytes for each other sentence.
"""

import array
import collections
import dataclasses
import hashlib
import heapq
import json
import os
import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.corpora import text_units
from decoupled.corpora.corpus import Document
from decoupled.corpora.corpus_writer import MAX_FILE_BYTES, WORK, write_documents
from decoupled.corpora.locales import ENGLISH
from decoupled.corpora.parallel.kinds import KINDS
from decoupled.corpora.parallel.parallel_text import (
    TRAIN,
    Line,
    ParallelText,
    book_group,
    group_of,
    position,
    split_of,
)
from decoupled.corpora.text_lines import normal_form

# Increased when the same input gives other text or other files than before.
RULES = 3
# The reason for dropping empty lines, and dashes for verses that a translation lacks.
WITHOUT_WORDS = "sentence without letters"
_WORD = re.compile(r"[^\W_]")
# Key of a unit's result -> the ending of the file's name in the work folder.
_NOTED = {"training": "training.tsv", "sentences": "sentences.jsonl"}


class Sentence(NamedTuple):
    """A row of UNIT.sentences.jsonl, see the module."""

    split: str
    id: str
    text: str
    repeated: bool


@dataclasses.dataclass(frozen=True)
class ParallelUnit:
    """The text of a language."""

    text: ParallelText

    @property
    def name(self) -> str:
        """The folder's name. It depends on the contents only, not on the path."""
        content = files.fingerprint(f"{self.text.sha256} {self.text.part}")
        return f"{self.text.language}-{content[:16]}"

    @property
    def weight(self) -> int:
        """Bytes that are read."""
        return self.text.size


@dataclasses.dataclass(frozen=True)
class ParallelJob:
    """Writes the text and the sentences of each unit; see the module."""

    corpus_dir: str
    kind: str
    settings: ParallelTextConfig
    max_file_bytes: int = MAX_FILE_BYTES

    @property
    def work_dir(self) -> str:
        """Where the notes lie."""
        return os.path.join(self.corpus_dir, WORK)

    def inputs(self, unit: ParallelUnit) -> dict[str, Any]:
        """All that the text depends on."""
        return {
            "rules": [RULES, KINDS[self.kind].rules],
            "kind": self.kind,
            "settings": dataclasses.asdict(self.settings),
            "max_file_bytes": self.max_file_bytes,
            "language": unit.text.language,
            "sha256": unit.text.sha256,
            "part": unit.text.part,
        }

    def run(self, unit: ParallelUnit) -> dict[str, Any]:
        """Writes a unit.

        Returns:
          counts by split, counts of dropped sentences by reason, whether all ids are
          those of a Bible, and the files of its sentences.
        """
        language, name = unit.text.language, unit.name
        text_units.clear(self.corpus_dir, name, language)
        dropped = collections.Counter()
        lines = KINDS[self.kind].read(unit.text, dropped)
        pattern = self.settings.group
        noted = {key: f"{name}.{suffix}" for key, suffix in _NOTED.items()}
        paths = {key: os.path.join(self.work_dir, file) for key, file in noted.items()}
        with text_units.cleared_on_failure(self.corpus_dir, name, language):
            with files.atomic_write(paths["training"]) as trained:
                kept = _Kept(self.settings, trained, language == ENGLISH)
                splits = write_documents(
                    self.corpus_dir,
                    f"{language}/{name}",
                    _documents(lines, pattern, kept, dropped),
                    self.max_file_bytes,
                )
            rows = (json.dumps(row, ensure_ascii=False) for row in kept.sentences())
            files.write_text(paths["sentences"], "".join(f"{row}\n" for row in rows))
        return {
            "splits": splits,
            "dropped": dict(sorted(dropped.items())),
            "bible": kept.is_bible,
            **{
                key: {"name": file, "sha256": files.file_fingerprint(paths[key])}
                for key, file in noted.items()
            },
        }

    def is_intact(self, result: dict[str, Any]) -> bool:
        """False if a file is missing or changed, or if no job wrote the note."""
        if not text_units.is_intact(self.corpus_dir, result):
            return False
        if not isinstance(result.get("bible"), bool):
            return False
        return all(self._is_kept(result.get(key)) for key in _NOTED)

    def _is_kept(self, entry: Any) -> bool:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not files.is_below(name):
            return False
        path = os.path.join(self.work_dir, name)
        return files.exists(path) and files.file_fingerprint(path) == entry.get(
            "sha256"
        )

    def training_path(self, result: dict[str, Any]) -> str:
        """The file with the training sentences of a unit with this result."""
        return os.path.join(self.work_dir, result["training"]["name"])

    def sentences(self, result: dict[str, Any]) -> list[Sentence]:
        """The sentences of a unit with this result, in the order of its text."""
        path = os.path.join(self.work_dir, result["sentences"]["name"])
        rows = files.read_text(path).split("\n")
        return [Sentence(*files.parse_json(row)) for row in rows if row]


class _Kept:
    """The sentences to keep with their ids, while a text is read.

    Args:
      training: the file that receives id<TAB>text of the training text.
      takes_training_text: whether verses are kept to train a task on.
    """

    def __init__(
        self, settings: ParallelTextConfig, training: IO, takes_training_text: bool
    ):
        self.settings = settings
        self._training_file = training
        self._takes_training_text = takes_training_text
        self._held_out: list[Sentence] = []
        # A heap of (-position, line, id, text): the highest position leaves first.
        self._training: list[tuple[float, int, str, str]] = []
        self._digests = array.array("Q")
        self.is_bible = True

    def add(self, split: str, lines: list[Line]) -> None:
        """Takes the sentences of a group."""
        for line in lines:
            label = book_group(line.id)
            self.is_bible = self.is_bible and label is not None
            if split != TRAIN:
                self._held_out.append(Sentence(split, line.id, line.text, False))
                continue
            self._training_file.write(f"{line.id}\t{line.text}\n")
            self._digests.append(_digest(line.text))
            if self._takes_training_text and label:
                place = -position(line.id, self.settings.seed)
                row = (place, len(self._digests), line.id, line.text)
                heapq.heappush(self._training, row)
                if len(self._training) > self.settings.max_train_examples:
                    heapq.heappop(self._training)

    def sentences(self) -> Iterator[Sentence]:
        """Yields the rows of the file: first training text, then held-out text."""
        for _, _, identifier, text in sorted(self._training, key=lambda row: row[1]):
            yield Sentence(TRAIN, identifier, text, False)
        seen = {(TRAIN, digest) for digest in self._training_digests_held_out()}
        for sentence in self._held_out:
            digest = _digest(sentence.text)
            key = (sentence.split, digest)
            yield sentence._replace(repeated=(TRAIN, digest) in seen or key in seen)
            seen.add(key)

    def _training_digests_held_out(self) -> set[int]:
        """Digests that training sentences and held-out sentences have in common."""
        held_out = {_digest(sentence.text) for sentence in self._held_out}
        return held_out.intersection(self._digests)


def _digest(text: str) -> int:
    content = normal_form(text).encode("utf-8")
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def _documents(
    lines: Iterator[Line],
    pattern: str | None,
    kept: _Kept,
    dropped: collections.Counter,
) -> Iterator[tuple[str, Document]]:
    """Yields each group as a document with its split.

    Raises:
      UserError: an id occurs twice, or a group is interrupted by another group.
    """
    for group, own in _groups(lines, pattern):
        sentences = [line for line in own if _WORD.search(line.text)]
        if len(sentences) < len(own):
            dropped[WITHOUT_WORDS] += len(own) - len(sentences)
        if not sentences:
            continue
        split = split_of(group, kept.settings)
        kept.add(split, sentences)
        yield "train" if split == TRAIN else "eval", [line.text for line in sentences]


def _groups(
    lines: Iterator[Line], pattern: str | None
) -> Iterator[tuple[str, list[Line]]]:
    seen: set[str] = set()
    current, own = None, {}
    for line in lines:
        group = group_of(line.id, pattern, line.place)
        if group != current:
            if own:
                yield current, list(own.values())
            if group in seen:
                raise UserError(
                    f"{line.place}: {group!r} begins again with the id {line.id!r}; "
                    "sort the file by id, so that each group stands together"
                )
            seen.add(group)
            current, own = group, {}
        if line.id in own:
            raise UserError(
                f"{line.place}: the id {line.id!r} stands in {own[line.id].place} too"
            )
        own[line.id] = line
    if own:
        yield current, list(own.values())
