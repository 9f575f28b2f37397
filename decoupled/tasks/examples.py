"""Labelled texts of the `catalogs` task, read from the files of its folder.

The folder holds `train-en.tsv`, `dev-L.tsv` and `test-L.tsv` for every language L: one
example a line, one or two texts and the label, separated by tabs, without quoting.
`labels.txt` names the labels, one a line, in the order of their ids.
"""

import os
import re
from typing import NamedTuple

from decoupled.core import files, gfile
from decoupled.core.errors import UserError


class LabelledTexts(NamedTuple):
    """One or two texts and their label, None where a file tells none."""

    texts: tuple[str, ...]
    label: str | None


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
    """The examples of a file.

    Raises:
      UserError: the file is missing or empty, a line has not two or three columns, or
        its label is unknown; the line is named.
    """
    examples = []
    # Not splitlines(), which also cuts at characters that text may contain.
    for number, line in enumerate(files.read_text(path).split("\n"), start=1):
        line = line.rstrip("\r")
        if not line:
            continue
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
