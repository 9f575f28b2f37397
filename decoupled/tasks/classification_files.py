"""Files of the classification tasks: labelled texts and pairs of texts.

xnli and pawsx, as XTREME's preprocessing writes them: a line is sentence, TAB,
sentence, TAB, label; XTREME's test files lack the label. XTREME writes these files with
Python's csv.writer, which encloses a sentence with quotes in quotes and doubles those
inside. XTREME reads the files without undoing this, so that its baselines see
`"He said ""yes""."` for `He said "yes".`. Here the quoting is undone, because the text
of pre-training has none. Only quoting that csv.writer would have written is undone. All
other quotes are text, so that files without quoting keep all of theirs.

catalogs, books: the folder holds `train-en.tsv`, `dev-L.tsv` and `test-L.tsv` for every
language L. Each line is an example: one or two texts and the label, separated by tabs,
without quoting. `labels.txt` names the labels, one a line, in the order of their ids.
"""

import csv
import io
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.xtreme.files import LanguageFile

_UNLABELLED, _LABELLED = 2, 3
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_OPEN = re.compile(r'"(?!(?:[^"]|"")*"$)')
# csv.writer quotes columns that contain one of these.
_NEEDS_QUOTES = re.compile('["\t\r\n]')
# XNLI's machine-translated training files spell one label differently.
_SPELLINGS = {"contradictory": "contradiction"}


class LabelledTexts(NamedTuple):
    """One or two texts and their label, None where the file has none."""

    texts: tuple[str, ...]
    label: str | None


def read_pairs(
    file: LanguageFile, labels: list[str], may_lack_labels: bool
) -> list[LabelledTexts]:
    """The examples of a file of xnli or pawsx, in its order.

    Args:
      file: of one of these tasks.
      labels: those that the task knows.
      may_lack_labels: whether no line needs a label, as in test files.

    Raises:
      UserError: the file is missing, empty or malformed; the line is named.
    """
    lines = file.lines()
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise file.error("holds no example")
    rows = _rows(lines, file.text().rstrip("\r\n"), labels)
    if rows is None:
        raise _misfit(file, lines)
    if len(rows[0].columns) == _UNLABELLED and not may_lack_labels:
        raise file.error("no label after the sentences; only test files may lack it", 1)
    return [_example(file, row, labels) for row in rows]


class _Row(NamedTuple):
    line: int
    columns: list[str]


def _rows(lines, text, labels):
    """The rows of a file, or None if they do not all have two or all three columns."""
    by_line = [_Row(n, line.split("\t")) for n, line in enumerate(lines, start=1)]
    regular = _is_regular(by_line)
    quoted = any(_OPEN.match(c) for row in by_line for c in row.columns)
    if regular and (not quoted or _is_labelled(by_line, labels)):
        return [_Row(row.line, _unquoted(row.columns)) for row in by_line]
    # A quoted sentence may hold line ends and tabs; then it spans lines or columns.
    reader = files.csv_reader(text, "\t")
    try:
        rows = [_Row(reader.line_num, columns) for columns in reader]
    except csv.Error:
        rows = []
    if _is_regular(rows) and (not regular or _is_written_so(rows, text)):
        return rows
    return [_Row(r.line, _unquoted(r.columns)) for r in by_line] if regular else None


def _is_labelled(rows, labels):
    """Whether every row ends in a label. If so, no sentence spans several lines."""
    return all(
        len(row.columns) == _LABELLED
        and _SPELLINGS.get(row.columns[-1], row.columns[-1]) in labels
        for row in rows
    )


def _is_written_so(rows, text):
    """Whether csv.writer writes the rows as exactly this text."""
    columns = [row.columns for row in rows]
    # A carriage return alone is quoted only where lines end in one.
    return text in (_written(columns, ends) for ends in ("\r\n", "\n"))


def _written(rows, ends):
    written = io.StringIO(newline="")
    csv.writer(written, "excel-tab", lineterminator=ends).writerows(rows)
    return written.getvalue().rstrip("\r\n")


def _is_regular(rows):
    return {len(row.columns) for row in rows} in ({_UNLABELLED}, {_LABELLED})


def _unquoted(columns):
    # A label needs no quotes. If it has them, the writer quoted all columns.
    everywhere = len(columns) == _LABELLED and _QUOTED.fullmatch(columns[-1])
    return [_without_quotes(column, bool(everywhere)) for column in columns]


def _without_quotes(column, everywhere):
    if not _QUOTED.fullmatch(column):
        return column
    inside = column[1:-1].replace('""', '"')
    return inside if everywhere or _NEEDS_QUOTES.search(inside) else column


def _misfit(file, lines):
    counts = [line.count("\t") + 1 for line in lines]
    expected = counts[0] if counts[0] in (_UNLABELLED, _LABELLED) else _LABELLED
    line = next(n for n, count in enumerate(counts, start=1) if count != expected)
    names = "sentence, sentence" + (", label" if expected == _LABELLED else "")
    return file.error(
        f"{counts[line - 1]} columns, not {expected} ({names}, with tabs between)", line
    )


def _example(file, row, labels):
    if len(row.columns) == _UNLABELLED:
        return LabelledTexts(tuple(row.columns), None)
    *texts, label = row.columns
    label = _SPELLINGS.get(label, label)
    if label not in labels:
        known = ", ".join(labels)
        raise file.error(f"unknown label {label!r}; one of {known}", row.line)
    return LabelledTexts(tuple(texts), label)


def read_labels(folder: str) -> list[str]:
    """The labels in `folder/labels.txt`.

    Raises:
      UserError: the file is missing, or names fewer than two labels or one twice.
    """
    path = os.path.join(folder, "labels.txt")
    labels = [line for line in files.read_text(path).splitlines() if line]
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise UserError(f"{path}: needs two or more distinct labels, one a line")
    return labels


def languages(folder: str, split: str) -> list[str]:
    """The languages that have a file of this split, English first."""
    names = gfile.listdir(folder) if gfile.isdir(folder) else []
    pattern = re.compile(rf"{split}-(.+)\.tsv$")
    found = sorted(m[1] for m in map(pattern.match, names) if m)
    return sorted(found, key=lambda language: language != "en")


def read_examples(path: str, labels: list[str]) -> list[LabelledTexts]:
    """The examples of a file of catalogs or books.

    Raises:
      UserError: the file is missing or empty, or a line does not have two or three
        columns or has an unknown label; the line is named.
    """
    examples = []
    for number, line in _numbered_lines(path):
        *columns, label = line.split("\t")
        if len(columns) not in (1, 2):
            raise UserError(
                f"{path}:{number}: {len(columns) + 1} columns, not 2 or 3 "
                "(text, optional second text, label)"
            )
        if label not in labels:
            raise UserError(
                f"{path}:{number}: unknown label {label!r}; one of {', '.join(labels)}"
            )
        examples.append(LabelledTexts(tuple(columns), label))
    if not examples:
        raise UserError(f"{path}: holds no example")
    return examples


def _numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, and their numbers from 1."""
    # Not splitlines(), which also cuts at characters that text may contain.
    for number, line in enumerate(files.read_text(path).split("\n"), start=1):
        if line := line.rstrip("\r"):
            yield number, line
