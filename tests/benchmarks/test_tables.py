"""Cells, and the same table on the terminal and as Markdown."""

import pytest

from benchmarks import tables
from benchmarks.interleave import Spread
from benchmarks.tables import BenchmarkTable

TABLE = BenchmarkTable("toys", "Toys", ["name", "step"], [["a", "1.50 s"], ["b", ""]])


def test_markdown():
    assert tables.markdown(TABLE).splitlines() == [
        "| name | step |",
        "| --- | ---: |",
        "| a | 1.50 s |",
        "| b |  |",
    ]


def test_terminal(capsys):
    tables.show(TABLE)
    printed = capsys.readouterr().out
    assert "Toys" in printed
    assert "a      1.50 s" in printed


@pytest.mark.parametrize(
    "spread,text",
    [
        (Spread(2.514, 2.4, 12.26), "2.51 s (2.40-12.3)"),
        (Spread(0.0123, 0.012, 0.0988), "12.3 ms (12.0-98.8)"),
        (Spread(0.5, 0.4, 1.25), "500 ms (400-1,250)"),
    ],
)
def test_durations(spread, text):
    assert tables.milliseconds_or_seconds(spread) == text


def test_ratios_shares_and_rates():
    assert tables.times(Spread(1.234, 1.2, 2.0)) == "1.23x (1.20-2.00)"
    assert tables.percent(Spread(0.756, 0.7, 1.0)) == "76% (70-100)"
    rate = Spread(299.4, 98.76, 1234.5)
    assert tables.with_range(rate, "GFLOP/s") == "299 GFLOP/s (98.8-1,234)"


def test_bytes():
    assert tables.gigabytes(7_449_000_000) == "7.45 GB"
