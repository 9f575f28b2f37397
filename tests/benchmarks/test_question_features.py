"""The table of question features from numbers typed in, and quick runs of workers."""

import os
import sys

import pytest

from benchmarks import question_features, results
from benchmarks.interleave import Skip, interleave
from tests.benchmarks.toys import comparison, measured

PEER = os.environ.get("DECOUPLED_INTEROP_PYTHON")


def test_table():
    case = {"questions": 6000, "contexts": 1200}
    ours = measured("decoupled", [[0.5], [0.6], [0.4]], case, {"windows": 7000})
    peer = measured(
        "transformers", [[5.0], [3.0], [4.0]], case, {"windows": 6900}, peak=400_000_000
    )
    (table,) = question_features.tables([comparison("x", [ours, peer])])
    assert table.rows == [
        ["decoupled", "6,000", "1,200", "7,000", "12.0 k/s (10.0-15.0)", "",
         "2.50 GB"],
        ["transformers", "6,000", "1,200", "6,900", "1.50 k/s (1.20-2.00)",
         "10.00x (5.00-10.00)", "0.40 GB"],
    ]  # fmt: skip


def test_what_was_skipped_says_why():
    (table,) = question_features.tables([comparison("x", skipped="no questions")])
    assert table.rows == [["x", "no questions", "", "", "", "", ""]]


def test_without_data_the_comparison_is_skipped(monkeypatch):
    monkeypatch.delenv("DECOUPLED_DATA_DIR", raising=False)
    with pytest.raises(Skip, match="give --questions, or set DECOUPLED_DATA_DIR"):
        question_features.read(False, None)


@pytest.mark.slow
def test_a_quick_run_of_our_worker(tmp_path):
    questions = question_features.read(True, None)
    case = question_features.make_case(questions, True, tmp_path)
    assert (case["questions"], case["contexts"]) == (20, 20)
    (ours,) = interleave([question_features.our_worker(case)], 2, 1, "quick")
    # The longest contexts have more than one window; every answer is in one or more.
    assert ours.facts["windows"] > 20
    assert ours.rounds[-1].loss >= 20


@pytest.mark.interop
@pytest.mark.skipif(not PEER, reason="no interpreter with transformers")
def test_a_quick_run_beside_transformers(tmp_path, monkeypatch):
    arguments = ["question_features", "--quick", f"--results_dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", arguments)
    question_features.main()
    (read,) = results.read(tmp_path / "question_features.json")
    ours, *peers = read.workers
    assert [worker.name for worker in peers] == [
        "transformers", "transformers, one thread"
    ]  # fmt: skip
    for peer in peers:
        assert peer.facts["windows"] <= ours.facts["windows"]
        assert peer.rounds[-1].loss >= 20
