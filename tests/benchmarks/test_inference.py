"""Quick runs of the workers of serving."""

import pytest

from benchmarks import inference, results
from benchmarks.__main__ import main
from benchmarks.interleave import interleave
from tests.interop.reference import PYTHON


@pytest.mark.slow
def test_our_workers_give_the_same_at_every_call():
    workers = inference.our_workers(inference.inference_case(True, 3))
    assert [worker.name for worker in workers] == [
        "decoupled", *(f"decoupled, {name}" for name in ("bfloat16", "float16", "int8"))
    ]  # fmt: skip
    for worker in interleave([workers[0], workers[-1]], 2, 1, "quick"):
        first, second = (chunk.loss for chunk in worker.rounds)
        assert first == second != 0
        assert worker.peak_resident > 0


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_a_quick_run_against_transformers(tmp_path, capsys):
    title = "encoder, batch 1"
    main(["inference", "--quick", f"--results_dir={tmp_path}", "--only", title])
    (read,) = results.read(tmp_path / "inference.json")
    eager, compiled, *_ = read.workers
    # The same weights, compiled or not.
    assert eager.rounds[0].loss == pytest.approx(compiled.rounds[0].loss, rel=1e-3)
    assert "Serving" in capsys.readouterr().out
