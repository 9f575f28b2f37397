"""XTREME's files of udpos and panx: sentences with a tag for each word.

    udpos/{train,dev,test}-L.tsv         a word a line, TAB, its tag; an empty line
                                         between sentences; test files may lack tags
    udpos/udpos_processed_maxlenN/L/SPLIT.MODEL, SPLIT.MODEL.idx
                                         the same, but sentences with too many pieces
                                         are divided; the .idx file has the number of
                                         the sentence for each word. Used if there is
                                         no plain file.

The files of panx have the same structure.
"""

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from decoupled.core import gfile
from decoupled.core.errors import UserError
from decoupled.core.labels import BLANKS
from decoupled.xtreme.files import LanguageFile, is_language, languages_of
from decoupled.xtreme.official import english_first

_HOW_TO_GET = {
    "udpos": (
        "XTREME's scripts/download_data.sh writes it from Universal Dependencies v2.5"
    ),
    "panx": (
        "XTREME's scripts/download_data.sh writes it from AmazonPhotos.zip, which is "
        "fetched by hand (github.com/google-research/xtreme, issue 101)"
    ),
}
_INDEX = ".idx"
# The tag that XTREME's preprocessing writes if a word has none.
_NO_TAG = {"udpos": "X", "panx": "O"}


class TaggedSentence(NamedTuple):
    """Words, which may be empty or white space, and a tag for each, or None."""

    words: list[str]
    tags: list[str] | None


class _Line(NamedTuple):
    number: int
    sentence: str | int
    word: str
    tag: str


def files_by_language(task: str, data_dir: str, split: str) -> dict[str, str]:
    """The existing files of a split: English, XTREME's others, then the rest.

    Args:
      task: "udpos" or "panx". data_dir: the folder with a folder per task.
      split: "train", "dev" or "test".
    """
    folder = os.path.join(data_dir, task)
    names = _names(folder)
    processed = [
        os.path.join(folder, name)
        for name in sorted(names)
        if re.fullmatch(rf"{task}_processed_maxlen\d+", name)
    ]
    plain = languages_of(folder, f"{split}-{{language}}.tsv")
    within = [name for place in processed for name in _names(place)]
    found = {}
    for language in english_first(task, [*plain, *filter(is_language, within)]):
        if language in plain:
            found[language] = os.path.join(folder, f"{split}-{language}.tsv")
        elif path := _processed_file(processed, split, language):
            found[language] = path
    return found


def find_file(task: str, data_dir: str, split: str, language: str) -> str:
    """The file of a split in a language.

    Raises:
      UserError: there is none.
    """
    path = files_by_language(task, data_dir, split).get(language)
    if path is None:
        expected = os.path.join(data_dir, task, f"{split}-{language}.tsv")
        raise UserError(
            f"{expected}: missing, the {split} file of task {task} in language "
            f"{language!r}; {_HOW_TO_GET[task]}"
        )
    return path


def read_sentences(file: LanguageFile, tags_may_miss: bool) -> list[TaggedSentence]:
    """The sentences of a file, in its order; `tags` is None if the file has none.

    Raises:
      UserError: the file is missing, empty or malformed; a tag is not one of the
        task's; or tags are missing, unless all are and `tags_may_miss`.
    """
    lines = list(_lines(file))
    if not lines:
        raise file.error("holds no word")
    tagged = _is_tagged(file, lines)
    if not tagged and not tags_may_miss:
        raise file.error("no tags, which only test files may lack", lines[0].number)
    sentences = []
    for _, own in itertools.groupby(lines, key=lambda line: line.sentence):
        own = list(own)
        tags = [line.tag for line in own] if tagged else None
        sentences.append(TaggedSentence([line.word for line in own], tags))
    return sentences


def _names(folder: str) -> list[str]:
    if not gfile.isdir(folder):
        return []
    # Folders of gs:// end in a slash.
    return [name.rstrip("/") for name in gfile.listdir(folder)]


def _processed_file(folders: Iterable[str], split: str, language: str) -> str | None:
    """The first of XTREME's preprocessed files, for any tokenizer."""
    for folder in folders:
        names = set(_names(os.path.join(folder, language)))
        for name in sorted(names):
            if name.startswith(f"{split}.") and f"{name}{_INDEX}" in names:
                return os.path.join(folder, language, name)
    return None


def _lines(file: LanguageFile) -> Iterator[_Line]:
    """The lines with a word."""
    lines = file.lines()
    sentences = _sentences_of_lines(file, lines)
    numbered = zip(itertools.count(1), lines, sentences)
    for number, line, sentence in numbered:
        if _is_empty(line):
            continue
        word, *columns = line.split("\t")
        if len(columns) > 1:
            raise file.error(
                f"{len(columns) + 1} columns, not a word, a tab and its tag", number
            )
        tag = columns[0].strip(BLANKS) if columns else ""
        tag = tag and file.value(tag, number)
        yield _Line(number, sentence, word, tag)


def _is_plain(file: LanguageFile) -> bool:
    return file.path.endswith(".tsv")


def _is_empty(line: str) -> bool:
    # Other white space can be a word: UD has words that are no-break spaces.
    return not line.strip(BLANKS)


def _sentences_of_lines(file: LanguageFile, lines: list[str]) -> Iterable[str | int]:
    """For each line, a key that differs between neighbouring sentences."""
    index = file._replace(path=file.path + _INDEX)
    if _is_plain(file):
        return itertools.accumulate(_is_empty(line) for line in lines)
    sentences = [line.strip(BLANKS) for line in index.lines()]
    pairs = itertools.zip_longest(lines, sentences, fillvalue="")
    for number, (line, sentence) in enumerate(pairs, start=1):
        if _is_empty(line) != (not sentence):
            raise index.error(f"does not fit {file.path}; make both anew", number)
    return sentences


def _is_tagged(file: LanguageFile, lines: list[_Line]) -> bool:
    """Whether all lines have tags, as opposed to none.

    Raises:
      UserError: some lines have tags.
    """
    without = [line.number for line in lines if not line.tag]
    if without and len(without) < len(lines):
        raise file.error("no tag after the word, but other lines have one", without[0])
    filled = not _is_plain(file) and {line.tag for line in lines} == {
        _NO_TAG[file.task]
    }
    return not without and not filled
