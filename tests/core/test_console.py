"""Lines, tables and progress, on a terminal and off one."""

import io
import sys

import pytest

from decoupled.core import console


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so: `clock[0] += 1`."""
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_names_cannot_act_on_the_terminal(capsys):
    console.say("read \x1b[2Ja.txt")
    console.table("t\x1b[1m", ["\u202ea"], [["b\x9b1m\nc"]])
    list(console.track([1], "a\x1b[1m"))
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\x9b", "\u202e"}
    assert "read \\x1b[2Ja.txt\n" in shown and "t\\x1b[1m" in shown
    assert "\\u202ea" in shown and "b\\x9b1m\\nc" in shown


def lines_of(capsys):
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_table_puts_names_left_and_numbers_right(capsys):
    console.table(
        "Models [tiny]",
        ["model", "parameters", "accuracy", "note"],
        [["coupled", 1234567, 0.81234, "a"], ["decoupled", 5, None, "bcd"]],
    )
    assert lines_of(capsys) == [
        "Models [tiny]",
        "",
        "  model       parameters   accuracy   note",
        " ------------------------------------------".replace("-", "─"),
        "  coupled      1,234,567     0.8123   a",
        "  decoupled            5          -   bcd",
        "",
    ]


def test_a_title_is_one_line_however_narrow_the_table(capsys):
    title = "The largest weights, and a core's slice, on data:8 with batch:data"
    console.table(title, ["a", "b"], [["x", 1]])
    assert lines_of(capsys)[0] == title


def test_table_off_a_terminal_does_not_cut_long_rows(capsys):
    console.table("", ["name", "text"], [["x" * 120, "y" * 120]])
    assert any("x" * 120 in line and "y" * 120 in line for line in lines_of(capsys))


@pytest.mark.parametrize(
    "cells,numbers",
    [
        (["1", "2,000", "-3.5e-05", "84.2%", "1.5 M", "-"], True),
        (["0 bytes", "3.50 MiB"], True),
        (["1", "two"], False),
        (["-", ""], False),
        (["3 of 4"], False),
    ],
)
def test_columns_of_numbers_are_recognised(cells, numbers):
    assert console._are_numbers(cells) is numbers


def test_track_yields_the_items_and_says_nothing_about_a_short_loop(capsys, clock):
    assert list(console.track(range(3), "counting")) == [0, 1, 2]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "items, seconds, lines",
    [
        (
            range(10),
            4.0,
            [
                "counting: 3 of 10 (30%), 0.2/s, 28 s left",
                "counting: 6 of 10 (60%), 0.2/s, 16 s left",
                "counting: 9 of 10 (90%), 0.2/s, 4 s left",
            ],
        ),
        # Without a length, and of few items, which take long.
        (iter("ab"), 10.0, ["counting: 1, 0.1/s", "counting: 2, 0.1/s"]),
        (range(2), 30.0, ["counting: 1 of 2 (50%), 30 s each, 30 s left"]),
    ],
)
def test_track_prints_a_line_every_ten_seconds(capsys, clock, items, seconds, lines):
    for _ in console.track(items, "counting"):
        clock[0] += seconds
    assert lines_of(capsys)[: len(lines)] == lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_track_on_a_terminal_shows_a_bar_with_the_count(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert list(console.track(range(3), "counting [x]")) == [0, 1, 2]
    assert "counting [x]" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.4, "0 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (90061, "25 h 01 min"),
    ],
)
def test_durations(seconds, text):
    assert console.duration(seconds) == text
