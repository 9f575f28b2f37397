"""The table of serving from numbers typed in, and quick runs of its workers."""

import pytest

from benchmarks import inference, results
from benchmarks.__main__ import main
from benchmarks.interleave import interleave
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON

CASE = inference.inference_case(False, 1)


def test_table():
    facts = {"files": 401_000_000}
    workers = [
        measured("transformers eager", [[0.08], [0.12]], {**CASE, "compiled": False}),
        measured("decoupled", [[0.04], [0.04]], CASE, facts, peak=900_000_000),
    ]
    skipped = comparison("encoder, batch 32", skipped="too little memory")
    (table,) = inference.tables([comparison("encoder, batch 1", workers), skipped])
    assert table.rows == [
        ["transformers eager", "1", "100 ms (80.0-120)", "2.50x (2.00-3.00)",
         "2.50 GB", ""],
        ["decoupled", "1", "40.0 ms (40.0-40.0)", "", "0.90 GB", "401 MB"],
        ["encoder, batch 32", "too little memory", "", "", "", ""],
    ]  # fmt: skip


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
