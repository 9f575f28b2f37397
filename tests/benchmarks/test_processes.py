"""One mesh in one process and in several: table, memory, and a quick run."""

import sys

import pytest

from benchmarks import command, processes, results
from benchmarks.sizes import pretraining_case
from tests.benchmarks.toys import comparison, measured


def test_table():
    alone = measured("1 process", [[2.0], [4.0]], {}, {"wire_bytes": 0})
    several = measured("2 processes", [[2.2], [4.4]], {}, {"wire_bytes": 12_300_000})
    skipped = comparison("float32: 4 processors", skipped="too large")
    (table,) = processes.tables([comparison("m", [alone, several]), skipped])
    assert table.rows == [
        ["m", "1 process", "3.00 s (2.00-4.00)", "", "0.00 MB", "2.50 GB"],
        [
            "m", "2 processes", "3.30 s (2.20-4.40)", "1.10x (1.10-1.10)", "12.3 MB",
            "2.50 GB",
        ],
        ["float32: 4 processors", "too large", "", "", "", ""],
    ]  # fmt: skip


def test_what_does_not_fit_is_skipped(tmp_path, monkeypatch):
    memory = {"MemAvailable": 10**9, "MemTotal": 10**9}
    monkeypatch.setattr(command, "memory_sizes", lambda: memory)
    monkeypatch.setattr(
        sys, "argv", ["processes", f"--results_dir={tmp_path}", "--only=2 processors"]
    )
    processes.main()
    (read,) = results.read(tmp_path / "processes.json")
    assert read.skipped == "needs about 14.41 GB, 1.00 GB are free"


@pytest.mark.slow
def test_a_quick_run_computes_the_same_in_one_process_and_in_two(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys,
        "argv",
        ["processes", "--quick", f"--results_dir={tmp_path}", "--only=2 processors"],
    )
    processes.main()
    (read,) = results.read(tmp_path / "processes.json")
    alone, several = read.workers
    assert several.facts["wire_bytes"] > 100_000
    expected = [chunk.loss for chunk in alone.rounds]
    assert [chunk.loss for chunk in several.rounds] == pytest.approx(expected, rel=1e-5)


def test_every_processor_gets_a_head():
    case = pretraining_case(processes.TINY, processes.QUICK_BATCH, "float32")
    assert case["model"]["num_heads"] == max(processes.PROCESSORS)
