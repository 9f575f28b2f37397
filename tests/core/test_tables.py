"""One set of columns and rows as Markdown and CSV."""

import numpy as np
import pytest

from decoupled.core import tables
from decoupled.core.tables import Cell

COLUMNS = ["model", "n", "score"]
ROWS = [
    ["e_out_128", 1234, Cell("50.0 ± 1.4", True, "68.1")],
    ["coupled", None, Cell("-", paper="70.7")],
]


@pytest.mark.parametrize(
    "value,text",
    [
        (None, "-"),
        (True, "yes"),
        (12345, "12,345"),
        (np.int64(12345), "12,345"),
        (0.123456, "0.1235"),
        (np.float32(0.5), "0.5"),
        (12345.678, "12,345.7"),
        ("84.2%", "84.2%"),
    ],
)
def test_cells(value, text):
    assert tables.cell_text(value) == text


def test_markdown():
    assert tables.to_markdown(COLUMNS, ROWS).splitlines() == [
        "| model | n | score |",
        "| --- | ---: | ---: |",
        "| e_out_128 | 1,234 | **50.0 ± 1.4**<br>paper 68.1 |",
        "| coupled | - | -<br>paper 70.7 |",
    ]


def test_markdown_with_columns_of_words():
    assert tables.to_markdown(["a", "b"], [["x", None]], words=2, gap="") == (
        "| a | b |\n| --- | --- |\n| x |  |"
    )


def test_markdown_with_a_head_of_its_own():
    head = "| | b |\n|---|---:|"
    assert tables.to_markdown(head, [["x", 1]]) == f"{head}\n| x | 1 |"


def test_csv():
    text = tables.to_csv(["a", "b"], [["x, y", 0.1], [1, ""]])
    assert text == 'a,b\n"x, y",0.1\n1,\n'


def test_a_cell_is_printed_as_its_number():
    assert tables.cell_text(ROWS[0][2]) == "50.0 ± 1.4"
