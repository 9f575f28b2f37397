"""Tables of results: on the terminal and as Markdown, with the same cells."""

import argparse
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from benchmarks.interleave import MeasuredWorker, Spread, ratio
from benchmarks.results import Comparison, Plan
from decoupled.core import console

# The worker of this project.
OURS = "decoupled"


class BenchmarkTable(NamedTuple):
    """A table whose cells are texts; see the functions below.

    name: of the place in docs/performance.md, between `<!-- table:NAME -->` and
    `<!-- end -->`.
    """

    name: str
    title: str
    columns: list[str]
    rows: list[list[str]]


class Suite(NamedTuple):
    """What `python -m benchmarks` measures together.

    comparisons: function of the command line and a folder for temporary files.
    tables: makes the tables of results. rounds, steps, dtypes: where the command line
    gives none.
    """

    comparisons: Callable[[argparse.Namespace, pathlib.Path], Iterable[Plan]]
    tables: Callable[[list[Comparison]], list[BenchmarkTable]]
    rounds: int
    steps: int
    dtypes: Sequence[str] = ("float32",)


def show(table: BenchmarkTable) -> None:
    """Prints a table."""
    console.table(table.title, table.columns, table.rows)


def worker_table(
    name: str,
    title: str,
    columns: list[str],
    comparisons: Sequence[Comparison],
    cells: Callable[[Comparison, MeasuredWorker, str], list[str]],
) -> BenchmarkTable:
    """A row for each worker of each comparison, or one that says why it was skipped.

    `cells` makes a row of comparison, worker, and time against ours ("" for ours).
    """
    rows = []
    for comparison in comparisons:
        if comparison.skipped:
            blanks = [""] * (len(columns) - 2)
            rows.append([comparison.title, comparison.skipped, *blanks])
            continue
        reference = comparison.worker(OURS)
        for worker in comparison.workers:
            # The machine's own rate has no row.
            if worker.name.startswith("matmul "):
                continue
            slowdown = "" if worker is reference else times(ratio(worker, reference))
            rows.append(cells(comparison, worker, slowdown))
    return BenchmarkTable(name, title, columns, rows)


def milliseconds_or_seconds(spread: Spread) -> str:
    """Median (smallest-largest) of durations: "2.51 s (2.48-2.60)", "12.3 ms (...)"."""
    unit, factor = ("s", 1) if spread.median >= 1 else ("ms", 1000)
    return with_range(Spread(*(value * factor for value in spread)), unit)


def times(spread: Spread) -> str:
    """Median (smallest-largest) of ratios: "1.24x (1.21-1.28)"."""
    median, low, high = (f"{value:.2f}" for value in spread)
    return f"{median}x ({low}-{high})"


def percent(spread: Spread) -> str:
    """Median (smallest-largest) of shares: "76% (74-77)"."""
    median, low, high = (f"{value * 100:.0f}" for value in spread)
    return f"{median}% ({low}-{high})"


def with_range(spread: Spread, unit: str) -> str:
    """Median, unit, (smallest-largest), each with three digits or more."""
    median, low, high = (_three_digits(value) for value in spread)
    return f"{median} {unit} ({low}-{high})"


def gigabytes(size: float) -> str:
    """Bytes in units of 10^9 bytes: "7.45 GB"."""
    return f"{size / 1e9:.2f} GB"


def _three_digits(value):
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"
