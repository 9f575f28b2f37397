"""What commands print: lines, tables and progress, on a terminal and in a log file.

Control characters of names and texts are shown as in "\\x1b" (`errors.printable`), and
line ends as "\\n".
"""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich import box, progress
from rich.console import Console
from rich.table import Table

from decoupled.core import hosts
from decoupled.core.errors import printable
from decoupled.core.tables import GAP, cell_text

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 10.0
# Numbers, perhaps with a unit or a sign: 12, -3.4, 84.2%, 1.5M, +0.3, 20 bytes.
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?\s?([%a-zA-Z]{0,3}|bytes)")


def say(message: str) -> None:
    """Prints one line on stdout, at once; of several processes, the first does."""
    if hosts.is_first():
        print(_line(message), flush=True)


def table(title: str, columns: list[str], rows: list[list[object]]) -> None:
    """Prints a table; the first column is left-aligned, number columns right-aligned.

    Cells appear as `decoupled.core.tables.cell_text` writes them.
    """
    if not hosts.is_first():
        return
    grid = Table(box=box.SIMPLE_HEAD)
    cells = [[_line(cell_text(value)) for value in row] for row in rows]
    for index, name in enumerate(map(_line, columns)):
        is_numeric = index > 0 and _are_numbers(row[index] for row in cells)
        justify = "right" if is_numeric else "left"
        grid.add_column(name, justify=justify, overflow="fold")
    for row in cells:
        grid.add_row(*row)
    # A file has no width, so a row is one line, however long.
    width = None if sys.stdout.isatty() else 1000
    output = _Console(width=width, markup=False, highlight=False)
    # Printed separately: a title within the table would be wrapped at its width.
    if title:
        output.print(_line(title), style="table.title", soft_wrap=True)
    output.print(grid)
    sys.stdout.flush()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError again; rich itself would exit with code 1."""
        raise


def duration(seconds: float) -> str:
    """Seconds in readable form: "42 s", "3 min 05 s", "2 h 07 min"."""
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def track(
    items: Iterable[T], description: str, total: int | None = None
) -> Iterator[T]:
    """Yields `items` and shows the progress of the loop and the time left.

    On a terminal this is one line that is updated. Elsewhere a line is printed every 10
    seconds, and no line for a shorter loop. `total` is for items without a length.
    """
    if total is None and hasattr(items, "__len__"):
        total = len(items)
    description = _line(description)
    if sys.stdout.isatty() and hosts.is_first():
        yield from _track_on_terminal(items, description, total)
    else:
        yield from _track_in_lines(items, description, total)


def _line(text: str) -> str:
    # A name with a line end could look like a line of ours.
    return printable(text).replace("\n", r"\n")


def _are_numbers(cells: Iterable[str]) -> bool:
    filled_cells = [cell for cell in cells if cell not in ("", GAP)]
    return bool(filled_cells) and all(_NUMBER.fullmatch(cell) for cell in filled_cells)


def _track_on_terminal(items, description, total):
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with progress.Progress(*columns) as bar:
        yield from bar.track(items, total=total, description=description)


def _track_in_lines(items, description, total):
    start = last_print = time.monotonic()
    for count, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last_print < SECONDS_BETWEEN_LINES:
            continue
        last_print = now
        say(f"{description}: {_state_of_loop(count, total, now - start)}")


def _state_of_loop(count: int, total: int | None, seconds: float) -> str:
    period = seconds / count
    pace = f"{duration(period)} each" if period > 10 else f"{1 / period:,.1f}/s"
    if not total:
        return f"{count:,}, {pace}"
    time_left = duration(max(total - count, 0) * period)
    return f"{count:,} of {total:,} ({count / total:.0%}), {pace}, {time_left} left"
