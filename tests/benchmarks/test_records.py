"""The records' table from numbers typed in, and a quick run of our worker."""

import os
import sys

import pytest

from benchmarks import command, records, results
from benchmarks.interleave import interleave
from tests.benchmarks.toys import comparison, measured

PEER = os.environ.get("DECOUPLED_RECORDS_PYTHON")


def test_table():
    facts = {"tokens": 6_000_000}
    ours = measured("decoupled", [[4.0], [6.0], [5.0]], {}, facts)
    peer = measured("datasets", [[8.0], [18.0], [10.0]], {}, facts, peak=400_000_000)
    (table,) = records.tables([comparison("dump x2", [ours, peer])])
    assert table.rows == [
        ["dump x2", "decoupled", "6.00 M", "1.20 M/s (1.00-1.50)", "", "2.50 GB"],
        [
            "dump x2", "datasets", "6.00 M", "0.60 M/s (0.33-0.75)",
            "2.00x (2.00-3.00)", "0.40 GB",
        ],
    ]  # fmt: skip


def test_what_was_skipped_says_why():
    (table,) = records.tables([comparison("dump", skipped="too little memory")])
    assert table.rows == [["dump", "too little memory", "", "", "", ""]]


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["records", "--quick"])
    options = command.parser("records", "", rounds=5, steps=1)
    options.add_argument("--dump")
    options.add_argument("--repeats", type=int, default=2)
    return records.make_case(command.parse(options), tmp_path)


@pytest.mark.slow
def test_a_quick_run_of_our_worker(case):
    assert case["sentences"] == 2 * 200 * 3
    (ours,) = interleave([records.our_worker(case)], 2, 1, "quick")
    assert ours.rounds[-1].loss == ours.facts["tokens"] > case["sentences"]


@pytest.mark.interop
@pytest.mark.skipif(not PEER, reason="no interpreter with datasets and tokenizers")
def test_a_quick_run_writes_as_many_tokens_as_datasets(tmp_path, monkeypatch):
    arguments = ["records", "--quick", f"--results_dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", arguments)
    records.main()
    (read,) = results.read(tmp_path / "records.json")
    assert [worker.name for worker in read.workers] == ["decoupled", "datasets"]
    assert read.workers[0].facts["tokens"] == read.workers[1].facts["tokens"]
