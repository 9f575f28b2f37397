"""Quick runs of the workers of retrieval."""

import pytest

from benchmarks import results, retrieval
from benchmarks.__main__ import main
from benchmarks.interleave import interleave
from tests.interop.reference import PYTHON

QUICK = retrieval.retrieval_case(retrieval.QUICK_SETTINGS[0], "float32")


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
