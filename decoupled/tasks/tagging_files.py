"""Files of sentences with a tag for each word.

XTREME's are a word a line, a tab and its tag, and an empty line between sentences; test
files may lack tags. XTREME's preprocessing divides sentences with too many pieces, and
writes the number of the sentence of each word to a file beside (`INDEX`).

A user's files have more columns, which a `TaskDescription` numbers.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from decoupled.configs.finetuning import ENTITY_TAG, TAGGING
from decoupled.core import console, files
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS, LabelReader
from decoupled.core.tab_separated import is_quoted, unquoted
from decoupled.tasks.description import INDEX, TaskDescription
from decoupled.tasks.text_files import (
    TextRow,
    are_headers,
    cell_error,
    is_header,
    label_in,
    lines_of,
    refuse_header,
    text_in,
)
from decoupled.xtreme.files import LanguageFile

# XTREME's preprocessing writes one of these tags if a word has none.
_NO_TAGS = ({"X"}, {"O"})
# CoNLL-U: words of several syntactic words (1-2), and words that are not in the text.
_NO_WORD = re.compile(r"\d+[-.]\d+")
# Lines above a sentence in files without comments: `# id 12ab\tdomain=train` of
# MultiCoNER, `# sent_id = 3`.
_COMMENT = re.compile(r"# (id \S+[ \t]+domain=|\S+ = |\S+ =$|newdoc|newpar)")
# A language before a word, and not the beginning of an address.
_LANGUAGE = re.compile(r"[a-z]{2,12}(-[a-z]+)*:(?!//)")
_NAME_THE_WORDS = "name the column of the words, as --texts=1"


class TaggedSentence(NamedTuple):
    """Words, which may be empty or white space, and a tag for each, or None."""

    words: list[str]
    tags: list[str] | None


class _Line(NamedTuple):
    number: int
    sentence: str | int
    word: str
    tag: str


def read_sentences(
    file: LanguageFile,
    labels: Sequence[str],
    tags_may_miss: bool,
    any_tags: bool = False,
) -> list[TaggedSentence]:
    """The sentences of a file of XTREME; `tags` is None if the file has none.

    `any_tags`: whether it may have others than `labels`.
    """
    lines = list(_lines(file, None if any_tags else labels))
    if not lines:
        raise file.error("holds no word")
    number, _, word, tag = lines[0]
    if number == 1 and are_headers([word], TAGGING) and tag not in labels:
        raise file.error(f"{quoted(word)} looks like a header; remove the line", number)
    has_tags = _has_tags(file, lines)
    if not has_tags and not tags_may_miss:
        raise file.error("no tags, which only test files may lack", lines[0].number)
    if not has_tags:
        _check_words(file.path, (line.word for line in lines), LabelReader(labels))
    sentences = []
    for _, group in itertools.groupby(lines, key=lambda line: line.sentence):
        group = list(group)
        tags = [line.tag for line in group] if has_tags else None
        sentences.append(TaggedSentence([line.word for line in group], tags))
    return _without_language(file.path, sentences)


def _check_words(path: str, words: Iterable[str], labels: LabelReader) -> None:
    """Refuses a file without tags in which each word ends with a blank and a tag."""
    if all(" " in word and labels.knows(word.rpartition(" ")[2]) for word in words):
        raise UserError(
            f"{path}: blanks, not tabs, are between the words and their tags"
        )


def _without_language(path, sentences):
    """WikiANN's original files have the same `LANGUAGE:` before each word."""
    words = {word for sentence in sentences for word in sentence.words}
    prefix = _LANGUAGE.match(min(words))
    if not prefix or len(words) == 1:
        return sentences
    if not all(word.startswith(prefix[0]) for word in words):
        return sentences
    console.say(f"{path}: {prefix[0]!r} before each word is left out, as in WikiANN")
    return [
        sentence._replace(words=[w.removeprefix(prefix[0]) for w in sentence.words])
        for sentence in sentences
    ]


def _lines(file: LanguageFile, labels: Sequence[str] | None) -> Iterator[_Line]:
    lines = file.lines()
    sentences = _sentences_of_lines(file, lines)
    for number, line, sentence in zip(itertools.count(1), lines, sentences):
        if _is_empty(line):
            continue
        word, *columns = line.split("\t")
        if len(columns) > 1:
            # Where other columns can be named, any tag is taken.
            advice = "" if labels is not None else f"; {_NAME_THE_WORDS}"
            raise file.error(
                f"{len(columns) + 1} columns, not a word, a tab and its tag{advice}",
                number,
            )
        tag = columns[0].strip(BLANKS) if columns else ""
        if tag and labels is not None and tag not in labels:
            raise file.error(
                f"{quoted(tag)} is not one of the tags {', '.join(labels)}", number
            )
        yield _Line(number, sentence, word, tag)


def _is_plain(file: LanguageFile) -> bool:
    return file.path.endswith(".tsv")


def _is_empty(line: str) -> bool:
    # Other white space can be a word: UD has words that are no-break spaces.
    return not line.strip(BLANKS)


def _sentences_of_lines(file: LanguageFile, lines: list[str]) -> Iterable[str | int]:
    """For each line, a key that differs between neighbouring sentences."""
    index = file._replace(path=file.path + INDEX)
    if _is_plain(file):
        return itertools.accumulate(_is_empty(line) for line in lines)
    sentences = [line.strip(BLANKS) for line in index.lines()]
    pairs = itertools.zip_longest(lines, sentences, fillvalue="")
    for number, (line, sentence) in enumerate(pairs, start=1):
        if _is_empty(line) != (not sentence):
            raise index.error(f"does not fit {file.path}; make both anew", number)
    return sentences


def _has_tags(file: LanguageFile, lines: list[_Line]) -> bool:
    untagged_numbers = [line.number for line in lines if not line.tag]
    if 0 < len(untagged_numbers) < len(lines):
        problem = "no tag after the word, but other lines have one"
        raise file.error(problem, untagged_numbers[0])
    is_filler = not _is_plain(file) and {line.tag for line in lines} in _NO_TAGS
    return not untagged_numbers and not is_filler


def read_tagged(
    path: str, task: TaskDescription, split: str, labels: LabelReader
) -> list[TaggedSentence]:
    """The sentences of a file with a word a line and empty lines between sentences.

    Columns are separated by tabs or, in .txt and .conll files without any tab, by
    blanks. In .conllu files, comments, ranges of words and words that are not in the
    text are skipped. In other files, comments above a sentence are skipped, and a line
    that begins with -DOCSTART- ends a sentence.
    """
    [word_column] = task.texts
    sentences, words, tags, is_untagged, width = [], [], [], None, 0
    lines, has_tabs = _word_lines(path)
    for number, cells in [*lines, (0, [])]:
        if not cells:
            if words:
                sentences.append(TaggedSentence(words, None if is_untagged else tags))
            words, tags = [], []
            continue
        row = TextRow(number, dict(enumerate(cells, start=1)))
        refuse_header(path, row, task, labels)
        words.append(text_in(path, row, word_column, BLANKS))
        lacks_tag = not row.values.get(task.label, "").strip(BLANKS)
        is_untagged = lacks_tag if is_untagged is None else is_untagged
        if lacks_tag != is_untagged or (is_untagged and split != "test"):
            raise cell_error(path, number, task.label, "is missing, or not everywhere")
        if not width or (has_tabs and len(words) == 1):
            width = len(cells)
        if len(cells) != width:
            place = " of the sentence" if has_tabs else ""
            raise UserError(
                f"{path}:{number}: {len(cells)} columns; the first line{place} has "
                f"{width}"
            )
        if is_untagged:
            continue
        tags.append(label_in(path, row, task, labels))
        if problem := _problem_of_tag(tags[-1], task):
            raise cell_error(path, number, task.label, problem)
    if not sentences:
        raise UserError(f"{path}: holds no word")
    has_one_word_each = all(len(sentence.words) == 1 for sentence in sentences)
    if has_one_word_each and width > 2 and not has_tabs:
        raise UserError(
            f"{path}: each sentence has one line, with {width} columns; write a word a "
            "line, or tabs between columns"
        )
    if is_untagged:
        _check_words(
            path, (w for sentence in sentences for w in sentence.words), labels
        )
    return _without_language(path, sentences)


def check_tags(
    path: str, column: int, labels: Sequence[str], header_alone: bool = False
) -> None:
    """Refuses a file whose lines have something else than a tag in this column: a
    header, or, where blanks separate the columns, the text of a sentence."""
    reader, is_first = LabelReader(labels), True
    lines, has_tabs = _word_lines(path)
    for number, cells in lines:
        place = min(column, len(cells))
        cell = cells[place - 1] if cells else ""
        if len(cells) < 2 or not cell or reader.knows(cell):
            pass
        elif is_first and is_header(cell, TAGGING):
            problem = f"{quoted(cell)} looks like a header; remove the line"
            raise cell_error(path, number, place, problem)
        elif not (has_tabs or header_alone):
            raise cell_error(
                path,
                number,
                place,
                f"{quoted(cell)} is no tag; write a word a line, or {_NAME_THE_WORDS}",
            )
        is_first = is_first and not cells


def _problem_of_tag(tag, task):
    if any(map(str.isspace, tag)):
        return f"the tag {quoted(tag)} has a blank in it"
    if task.headline == ("entity_f1",) and not ENTITY_TAG.fullmatch(tag):
        return (
            "entity_f1 (OwnTaskConfig.metric) needs tags O, B-TYPE and I-TYPE; "
            f"{quoted(tag)} is none of them"
        )
    return None


def _word_lines(path):
    """Numbers and columns of lines with a word, and no columns between sentences; and
    whether tabs separate the columns."""
    is_conllu, texts, ends_sentence = path.endswith(".conllu"), [], True
    for number, line in lines_of(path):
        if is_conllu:
            if line.startswith("#") or _NO_WORD.match(line):
                continue
        elif ends_sentence and _COMMENT.match(line):
            continue
        ends_sentence = not line.strip(BLANKS) or line.startswith("-DOCSTART-")
        texts.append((number, "" if ends_sentence else line))
    # A word may have a blank in it, so that the file decides, and not each line.
    has_tabs = path.endswith((".tsv", ".conllu")) or any("\t" in x for _, x in texts)
    split = (lambda line: line.split("\t")) if has_tabs else files.split_blanks
    lines = [(number, split(line) if line else []) for number, line in texts]
    # Words may be quotes. If csv.writer has written the file, it has quoted all of
    # them, or every cell.
    cells = [cell for _, cells in lines for cell in cells]
    quotes_all = all(map(is_quoted, cells))
    is_escaped = all(unquoted(cell) != cell for cell in cells if '"' in cell)
    if path.endswith(".tsv") and (quotes_all or is_escaped):
        lines = [(n, [unquoted(cell, quotes_all) for cell in row]) for n, row in lines]
    return lines, has_tabs
