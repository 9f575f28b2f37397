"""The table of serving from numbers typed in, and quick runs of its workers."""

import sys

import pytest

from benchmarks import inference, results
from benchmarks.interleave import interleave
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON

CASE = inference.inference_case(False, "encoder", 1)


def test_table():
    matmul = {"size": 2048, "dtype": "float32"}
    workers = [
        measured("transformers eager", [[0.08], [0.12]], {**CASE, "compiled": False}),
        measured(
            "decoupled",
            [[0.04], [0.04]],
            CASE,
            peak=900_000_000,
            facts={"files": 401_000_000},
        ),
        measured("matmul tensorflow", [[0.04], [0.04]], matmul),
    ]
    (table,) = inference.tables([comparison("encoder, batch 1", workers)])
    eager, ours = table.rows
    assert eager[:5] == [
        "transformers eager", "encoder", "1", "100 ms (80.0-120)", "2.50x (2.00-3.00)",
    ]  # fmt: skip
    assert ours[3:] == [
        "40.0 ms (40.0-40.0)", "", "130% (130-130)", "0.90 GB", "401 MB",
    ]  # fmt: skip


def test_flops():
    weights = 12 * (4 * 768**2 + 2 * 768 * 3072) + 128 * 768
    attention = 12 * 12 * 2 * 128 * 64 * 128
    expected = 2 * (128 * weights + attention)
    assert inference.call_flops(measured("decoupled", [], CASE)) == expected


def test_what_was_skipped_says_why():
    skipped = comparison("encoder, batch 1", skipped="too little memory")
    (table,) = inference.tables([skipped])
    assert table.rows[0][1] == "too little memory"


@pytest.mark.slow
def test_matrices_in_fewer_bits_and_the_prediction_alone():
    encoder, classifier = (
        inference.inference_case(True, k, 3) for k in inference.KINDS
    )
    workers = inference.other_ways(encoder)
    assert [worker.name for worker in workers] == [
        f"decoupled, {name}" for name in ("bfloat16", "float16", "int8")
    ]
    (predict,) = inference.other_ways(classifier)
    *_, last = interleave([inference.our_worker(encoder), workers[-1]], 1, 1, "quick")
    assert last.rounds[0].loss != 0
    whole, alone = interleave(
        [inference.our_worker(classifier), predict], 1, 1, "quick"
    )
    assert alone.rounds[0].loss == pytest.approx(whole.rounds[0].loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", inference.KINDS)
def test_our_worker_gives_the_same_at_every_call(kind):
    case = inference.inference_case(True, kind, 3)
    (ours,) = interleave([inference.our_worker(case)], 2, 1, kind)
    first, second = (chunk.loss for chunk in ours.rounds)
    assert first == second != 0
    assert ours.peak_resident > 0


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_a_quick_run_against_transformers(tmp_path, monkeypatch, capsys):
    title = "classifier, batch 1"
    arguments = ["inference", "--quick", f"--results_dir={tmp_path}", "--only", title]
    monkeypatch.setattr(sys, "argv", arguments)
    inference.main()
    (read,) = results.read(tmp_path / "inference.json")
    eager, compiled, ours, predict, _ = read.workers
    assert eager.facts["parameters"] == ours.facts["parameters"]
    assert predict.name == "decoupled, predict"
    # The same weights, compiled or not.
    assert eager.rounds[0].loss == pytest.approx(compiled.rounds[0].loss, rel=1e-3)
    assert "Serving" in capsys.readouterr().out
