"""Tables with tabs: what csv.writer has written comes back, other quotes are text."""

import csv
import io
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decoupled.core.tab_separated import read_rows, row_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
QUOTED = st.text('"\t\n\rab', max_size=6)


def cells(text, *arguments):
    return [row.cells for row in read_rows(text, *arguments)]


def written(rows, ends="\n", quoting=csv.QUOTE_MINIMAL):
    text = io.StringIO(newline="")
    csv.writer(text, "excel-tab", lineterminator=ends, quoting=quoting).writerows(rows)
    return text.getvalue()


@settings(max_examples=200)
@given(
    st.lists(st.tuples(TEXT | QUOTED, st.sampled_from(["pos", "neg"])), min_size=1),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
@example([("a\tb\nc", "neg")], "\n", True)
def test_what_csv_writer_writes_comes_back(rows, ends, header):
    rows = [["text", "label"], *rows] if header else rows
    label = "label" if header else 1
    # Python before 3.13 quotes a carriage return only where lines end in one.
    if ends == "\n":
        rows = [[cell.replace("\r", "") for cell in row] for row in rows]
    known = {"pos", "neg"}.__contains__
    assert cells(written(rows, ends), label, known) == [list(row) for row in rows]


@given(st.lists(st.tuples(TEXT | QUOTED, TEXT, st.integers().map(str)), min_size=1))
@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_files_with_every_text_in_quotes(quoting, rows):
    rows = [("text", "other", "score"), *rows]
    text, is_number = written(rows, "\r\n", quoting), re.compile("-?[0-9]+").fullmatch
    assert cells(text, "score", is_number) == [list(row) for row in rows]


@given(st.lists(st.tuples(TEXT | QUOTED, TEXT | QUOTED), min_size=1, max_size=1))
def test_rows_that_are_written_come_back(rows):
    [row] = rows
    text = row_text(["x", *row])
    assert cells(text, 0, {"x"}.__contains__) == [["x", *row]]


def test_the_line_of_a_row_is_its_first():
    text = 'label\ttext\nx\t"one\ntwo\r\nthree"\ny\tfour\n'
    assert read_rows(text) == [
        (1, ["label", "text"]),
        (2, ["x", "one\ntwo\r\nthree"]),
        (5, ["y", "four"]),
    ]


@pytest.mark.parametrize(
    "quote", ['"', '""', '"""', '"a', '""a', '"""a', '"a" b', '""a""']
)
def test_a_quote_that_csv_writer_has_not_written_is_text(quote):
    text = f"text\tlabel\n{quote}\tpos\nplain\tneg\n{quote} end\tpos\n"
    assert cells(text, "label") == [
        ["text", "label"], [quote, "pos"], ["plain", "neg"], [f"{quote} end", "pos"],
    ]  # fmt: skip


@pytest.mark.parametrize("lines", [
    ['"I love\tpos', 'it"\tneg', "so\tpos"],
    ['"I love\tpos', "middle\tneg", 'it"\tneg', "so\tpos"],
    ['pos\t"I love', "neg\tmiddle", 'neg\tit"', "pos\tso"],
    ['"I love\tpos', "", 'it"\tneg', "so\tpos"],
])  # fmt: skip
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_two_lone_quotes_take_no_lines_with_them(lines, ends):
    label = 0 if lines[0].startswith("pos") else 1
    # The labels of other rows are known.
    lines = [*lines, "neg\tneg"]
    rows = [line.split("\t") for line in lines]
    assert cells(ends.join(lines), label) == rows
    assert cells(ends.join(lines)) == rows
    assert cells(ends.join(["a\tb", *lines]), "ab"[label]) == [["a", "b"], *rows]


@pytest.mark.parametrize("end", ["", "\n", "\n\n\n"])
def test_quotes_around_a_tab_are_text_if_every_line_ends_in_a_label(end):
    text = f'" قط\t"\tneutral\n{end}'
    first, *rest = read_rows(text, 2, lambda cell: cell == "neutral")
    assert first.cells == ['" قط', '"', "neutral"]
    assert all(row.cells == [""] for row in rest)


def test_a_line_with_too_many_cells_stays_a_line():
    """A quote on an earlier line and one on a later line do not join them."""
    text = 'text\tlabel\n"open\tpos\na\tb\tneg\nclose"\tpos\nrest "x"\tpos\n'
    assert len(read_rows(text, "label")) == 5


def test_a_column_without_any_label_says_nothing():
    text = '"b\tx\nc"\tx\n'
    assert cells(text, 1, lambda cell: cell == "y") == [['"b', "x"], ['c"', "x"]]
    assert cells(f"{text}d\ty\n", 1, lambda cell: cell == "y")[0] == ["b\tx\nc", "x"]


def test_the_name_of_the_labels_may_have_blanks_around_it():
    text = 'text\tlabel \n"x\ty\nz"\tpos\nv\tpos\n'
    assert cells(text, "label")[1:] == [["x\ty\nz", "pos"], ["v", "pos"]]


def test_files_with_every_text_in_quotes_need_no_header():
    """Numbers have no quotes: QUOTE_NONNUMERIC."""
    assert cells('"good"\t0\n"say ""x"""\t1\n') == [["good", "0"], ['say "x"', "1"]]
    for label in ("bad", ""):
        assert cells(f'"good"\t{label}\n') == [['"good"', label]]


def test_one_column():
    assert cells('text\n"one\ntwo"\nthree\n') == [["text"], ["one\ntwo"], ["three"]]
    assert cells('text\n"one\ntwo\nsay "x"\n') == [
        ["text"], ['"one'], ["two"], ['say "x"'],
    ]  # fmt: skip
    assert cells('"yes"\n"no"\n') == [['"yes"'], ['"no"']]
    # pandas writes a missing value in the only column so.
    assert cells('text\n""\n') == [["text"], [""]]


def test_other_line_ends_of_unicode_are_text():
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\tpos"
    assert cells(f"{text}\r{text}\r\n{text}\n") == [text.split("\t")] * 3


@pytest.mark.parametrize("text", [
    '"' * 400_001,
    '"a\t' * 120_000,
    '"a\n' * 120_000,
    'pos\t"a\n' * 80_000,
    ('pos\t"a\n' * 2 + 'neg\tb"\n') * 40_000,
    '"' + 'a""' * 160_000,
])  # fmt: skip
def test_hostile_quotes_take_time_of_their_length(text):
    begin = time.process_time()
    read_rows(text, 0)
    assert time.process_time() - begin < 4
