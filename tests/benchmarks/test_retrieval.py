"""The table of retrieval from numbers typed in, and quick runs of its workers."""

import pytest

from benchmarks import results, retrieval
from benchmarks.__main__ import main
from benchmarks.interleave import interleave
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON

CASE = retrieval.retrieval_case(retrieval.SETTINGS[0], "float32")
QUICK = retrieval.retrieval_case(retrieval.QUICK_SETTINGS[0], "float32")


def test_table():
    workers = [
        measured("decoupled", [[5.0], [10.0]], CASE, peak=900_000_000),
        measured("transformers", [[10.0], [40.0]], CASE),
    ]
    (table,) = retrieval.tables([comparison("demo: float32", workers)])
    ours, peer = table.rows
    assert ours == [
        "demo: float32", "decoupled", "5,000", "750 /s (500-1,000)", "", "0.90 GB",
    ]  # fmt: skip
    assert peer[3:5] == ["312 /s (125-500)", "3.00x (2.00-4.00)"]


@pytest.mark.slow
def test_our_worker_gives_the_same_at_every_step():
    (ours,) = interleave([retrieval.our_worker(QUICK)], 2, 1, "quick")
    first, second = (chunk.loss for chunk in ours.rounds)
    # The sum of two mean cosines of best matches.
    assert 0 < first <= 2 + 1e-5
    assert first == pytest.approx(second, rel=1e-6)


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_a_quick_run_against_transformers(tmp_path, capsys):
    main(["retrieval", "--quick", f"--results_dir={tmp_path}", "--only=quick"])
    (read,) = results.read(tmp_path / "retrieval.json")
    ours, peer = read.workers
    # Transformers' model has a pooler, which takes no part.
    size = ours.case["model"]["hidden_size"]
    assert peer.facts["parameters"] == ours.facts["parameters"] + size * (size + 1)
    assert "pairs a second" in capsys.readouterr().out
