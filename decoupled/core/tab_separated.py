"""Tables with tabs between cells, as users' files have them: when quotes are text.

Many such files are lines that are cut at tabs, and their quotes are text. Others were
written by Python's csv.writer or by pandas: a cell with a quote, a tab or a line end is
in quotes, and a quote inside is doubled. A file does not say which it is. `read_rows`
undoes what csv.writer has written, and keeps every other quote:

* `"He said ""yes""."` is `He said "yes".`; `"Yes"`, which csv.writer does not write, is
  text, unless the whole file has every text in quotes (QUOTE_ALL, QUOTE_NONNUMERIC).
* A cell goes on after a line end or a tab only if csv.writer has written the whole
  file, and no line inside the cell is a row by itself. So a quote without its partner
  takes no lines with it.

The text is read at most twice.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from decoupled.core.files import LINE_END, split_lines
from decoupled.core.labels import BLANKS, look

_NEEDS_QUOTES = frozenset('"\t\r\n')
_SEPARATOR = re.compile(r"\t|\r\n|\r|\n|\Z")


class TableRow(NamedTuple):
    """Cells, and the line where they begin, from 1."""

    line: int
    cells: list[str]


def read_rows(
    text: str,
    label: int | str | None = None,
    is_label: Callable[[str], bool] | None = None,
) -> list[TableRow]:
    """The rows of a table. An empty line is a row with an empty cell.

    Args:
      label: the column of the labels or numbers: from 0, or its name in the first row.
        With it, a line inside a quoted cell is a row only if it has a label there,
        unless no line of the text has one.
      is_label: whether a cell is a label; None takes those of the rows with quotes
        undone.
    """
    line_rows = [
        TableRow(n, line.split("\t")) for n, line in enumerate(split_lines(text), 1)
    ]
    if '"' not in text:
        return line_rows
    has_open_cell = any(_is_open(cell) for row in line_rows for cell in row.cells)
    cells = line_rows[0].cells
    all_quoted = all(is_quoted(cell) or (cell and _is_number(cell)) for cell in cells)
    if has_open_cell or (len(cells) > 1 and all_quoted):
        rows = _written_rows(text)
        if rows and not _lines_are_rows(line_rows, rows, label, is_label):
            return rows
    return [TableRow(row.line, _cells_of_line(row.cells)) for row in line_rows]


def unquoted(cell: str, everywhere: bool = False) -> str:
    """A cell that was cut from a line, without the quotes of csv.writer.

    `everywhere`: csv.writer has quoted every cell, also those without need.
    """
    if not is_quoted(cell):
        return cell
    inside = cell[1:-1].replace('""', '"')
    return cell if not everywhere and _NEEDS_QUOTES.isdisjoint(inside) else inside


def row_text(cells: Iterable[str]) -> str:
    """The line that `read_rows` reads as these cells; csv.writer writes the same."""
    return "\t".join(map(_quoted, cells)) + "\n"


def _quoted(cell):
    if _NEEDS_QUOTES.isdisjoint(cell):
        return cell
    return '"' + cell.replace('"', '""') + '"'


def is_quoted(cell: str) -> bool:
    """Whether a cell is in quotes, and all quotes inside are doubled."""
    return (
        len(cell) > 1
        and cell[0] == cell[-1] == '"'
        and '"' not in cell[1:-1].replace('""', "")
    )


def _is_open(cell):
    return cell.startswith('"') and not is_quoted(cell)


def _cells_of_line(cells):
    # csv.writer writes a row with one empty cell so.
    return [""] if cells == ['""'] else [*map(unquoted, cells)]


def _written_rows(text) -> list[TableRow] | None:
    """The rows of a text that csv.writer has written; None for any other text."""
    rows, cells, line, position, end = [], [], 1, 0, ""
    has_needless_quotes = has_bare_text = False
    while position < len(text) or end == "\t":
        start, in_quotes = position, text.startswith('"', position)
        if in_quotes:
            position = _after_quotes(text, position)
            separator = position and _SEPARATOR.match(text, position)
        else:
            separator = _SEPARATOR.search(text, position)
        if not separator:
            return None
        cell, end = text[start : separator.start()], separator[0]
        position = separator.end()
        if in_quotes:
            cell = cell[1:-1].replace('""', '"')
            is_single_cell = not (cell or cells) and end != "\t"
            has_needless_quotes |= _NEEDS_QUOTES.isdisjoint(cell) and not is_single_cell
        elif '"' in cell:
            return None
        else:
            has_bare_text |= not _is_number(cell)
        cells.append(cell)
        if end != "\t":
            rows.append(TableRow(line, cells))
            line += 1 + sum(len(LINE_END.findall(cell)) for cell in cells)
            cells = []
    # Quotes that csv.writer needs not are around every text of a file, or around none.
    return None if has_needless_quotes and has_bare_text else rows


def _after_quotes(text, position):
    """The position after a quoted cell that begins at `position`, or None."""
    end = text.find('"', position + 1)
    while text.startswith('"', end + 1) and end >= 0:
        end = text.find('"', end + 2)
    return None if end < 0 else end + 1


def _is_number(cell):
    try:
        float(cell or 0)
    except ValueError:
        return False
    return True


def _lines_are_rows(line_rows, rows, label, is_label):
    """Whether lines inside the quotes of a cell are rows, so that quotes are text."""
    width, start = len(rows[0].cells), 0
    if any(len(row.cells) != width for row in rows if row.cells != [""]):
        return True
    if isinstance(label, str):
        names, start = [look(name.strip(BLANKS)) for name in rows[0].cells], 1
        label = names.index(look(label)) if look(label) in names else None
    if is_label and label is not None:
        all_rows = (*rows[start:], *line_rows[start:])
        if not any(is_label(row.cells[label]) for row in all_rows if row.cells[label:]):
            label = is_label = None
    # Quotes around a tab are in one line. They are text if every line ends in a label.
    if is_label and label is not None:
        lines = [line.cells for line in line_rows if line.cells != [""]]
        same_width = all(len(cells) == label + 1 for cells in lines)
        if same_width and all(is_label(cells[label]) for cells in lines[start:]):
            return True
    if label is not None and label >= width:
        label = None
    if label is not None and is_label is None:
        known_labels = {row.cells[label] for row in rows if len(row.cells) == width}
        is_label = known_labels.__contains__

    def is_row(line):
        is_whole = len(line.cells) == width
        return is_whole and (label is None or is_label(line.cells[label]))

    ends = [row.line for row in rows[1:]] + [len(line_rows) + 1]
    for row, end in zip(rows, ends, strict=True):
        lines = line_rows[row.line - 1 : end - 1]
        if len(lines) == 1 or width == 1:
            continue
        # The first or the last line alone has the label in any case.
        filled_lines = [line for line in lines if line.cells != [""]]
        if all(map(is_row, filled_lines)) or any(map(is_row, lines[1:-1])):
            return True
    return False
