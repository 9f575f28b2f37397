"""The table of tagging from numbers typed in, and quick runs of its workers."""

import pytest

from benchmarks import peers, results, tagging
from benchmarks.__main__ import main
from benchmarks.interleave import Skip, interleave
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON


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


def test_sentences_are_needed(monkeypatch):
    monkeypatch.delenv(peers.DATA_DIR, raising=False)
    with pytest.raises(Skip, match="no sentences: set DECOUPLED_DATA_DIR"):
        tagging.read_tagged(False)


@pytest.mark.slow
def test_tags_are_the_same_in_every_round(tmp_path):
    case = tagging.make_case(tagging.read_tagged(True), True, tmp_path / "c")
    (ours,) = interleave([tagging.our_worker(case)], 2, 1, "quick")
    assert ours.rounds[0].loss == ours.rounds[1].loss != 0


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_a_quick_run_tags_as_transformers_does(tmp_path, capsys):
    main(["tagging", "--quick", f"--results_dir={tmp_path}"])
    (read,) = results.read(tmp_path / "tagging.json")
    assert len(read.workers) == 3
    assert len({worker.rounds[0].loss for worker in read.workers}) == 1
    assert "Words to tags" in capsys.readouterr().out
