"""The text of a language as a unit of work: training text, and sentences with ids.

    text/{train,eval}/LANGUAGE/UNIT/text-00000-of-0000N.txt
        a document is a group (a chapter, a page); `eval` has those of dev and test
    work/UNIT.sentences.jsonl
        [split, id, text, repeated]: all held-out sentences. `repeated` is true if a
        text of the same normal form is in the training text, or earlier in the split.
    work/UNIT.training.tsv
        id<TAB>text: all sentences of the training text

Memory holds one group, the held-out sentences, and 8 bytes for each other sentence.
"""

import array
import collections
import dataclasses
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
from decoupled.corpora.corpus_writer import write_documents
from decoupled.corpora.input_files import InputFile
from decoupled.corpora.parallel.parallel_text import (
    TRAIN,
    SentenceLine,
    book_group,
    group_of,
    read,
    split_of,
)

# Increased when the same input gives other text or other files than before. (The second
# number is from a time when there were several kinds of parallel text.)
RULES = [3, 2]
# The reason for dropping empty lines, and dashes for verses that a translation lacks.
WITHOUT_WORDS = "sentence without letters"
_WORD = re.compile(r"[^\W_]")
# Key of a unit's result -> the ending of the file's name in the work folder.
_NOTED = {"training": "training.tsv", "sentences": "sentences.jsonl"}


class KeptSentence(NamedTuple):
    """A row of UNIT.sentences.jsonl, see the module."""

    split: str
    id: str
    text: str
    repeated: bool


@dataclasses.dataclass(frozen=True)
class ParallelUnit:
    """The text of a language."""

    language: str
    file: InputFile

    @property
    def name(self) -> str:
        """The folder's name. It depends on the contents only, not on the path."""
        return f"{self.language}-{files.fingerprint(f'{self.file.sha256} ')[:16]}"

    @property
    def weight(self) -> int:
        """Bytes that are read."""
        return self.file.size


@dataclasses.dataclass(frozen=True)
class ParallelJob(text_units.CorpusJob):
    """Writes the text and the sentences of each unit; see the module."""

    settings: ParallelTextConfig

    def inputs(self, unit: ParallelUnit) -> dict[str, Any]:
        """All that the text depends on."""
        return {
            "rules": RULES,
            "settings": dataclasses.asdict(self.settings),
            "max_file_bytes": self.max_file_bytes,
            "language": unit.language,
            "sha256": unit.file.sha256,
        }

    def run(self, unit: ParallelUnit) -> dict[str, Any]:
        """Writes a unit.

        Returns:
          counts by split, counts of dropped sentences by reason, whether all ids are
          those of a Bible, and the files of its sentences.
        """
        dropped = collections.Counter()
        names = {key: f"{unit.name}.{suffix}" for key, suffix in _NOTED.items()}
        paths = {key: os.path.join(self.work_dir, name) for key, name in names.items()}
        with files.atomic_write(paths["training"]) as training:
            kept = _Kept(training)
            splits = write_documents(
                self.corpus_dir,
                f"{unit.language}/{unit.name}",
                _documents(read(unit.file.path), self.settings, kept, dropped),
                self.max_file_bytes,
            )
        rows = (json.dumps(row, ensure_ascii=False) for row in kept.held_out())
        files.write_text(paths["sentences"], "".join(f"{row}\n" for row in rows))
        return {
            "splits": splits,
            "dropped": dict(sorted(dropped.items())),
            "bible": kept.is_bible,
            **{
                key: {"name": name, "sha256": files.file_fingerprint(paths[key])}
                for key, name in names.items()
            },
        }

    def is_intact(self, result: dict[str, Any]) -> bool:
        """False if a file is missing or changed, or if no job wrote the note."""
        if not super().is_intact(result):
            return False
        if not isinstance(result.get("bible"), bool):
            return False
        return all(self._is_kept(result.get(key)) for key in _NOTED)

    def _is_kept(self, entry: Any) -> bool:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not files.is_below(name):
            return False
        path = os.path.join(self.work_dir, name)
        return files.exists(path) and (
            files.file_fingerprint(path) == entry.get("sha256")
        )

    def training_path(self, result: dict[str, Any]) -> str:
        """The file with the training sentences of a unit with this result."""
        return os.path.join(self.work_dir, result["training"]["name"])

    def held_out(self, result: dict[str, Any]) -> list[KeptSentence]:
        """The held-out sentences of a unit with this result, in their order."""
        path = os.path.join(self.work_dir, result["sentences"]["name"])
        rows = files.read_text(path).split("\n")
        return [KeptSentence(*files.parse_json(row)) for row in rows if row]


class _Kept:
    """What is kept with its ids while a text is read: training text goes to a file."""

    def __init__(self, training: IO):
        self._training = training
        self._held_out: list[KeptSentence] = []
        self._digests = array.array("Q")
        self.is_bible = True

    def add(self, split: str, lines: list[SentenceLine]) -> None:
        """Takes the sentences of a group."""
        for line in lines:
            self.is_bible = self.is_bible and book_group(line.id) is not None
            if split == TRAIN:
                self._training.write(f"{line.id}\t{line.text}\n")
                self._digests.append(text_units.digest([line.text]))
            else:
                self._held_out.append(KeptSentence(split, line.id, line.text, False))

    def held_out(self) -> Iterator[KeptSentence]:
        """Yields the held-out sentences, and says which are repeated."""
        digests = [text_units.digest([sentence.text]) for sentence in self._held_out]
        trained = set(digests).intersection(self._digests)
        seen = set()
        for sentence, digest in zip(self._held_out, digests, strict=True):
            key = (sentence.split, digest)
            yield sentence._replace(repeated=digest in trained or key in seen)
            seen.add(key)


def _documents(
    lines: Iterator[SentenceLine],
    settings: ParallelTextConfig,
    kept: _Kept,
    dropped: collections.Counter,
) -> Iterator[tuple[str, Document]]:
    """Yields each group as a document with its split."""
    for group, members in _groups(lines, settings.group):
        sentences = [line for line in members if _WORD.search(line.text)]
        if len(sentences) < len(members):
            dropped[WITHOUT_WORDS] += len(members) - len(sentences)
        if not sentences:
            continue
        split = split_of(group, settings)
        kept.add(split, sentences)
        yield "train" if split == TRAIN else "eval", [line.text for line in sentences]


def _groups(
    lines: Iterator[SentenceLine], pattern: str | None
) -> Iterator[tuple[str, list[SentenceLine]]]:
    seen: set[str] = set()
    current, members = None, {}
    for line in lines:
        group = group_of(line.id, pattern, line.place)
        if group != current:
            if members:
                yield current, list(members.values())
            if group in seen:
                raise UserError(
                    f"{line.place}: {group!r} begins again with the id {line.id!r}; "
                    "sort the file by id, so that each group stands together"
                )
            seen.add(group)
            current, members = group, {}
        if line.id in members:
            raise UserError(
                f"{line.place}: the id {line.id!r} is also in {members[line.id].place}"
            )
        members[line.id] = line
    if members:
        yield current, list(members.values())
