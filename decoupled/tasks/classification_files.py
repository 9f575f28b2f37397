"""Files of the classification tasks: labelled texts and pairs of texts.

xnli and pawsx, as XTREME's preprocessing writes them: a line is sentence, TAB,
sentence, TAB, label; XTREME's test files lack the label. XTREME writes these files with
Python's csv.writer, which encloses a sentence with quotes in quotes and doubles those
inside. XTREME reads the files without undoing this, so that its baselines see
`"He said ""yes""."` for `He said "yes".`. Here the quoting is undone, because the text
of pre-training has none (`core.tab_separated`).

catalogs, books: the folder holds `train-en.tsv`, `dev-L.tsv` and `test-L.tsv` for every
language L. Each line is an example: one or two texts and the label, separated by tabs,
without quoting. `labels.txt` names the labels, one a line, in the order of their ids.
"""

import os
import re
from typing import NamedTuple

from decoupled.core import files, gfile
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS, LabelReader, check_labels
from decoupled.core.tab_separated import read_rows
from decoupled.xtreme.files import LanguageFile

_UNLABELLED, _LABELLED = 2, 3
_LISTED = 400
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
    text = file.text().rstrip("\r\n")
    if not text:
        raise file.error("holds no example")
    rows = read_rows(text, _UNLABELLED, lambda cell: _spelled(cell) in labels)
    width = len(rows[0].cells)
    if width not in (_UNLABELLED, _LABELLED):
        width = _LABELLED
    for row in rows:
        if len(row.cells) != width:
            names = "sentence, sentence" + (", label" if width == _LABELLED else "")
            raise file.error(
                f"{len(row.cells)} columns, not {width} ({names}, with tabs between)",
                row.line,
            )
    if width == _UNLABELLED and not may_lack_labels:
        raise file.error("no label after the sentences; only test files may lack it", 1)
    return [_example(file, row, labels) for row in rows]


def _spelled(cell):
    label = cell.strip(BLANKS)
    return _SPELLINGS.get(label, label)


def _example(file, row, labels):
    if len(row.cells) == _UNLABELLED:
        return LabelledTexts(tuple(row.cells), None)
    *texts, cell = row.cells
    label = _spelled(cell)
    if label not in labels:
        known = ", ".join(labels)
        raise file.error(f"unknown label {quoted(label)}; one of {known}", row.line)
    return LabelledTexts(tuple(texts), label)


def read_labels(folder: str) -> list[str]:
    """The labels in `folder/labels.txt`.

    Raises:
      UserError: the file is missing, or names fewer than two labels or one twice.
    """
    path = os.path.join(folder, "labels.txt")
    lines = files.split_lines(files.read_text(path))
    labels = check_labels([line for line in lines if line.strip(BLANKS)], path)
    if len(labels) < 2:
        raise UserError(f"{path}: needs two or more labels, one a line")
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
    examples, known = [], LabelReader(labels, "labels.txt")
    for number, line in enumerate(files.split_lines(files.read_text(path)), start=1):
        if not line:
            continue
        *columns, cell = line.split("\t")
        if len(columns) not in (1, 2):
            raise UserError(
                f"{path}:{number}: {len(columns) + 1} columns, not 2 or 3 "
                "(text, optional second text, label)"
            )
        if (label := known.read(cell, f"{path}:{number}")) is None:
            raise UserError(
                f"{path}:{number}: unknown label {quoted(cell)}; one of "
                f"{', '.join(labels)[:_LISTED]}"
            )
        examples.append(LabelledTexts(tuple(columns), label))
    if not examples:
        raise UserError(f"{path}: holds no example")
    return examples
