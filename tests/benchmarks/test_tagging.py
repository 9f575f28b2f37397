"""The table of tagging from numbers typed in, and quick runs of its workers."""

import argparse
import sys

import pytest

from benchmarks import results, tagging
from benchmarks.interleave import Skip, interleave
from decoupled.core.errors import UserError
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON

QUICK = argparse.Namespace(quick=True, sentences=None)


def test_table():
    case = {"sentences": 100}
    ours = measured("decoupled", [[2.0], [1.0], [4.0]], case)
    peer = measured("transformers", [[4.0], [4.0], [4.0]], case, peak=400_000_000)
    (table,) = tagging.tables([comparison("tagging", [ours, peer])])
    assert table.rows == [
        ["tagging", "decoupled", "100", "50.0 /s (25.0-100)", "", "2.50 GB"],
        [
            "tagging", "transformers", "100", "25.0 /s (25.0-25.0)",
            "2.00x (1.00-4.00)", "0.40 GB",
        ],
    ]  # fmt: skip


def test_what_was_skipped_says_why():
    (table,) = tagging.tables([comparison("tagging", skipped="too little memory")])
    assert table.rows == [["tagging", "too little memory", "", "", "", ""]]


def test_sentences_are_needed(tmp_path, monkeypatch):
    monkeypatch.delenv(tagging.DATA_DIR, raising=False)
    with pytest.raises(Skip, match="give --sentences, or set DECOUPLED_DATA_DIR"):
        tagging.read_tagged(False, None)
    path = tmp_path / "mine.tsv"
    path.write_text("a\tDET\ncat\tNOUN\n\nrun\tVERB\n")
    sentences = tagging.read_tagged(False, str(path))
    assert [s.tags for s in sentences] == [["DET", "NOUN"], ["VERB"]]
    path.write_text("a\n")
    with pytest.raises(UserError, match="no tags"):
        tagging.read_tagged(False, str(path))


def test_scores_are_those_of_seqeval(tmp_path):
    workers = tagging.scoring_workers(QUICK, tmp_path)
    ours, seqeval = interleave(workers, 1, 1, "quick")
    assert ours.rounds[0].loss == pytest.approx(seqeval.rounds[0].loss)
    assert 60 < ours.rounds[0].loss < 95


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_a_quick_run_tags_as_transformers_does(tmp_path, monkeypatch, capsys):
    arguments = ["tagging", "--quick", f"--results_dir={tmp_path}", "--only=tagging"]
    monkeypatch.setattr(sys, "argv", arguments)
    tagging.main()
    (read,) = results.read(tmp_path / "tagging.json")
    assert len(read.workers) == 4
    assert len({worker.rounds[0].loss for worker in read.workers}) == 1
    assert "Words to tags" in capsys.readouterr().out
