"""What a label is: a line of text, without blanks around it, that looks like no other.

Blanks around a label are ignored. Control characters and line ends are refused: files
of predictions have a label a line, and a tab after it. Two labels of one task that look
the same are refused too: they differ in invisible characters or in their Unicode form,
as a composed and a decomposed accent, or are one number, as 1 and 1.0. They are not
made one, because predictions have the spelling of the file, and other programs compare
them with it byte by byte.
"""

import os
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from decoupled.core.errors import UserError, quoted

# What is ignored around labels, numbers and names of columns. Other white space, as a
# no-break space, is text.
BLANKS = " \t"
_LONGEST_LABEL, _CONTEXT = 1000, 30
# Characters that end lines or steer a terminal, and halves of surrogate pairs.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# Variation selectors, fillers and others that show nothing and are not of category Cf.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)

# The only difference between the flags of some regions.
_TAGS = range(0xE0020, 0xE0080)
# pandas writes 1.0 instead of 1 if another row of the column has no number.
_WHOLE_NUMBER = re.compile(r"(-?[0-9]+)\.0")


def label_in(cell: str, where: str) -> str:
    """The label in a cell, without the blanks around it."""
    label = cell.strip(BLANKS)
    if len(label) > _LONGEST_LABEL:
        raise UserError(
            f"{where}: label {quoted(label)} has {len(label):,} characters; at most "
            f"{_LONGEST_LABEL:,} are possible"
        )
    if label and label.isascii() and label.isprintable():
        return label
    if sign := _CONTROL.search(label):
        raise UserError(
            f"{where}: label {quoted(label)} has the control character "
            f"U+{ord(sign[0]):04X}; a label is one line of text"
        )
    if not look(label):
        raise UserError(f"{where}: label {quoted(label)} shows no character")
    return label


def check_labels(labels: Iterable[Any], where: str) -> list[str]:
    """The labels of a list, in its order, without the blanks around them."""
    labels_by_look: dict[str, str] = {}
    for cell in labels:
        if not isinstance(cell, str):
            raise UserError(f"{where}: label {quoted(cell)} is not a text")
        label = label_in(cell, where)
        if (other := labels_by_look.get(look(label))) is not None:
            raise UserError(f"{where}: {same_look(label, other)}")
        labels_by_look[look(label)] = label
    return list(labels_by_look.values())


def same_look(label: str, other: str) -> str:
    """The end of a message about two labels of one look."""
    if label == other:
        return f"label {quoted(label)} occurs twice"
    if _WHOLE_NUMBER.fullmatch(label) or _WHOLE_NUMBER.fullmatch(other):
        return f"labels {label} and {other} are one number; write both in the same way"
    # The characters around the first difference.
    start = max(0, len(os.path.commonprefix([label, other])) - _CONTEXT)
    first, second = (ascii(text[start:][: 2 * _CONTEXT]) for text in (label, other))
    return (
        f"labels {first} and {second} look the same (Unicode form or invisible "
        "characters); write both in the same way"
    )


def look(label: str) -> str:
    """The same text for all labels that look the same, or are one whole number."""
    if number := _WHOLE_NUMBER.fullmatch(label):
        return number[1]
    # Python sorts n accents of a letter in n * n steps.
    if label.isascii() or len(label) > _LONGEST_LABEL:
        return label
    visible_text = "".join(
        c for c in label if unicodedata.category(c) != "Cf" or ord(c) in _TAGS
    )
    visible_text = " ".join(_INVISIBLE.sub("", visible_text).split())
    return unicodedata.normalize("NFC", visible_text)


class LabelReader:
    """Reads the labels in cells of files; they are known, or it collects them.

    Args:
      labels: the known labels; None accepts every label and collects it.
      where: the file or setting that has the labels, for messages.
    """

    def __init__(self, labels: Iterable[str] | None = None, where: str = ""):
        self.collects = labels is None
        self._labels_by_look = {look(label): (label, where) for label in labels or ()}
        self._cells: dict[str, str] = {}

    @property
    def labels(self) -> list[str]:
        """The known or collected labels, sorted."""
        return sorted(label for label, _ in self._labels_by_look.values())

    def knows(self, cell: str) -> bool:
        """Whether the labels are known in advance, and the cell has one of them."""
        return not self.collects and look(cell.strip(BLANKS)) in self._labels_by_look

    def read(self, cell: str, where: str) -> str | None:
        """The label in a cell; None if it is unknown."""
        if cell in self._cells:
            return self._cells[cell]
        label = label_in(cell, where)
        if self.collects:
            self._labels_by_look.setdefault(look(label), (label, where))
        match, place = self._labels_by_look.get(look(label), (None, ""))
        if match not in (None, label):
            raise UserError(f"{where}: {same_look(label, match)}; the other: {place}")
        if match is not None:
            self._cells[cell] = label
        return match
