"""Tables as text: one set of columns and rows in Markdown or as CSV.

`console.table` prints the same rows.
"""

import csv
import io
import numbers
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

# The text of a cell without a number.
GAP = "-"


class Cell(NamedTuple):
    """A number of our runs as it is shown, with the paper's number.

    text: the number. bold: whether it is the best of its column. paper: the published
    number.
    """

    text: str
    bold: bool = False
    paper: str = ""

    def __str__(self) -> str:
        return self.text


def cell_text(value: Any, gap: str = GAP) -> str:
    """A value as a cell: an int with thousands separators, a float with 4 digits.

    A bool becomes yes or no, and None the gap.
    """
    if value is None:
        return gap
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):
        return f"{value:,}"
    if isinstance(value, numbers.Real):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def to_markdown(
    columns: Sequence[str] | str,
    rows: Iterable[Iterable[Any]],
    words: int = 1,
    gap: str = GAP,
) -> str:
    """The table in Markdown, without a final line end.

    `columns` are their heads, or the first two lines of the table in Markdown. The
    first `words` of them are left-aligned, the others right-aligned.
    """
    if isinstance(columns, str):
        lines = [columns]
    else:
        alignments = ["---"] * words + ["---:"] * (len(columns) - words)
        lines = [_line(columns), _line(alignments)]
    lines += [_line(_in_markdown(cell, gap) for cell in row) for row in rows]
    return "\n".join(lines)


def _line(cells):
    return f"| {' | '.join(cells)} |"


def _in_markdown(cell, gap):
    if not isinstance(cell, Cell):
        return cell_text(cell, gap)
    text = f"**{cell.text}**" if cell.bold else cell.text
    return f"{text}<br>paper {cell.paper}" if cell.paper else text


def to_csv(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """The table as comma-separated values, one row per line; values by `str`."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
