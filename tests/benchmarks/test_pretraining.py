"""The tables of pre-training from numbers typed in, and quick runs of its workers."""

import math

import pytest

from benchmarks import pretraining, results
from benchmarks.__main__ import main
from benchmarks.interleave import interleave
from benchmarks.sizes import REFERENCE, REFERENCE_BATCH, pretraining_case
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON

CASE = pretraining_case(REFERENCE, REFERENCE_BATCH, "bfloat16")
# Of the reference step, with the head on 160 positions.
GIGAFLOPS = 625.977851904


def against_transformers():
    matmul = {"size": 2048, "dtype": "bfloat16"}
    return comparison(
        "bfloat16: transformers",
        [
            measured("transformers", [[4.0], [6.0]], {**CASE, "masked": False}),
            measured("transformers masked", [[3.0], [3.0]], {**CASE, "masked": True}),
            measured("decoupled", [[2.0], [2.0]], CASE, peak=4_610_000_000),
            measured("matmul tensorflow", [[0.05], [0.1]], matmul),
        ],
    )


def test_step_table():
    skipped = comparison("float32: transformers", skipped="too little memory")
    table = pretraining.tables([against_transformers(), skipped])[0]
    shipped, masked, ours, blank = table.rows
    assert blank == ["float32: transformers", "too little memory", "", "", "", ""]
    assert shipped[:4] == [
        "transformers", "bfloat16", "5.00 s (4.00-6.00)", "2.50x (2.00-3.00)",
    ]  # fmt: skip
    assert masked[3:] == ["1.50x (1.50-1.50)", "209 GFLOP/s", "2.50 GB"]
    assert ours[2:] == ["2.00 s (2.00-2.00)", "", "297 GFLOP/s", "4.61 GB"]


def test_rate_table():
    table = pretraining.tables([against_transformers()])[1]
    # 2 * 2048^3 FLOPs in 0.05 s and 0.1 s; our step's 594.4 GFLOP in 2 s.
    assert table.rows == [
        ["tensorflow", "bfloat16", "258 GFLOP/s (172-344)", "130% (86-173)"]
    ]


def test_flops_of_what_each_model_computes():
    def gigaflops(name, **case):
        return pretraining.step_flops(measured(name, [], {**CASE, **case})) / 1e9

    # In the last layer 108 of 128 tokens have keys and values only.
    spared = 864 * (2 * 768**2 + 2 * 768 * 3072) + 8 * 2 * 108 * 768 * 128
    assert gigaflops("decoupled") == pytest.approx(GIGAFLOPS - 6 * spared / 1e9)
    assert gigaflops("transformers masked", masked=True) == pytest.approx(GIGAFLOPS)
    # 864 more positions through [768, 768] and [768, 120000], three times.
    more = 3 * 2 * 864 * 768 * (768 + 120_000) / 1e9
    shipped = gigaflops("transformers", masked=False)
    assert shipped == pytest.approx(GIGAFLOPS + more)
    # No [128, 768] before the layers.
    tied = gigaflops("mesh_tensorflow.bert")
    assert tied == pytest.approx(GIGAFLOPS - 3 * 2 * 1024 * 128 * 768 / 1e9)


@pytest.mark.slow
def test_our_worker_learns_its_batch_by_heart():
    quick = pretraining_case(pretraining.QUICK, pretraining.QUICK_BATCH, "float32")
    (ours,) = interleave([pretraining.our_worker(quick)], 3, 4, "float32")
    losses = [chunk.loss for chunk in ours.rounds]
    assert losses[0] == pytest.approx(math.log(1024), rel=0.05)
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 3


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quick_run_against_transformers(tmp_path, dtype):
    main(["pretraining", "--quick", f"--results_dir={tmp_path}", f"--dtypes={dtype}",
          f"--only={dtype}: transformers"])  # fmt: skip
    (read,) = results.read(tmp_path / "pretraining.json")
    shipped, masked, ours, *matmuls = read.workers
    # The same sizes in all, the same loss wherever the head runs.
    assert shipped.facts["parameters"] == ours.facts["parameters"]
    assert masked.facts["parameters"] == ours.facts["parameters"]
    assert shipped.rounds[0].loss == pytest.approx(masked.rounds[0].loss, rel=1e-3)
    assert ours.rounds[0].loss == pytest.approx(masked.rounds[0].loss, rel=0.05)
    assert [worker.name for worker in matmuls] == ["matmul tensorflow", "matmul torch"]
