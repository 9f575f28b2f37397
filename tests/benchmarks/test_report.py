"""The document's places are filled with tables, the rest stays as it is."""

import sys

import pytest

from benchmarks import report, results
from benchmarks.sizes import QUICK, QUICK_BATCH, pretraining_case
from benchmarks.tables import Table
from decoupled.core.errors import UserError
from tests.benchmarks.toys import comparison, measured

TABLE = Table("toys", "Toys", ["name", "step"], [["a", "1 s"]])
DOCUMENT = """# Speed

<!-- table:toys -->
old
<!-- end -->

Text.

<!-- table:other -->
kept
<!-- end -->
"""
FILLED = """# Speed

<!-- table:toys -->

| name | step |
| --- | ---: |
| a | 1 s |

<!-- end -->

Text.

<!-- table:other -->
kept
<!-- end -->
"""


def test_places():
    assert report.places(DOCUMENT) == ["toys", "other"]


def test_fill():
    assert report.fill(DOCUMENT, [TABLE]) == FILLED


def test_filling_again_changes_nothing():
    assert report.fill(FILLED, [TABLE]) == FILLED


def test_machine_table():
    versions = {"versions": {"torch": "2.13.0", "tensorflow": "2.15.1"}}
    workers = [measured("a", [[1.0]], facts=versions)]
    same = [comparison("one", workers), comparison("two", workers)]
    later = comparison("three", date="2024-04-01T00:00:00", commit=None)
    table = report.machine_table({"toys": same, "others": [later]})
    assert table.rows == [
        ["toys", "CPU X", "avx avx2", "2", "16.00 GB",
         "tensorflow 2.15.1, torch 2.13.0", "0123456789", "2024-03-01"],
        ["others", "CPU X", "avx avx2", "2", "16.00 GB", "", "unknown", "2024-04-01"],
    ]  # fmt: skip


def run(monkeypatch, folder, document):
    arguments = [f"--results_dir={folder}", f"--document={document}"]
    monkeypatch.setattr(sys, "argv", ["report", *arguments])
    report.main()


def test_tables_of_a_suite_go_into_the_document(tmp_path, monkeypatch, capsys):
    case = pretraining_case(QUICK, QUICK_BATCH, "float32")
    ours = measured("decoupled", [[0.5]], case)
    stock = measured("mesh_tensorflow.bert", [[1.0]], case)
    measurements = [comparison("float32: mesh_tensorflow.bert", [stock, ours])]
    results.write(tmp_path / "pretraining.json", "pretraining", measurements)
    document = tmp_path / "performance.md"
    document.write_text("<!-- table:pretraining -->\n<!-- end -->\n")
    run(monkeypatch, tmp_path, document)
    assert "| 2.00x (2.00-2.00) |" in document.read_text()
    assert "no place for table growth" in capsys.readouterr().out
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "performance.md",
        "pretraining.json",
    ]


def test_nothing_to_report(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no results; run `make bench` first"):
        run(monkeypatch, tmp_path, tmp_path / "performance.md")


def test_no_document(tmp_path, monkeypatch):
    results.write(tmp_path / "pretraining.json", "pretraining", [])
    with pytest.raises(UserError, match="none.md: does not exist"):
        run(monkeypatch, tmp_path, tmp_path / "none.md")
