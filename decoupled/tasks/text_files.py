"""Files with a label or a number for a text or a pair of texts.

Tables are in .tsv, .csv or .jsonl; a `TaskDescription` names their columns. XTREME's
are .tsv without a header: sentence, sentence, label. XTREME writes them with Python's
csv.writer, which encloses a sentence with quotes in quotes and doubles those inside.
XTREME reads the files without undoing this, so that its baselines see
`"He said ""yes""."` for `He said "yes".`. Here the quoting is undone, because the text
of pre-training has none (`core.tab_separated`).

`build_corpus` writes one or two texts and the label in a line, with tabs between and
without quoting, and labels.txt, which has the labels, one a line, in the order of their
ids.
"""

import collections
import csv
import io
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from decoupled.configs.finetuning import REGRESSION, TAGGING
from decoupled.core import files
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS, LabelReader, check_labels, look
from decoupled.core.tab_separated import read_rows
from decoupled.tasks.description import (
    COLUMNS,
    CORPUS,
    SPLITS,
    XTREME,
    Column,
    TaskDescription,
)

# Names of a column of labels, which are no labels. Columns by number are for files
# without a header.
_HEADERS = {
    *("label", "labels", "gold_label", "tag", "tags", "class", "category", "target"),
    *("sentiment", "intent"),
}
# Of one kind of task. (A sentiment may be `pos`.)
_HEADERS_OF = {
    REGRESSION: {"number", "rating", "score", "scores", "similarity", "value"},
    TAGGING: {
        "pos",
        "upos",
        "xpos",
        "pos_tag",
        "pos_tags",
        "ner",
        "ner_tag",
        "ner_tags",
    },
}
# Names of a column of words, and of texts.
_WORD_HEADERS = {"word", "words", "token", "tokens"}
_TEXT_HEADERS = {
    *("text", "text1", "text2", "sentence", "sentence1", "sentence2", "premise"),
    *("hypothesis", "question", "question1", "question2", "query", "passage"),
    *("document", "utterance", "review", *_WORD_HEADERS),
}
# The most labels in a message, and characters of each; characters of all of them.
_MOST_SHOWN, _LIST_LENGTH = 40, 400
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST_NUMBER = 3.4e38
# Joined files have a byte order mark each. Alone in its cell, the mark is a word that
# shows nothing.
_MARK = re.compile(rf"(?<![^\r\n]){files.BYTE_ORDER_MARK}(?=[^\r\n{BLANKS}])")


class LabelledTexts(NamedTuple):
    """One or two texts and their label, None where the file has none."""

    texts: tuple[str, ...]
    label: str | None


class TextRow(NamedTuple):
    """The values of a row by column, and its line, from 1."""

    line: int
    values: dict[Column, Any]


def read_texts(
    path: str, task: TaskDescription, split: str, labels: LabelReader
) -> list[LabelledTexts]:
    """The rows of a split in a file, in its order."""
    rows = list(_rows_of_split(path, task, split, labels))
    if not rows:
        raise UserError(f"{path}: holds no example of {split}")
    refuse_header(path, rows[0], task, labels)
    has_labels = task.label in rows[0].values
    if not has_labels and split != "test":
        raise cell_error(path, rows[0].line, task.label, "is missing; only tests may")
    return [_example(path, row, task, labels, has_labels) for row in rows]


def read_unlabelled(path: str, task: TaskDescription) -> list[LabelledTexts]:
    """The texts of all rows of a file, whatever their labels are.

    The labels of `task` and its column of labels say where a row ends, as in training.
    """
    rows = list(_rows(path, task))
    if not rows:
        raise UserError(f"{path}: holds no example")
    refuse_header(path, rows[0], task, LabelReader(task.labels))
    for row in rows:
        row.values.pop(task.label, None)
    return [_example(path, row, task, None, False) for row in rows]


def refuse_header(
    path: str, row: TextRow, task: TaskDescription, labels: LabelReader
) -> None:
    """Refuses a first row of usual names of columns, where columns are numbers.

    A row with one of the labels, or with a number in regression, is no such row.
    """
    if row.line > 1 or type(task.label) is not int:
        return
    is_label = _is_number if task.kind == REGRESSION else labels.knows
    label = row.values.get(task.label, "")
    texts = [row.values.get(column, "") for column in task.texts]
    if is_header(label, task.kind) and not is_label(label):
        column = task.label
    elif are_headers(texts, task.kind) and not any(map(is_label, row.values.values())):
        column = task.texts[0]
    else:
        return
    advice = ", or list the labels in OwnTaskConfig.labels" if labels.collects else ""
    problem = f"{quoted(row.values[column])} looks like a header; remove the first line"
    raise cell_error(path, row.line, column, problem + advice)


def are_headers(texts: Sequence[str], kind: str) -> bool:
    """Whether all texts, or the word, of a row are usual names of their columns."""
    names = _WORD_HEADERS if kind == TAGGING else _TEXT_HEADERS
    return all(text.strip(BLANKS).lower() in names for text in texts)


def is_header(cell: str, kind: str) -> bool:
    """Whether a cell has a usual name of a column of labels, tags or numbers."""
    return cell.strip(BLANKS).lower() in _HEADERS | _HEADERS_OF.get(kind, set())


def line_ends_note(path: str, examples: list[LabelledTexts]) -> str:
    """A line if cells of a table have line ends, which nobody sees there; else ""."""
    count = sum(bool(files.LINE_END.search(t)) for e in examples for t in e.texts)
    if not count or not path.endswith(".tsv"):
        return ""
    return f"{path}: {count:,} cells in quotes have line ends in them"


def splits_of(path: str, task: TaskDescription) -> set[str]:
    """The names in `SPLITS` of the splits that a file with a split column contains."""
    names = {_cell_text(path, row, task.split_column) for row in _rows(path, task)}
    return {s for s, name in zip(SPLITS, task.splits, strict=True) if name in names}


def other_splits(path: str, task: TaskDescription) -> dict[str, int]:
    """Names in the split column that are of no split -> their rows.

    Raises:
      UserError: one differs from the name of a split by upper and lower case alone.
    """
    by_case = {name.casefold(): name for name in task.splits}
    counts = collections.Counter()
    for row in _rows(path, task):
        name = _cell_text(path, row, task.split_column)
        if name in task.splits:
            continue
        if (split_name := by_case.get(name.casefold())) is not None:
            problem = f"{quoted(name)} is not {split_name!r}; write it in the same way"
            raise cell_error(path, row.line, task.split_column, problem)
        counts[name] += 1
    return counts


def _rows(path, task, labels=None):
    if task.form == CORPUS:
        return _corpus_rows(path, task)
    _, ending = os.path.splitext(path)
    if ending == ".tsv":
        return _tsv_rows(path, task, labels)
    return {".jsonl": _json_rows, ".csv": _csv_rows}[ending](path, task)


def _rows_of_split(path, task, split, labels):
    name = task.splits[SPLITS.index(split)]
    for row in _rows(path, task, labels):
        if task.split_column is None:
            yield row
        elif _cell_text(path, row, task.split_column) == name:
            yield row


def _example(path, row, task, labels, has_labels):
    if task.form == COLUMNS:
        texts = tuple(text_in(path, row, column) for column in task.texts)
    else:
        texts = tuple(text for name, text in row.values.items() if name != task.label)
    if not has_labels:
        if task.label in row.values:
            raise cell_error(path, row.line, task.label, "is missing in other rows")
        return LabelledTexts(texts, None)
    if task.kind != REGRESSION:
        return LabelledTexts(texts, label_in(path, row, task, labels))
    number = _cell_text(path, row, task.label)
    if not _is_number(number):
        problem = f"{quoted(number)} is not a number of float32"
        raise cell_error(path, row.line, task.label, problem)
    return LabelledTexts(texts, number)


def label_in(
    path: str, row: TextRow, task: TaskDescription, labels: LabelReader
) -> str:
    """The label of a row, which must be one of the task's."""
    cell = text_in(path, row, task.label)
    cell = task.spellings.get(cell.strip(BLANKS), cell)
    label = labels.read(cell, f"{path}:{row.line}: column {task.label!r}")
    if label is None:
        names = [label[:_MOST_SHOWN] for label in labels.labels[:_MOST_SHOWN]]
        known_labels = ", ".join(names)[:_LIST_LENGTH]
        origin = "the task's labels" if task.labels else "those of the training files"
        problem = f"unknown label {quoted(cell)}; {origin}: {known_labels}"
        raise cell_error(path, row.line, task.label, problem)
    return label


def _is_number(cell):
    number = cell.strip(BLANKS)
    return bool(_NUMBER.fullmatch(number)) and abs(float(number)) <= _LARGEST_NUMBER


def _cell_text(path, row, column):
    return text_in(path, row, column).strip(BLANKS)


def text_in(path: str, row: TextRow, column: Column, white: str | None = None) -> str:
    """A cell, which must not be empty. Numbers and truth values become JSON's text.

    NaN, which Python writes for a missing value, is refused. `white` are the characters
    that make no text; None for all white space.
    """
    if column not in row.values:
        raise cell_error(path, row.line, column, "is missing")
    value = row.values[column]
    if type(value) is float and not math.isfinite(value):
        raise cell_error(path, row.line, column, f"{value} is no text and no number")
    if type(value) in (int, bool, float):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise cell_error(path, row.line, column, f"{type(value).__name__}, not a text")
    if not value.strip(white):
        raise cell_error(path, row.line, column, "is empty")
    return value


def cell_error(path: str, line: int, column: Column, problem: str) -> UserError:
    """The error about a cell."""
    return UserError(f"{path}:{line}: column {column!r}: {problem}")


def lines_of(path: str) -> Iterator[tuple[int, str]]:
    """Lines and their numbers, from 1."""
    return enumerate(files.split_lines(_text_of(path)), start=1)


def _text_of(path):
    return _MARK.sub("", files.read_text(path))


def _json_rows(path, task):
    for number, line in lines_of(path):
        if not line.strip(BLANKS):
            continue
        value = files.parse_json_line(line, f"{path}:{number}")
        if not isinstance(value, dict):
            raise UserError(f"{path}:{number}: not a JSON object")
        # Many files mark a test row without a label by a label of null.
        row = TextRow(number, {k: v for k, v in value.items() if v is not None})
        yield _without_empty_label(row, task)


def _corpus_rows(path, task):
    for number, line in lines_of(path):
        *texts, label = line.split("\t")
        if line and len(texts) not in (1, 2):
            raise UserError(
                f"{path}:{number}: {len(texts) + 1} columns, not 2 or 3 "
                "(text, optional second text, label)"
            )
        if line:
            yield TextRow(number, {**dict(enumerate(texts, 1)), task.label: label})


def _tsv_rows(path, task, labels):
    label, is_label = task.label, None
    if type(label) is int:
        label -= 1
    if labels is None or labels.collects:
        labels = LabelReader(task.labels) if task.labels else None
    if task.kind == REGRESSION:
        is_label = _is_number
    elif labels:
        is_label = lambda cell: labels.knows(  # noqa: E731
            task.spellings.get(cell.strip(BLANKS), cell)
        )
    rows = read_rows(_text_of(path), label, is_label)
    if task.form == XTREME:
        yield from _pairs_and_labels(path, task, rows)
    else:
        yield from _table(path, task, iter(rows))


def _pairs_and_labels(path, task, rows):
    while rows and rows[-1].cells == [""]:
        rows.pop()
    width = len(rows[0].cells) if rows else 0
    if width != len(task.texts):
        width = len(task.texts) + 1
    for number, cells in rows:
        if len(cells) != width:
            names = "sentence, sentence" + ", label" * (width > len(task.texts))
            raise UserError(
                f"{path}:{number}: {len(cells)} columns, not {width} ({names}, with "
                "tabs between)"
            )
        yield _without_empty_label(TextRow(number, dict(enumerate(cells, 1))), task)


def _csv_rows(path, task):
    """Rows of Python's csv module: quoted cells may hold commas and line ends."""
    text = _text_of(path)
    # By default, Python's module refuses cells of more than 131,072 characters.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    # An unmatched quote is an error.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)

    def numbered_rows():
        last_line = 0
        for cells in reader:
            yield last_line + 1, cells
            last_line = reader.line_num

    try:
        yield from _table(path, task, numbered_rows())
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from error


def _table(path, task, rows):
    """Rows whose keys are the names of a header, or numbers if columns are numbers.

    An empty cell is no label: many test files have a column for labels that they lack.
    """
    rows = _to_the_last_text(rows)
    columns = [*task.texts, task.label, task.split_column]
    if any(type(column) is int for column in columns):
        first_widths = None
        for number, cells in rows:
            # Empty cells at the end may be left out.
            widths = len(cells), _filled_width(cells)
            first_widths = first_widths or widths
            if widths[0] != first_widths[0] and widths[1] != first_widths[1]:
                raise UserError(
                    f"{path}:{number}: {len(cells)} columns; the first row has "
                    f"{first_widths[0]}"
                )
            yield _without_empty_label(TextRow(number, dict(enumerate(cells, 1))), task)
        return
    number, header_cells = next(rows, (1, []))
    names = {look(column): column for column in columns if column is not None}
    header = [name.strip(BLANKS) for name in header_cells]
    header = [names.get(look(name), name) for name in header]
    needed_columns = [c for c in (*task.texts, task.split_column) if c is not None]
    for column in [*needed_columns, task.label]:
        count = header.count(column)
        if count > 1 or column in needed_columns and not count:
            problem = (
                f"{count} columns {column!r}, not one"
                if count
                else f"no column {column!r}"
            )
            raise UserError(
                f"{path}:{number}: the header has {problem}; it is "
                f"{quoted(', '.join(header))}"
            )
    for number, cells in rows:
        if len(cells) != len(header):
            raise UserError(
                f"{path}:{number}: {len(cells)} columns; the header has {len(header)}"
            )
        # As in files that were joined.
        if cells == header_cells and len(cells) > 1:
            raise UserError(f"{path}:{number}: repeats the header; remove this line")
        row = TextRow(number, dict(zip(header, cells, strict=True)))
        yield _without_empty_label(row, task)


def _to_the_last_text(rows):
    """Rows without the blank ones at the end; other blank rows are mistakes."""
    buffer = []
    for row in rows:
        buffer.append(row)
        if _filled_width(row[1]):
            yield from buffer
            buffer = []


def _filled_width(cells):
    """The number of columns up to the last with a text."""
    return max((n for n, cell in enumerate(cells, 1) if cell.strip(BLANKS)), default=0)


def _without_empty_label(row, task):
    label = row.values.get(task.label)
    if isinstance(label, str) and not label.strip(BLANKS):
        row.values.pop(task.label, None)
    return row


def read_corpus_labels(folder: str) -> list[str]:
    """The labels in labels.txt, which `build_corpus` writes."""
    path = os.path.join(folder, "labels.txt")
    lines = files.split_lines(files.read_text(path))
    labels = check_labels([line for line in lines if line.strip(BLANKS)], path)
    if len(labels) < 2:
        raise UserError(f"{path}: needs two or more labels, one a line")
    return labels
