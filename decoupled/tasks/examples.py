"""Labelled texts of a classification task, read from the files of its folder.

A task's folder holds `train-en.tsv`, `dev-L.tsv` and `test-L.tsv` for every language L
(XTREME's layout): one example a line, one or two texts and the label, separated by
tabs, without quoting. `labels.txt` names the labels, one a line, in the order of their
ids.
"""

import os
import re
from typing import NamedTuple

from decoupled import files
from decoupled.compat import tf
from decoupled.errors import UserError


class Examples(NamedTuple):
    """Texts (one or two each) and label ids of one file."""

    texts: list[tuple[str, ...]]
    label_ids: list[int]


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
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    pattern = re.compile(rf"{split}-(.+)\.tsv$")
    found = sorted(m[1] for m in map(pattern.match, names) if m)
    return sorted(found, key=lambda language: language != "en")


def read_examples(
    folder: str, split: str, language: str, labels: list[str]
) -> Examples:
    """The examples in `folder/SPLIT-LANGUAGE.tsv`.

    Raises:
      UserError: the file is missing or empty, a line has not two or three columns, or
        its label is unknown; the line is named.
    """
    path = os.path.join(folder, f"{split}-{language}.tsv")
    if not files.exists(path):
        raise UserError(
            f"{path}: missing; the task needs the {split} file of language {language!r}"
        )
    ids = {label: index for index, label in enumerate(labels)}
    texts, label_ids = [], []
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
        if label not in ids:
            raise UserError(
                f"{path}:{number}: unknown label {label!r}; one of {', '.join(labels)}"
            )
        texts.append(tuple(columns))
        label_ids.append(ids[label])
    if not texts:
        raise UserError(f"{path}: holds no example")
    return Examples(texts, label_ids)
