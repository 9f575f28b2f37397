"""The table of fine-tuning from numbers typed in, and quick runs of its workers."""

import math
import sys

import pytest

from benchmarks import finetuning, results
from benchmarks.interleave import interleave
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON

CASE = finetuning.finetuning_case(False, "bfloat16", 0.1)


def test_table():
    matmul = {"size": 2048, "dtype": "bfloat16"}
    workers = [
        measured("transformers", [[9.0], [12.0]], CASE),
        measured("decoupled", [[6.0], [6.0]], CASE, peak=4_000_000_000),
        measured("matmul tensorflow", [[0.02], [0.02]], matmul),
    ]
    (table,) = finetuning.tables([comparison("bfloat16: dropout 0.1", workers)])
    theirs, ours = table.rows
    assert theirs == [
        "transformers", "bfloat16", "0.1", "10.5 s (9.00-12.0)", "1.75x (1.50-2.00)",
        "24% (21-28)", "2.50 GB",
    ]  # fmt: skip
    # 2000 GFLOP in 6 s, where 2 * 2048^3 take 0.02 s.
    assert ours[4:] == ["", "39% (39-39)", "4.00 GB"]


def test_flops():
    # 85M weights of layers and projection on 4096 tokens, and attention
    # over 128 tokens: in each of 12 heads two products of [128, 64] and [64, 128].
    weights = 12 * (4 * 768**2 + 2 * 768 * 3072) + 128 * 768
    attention = 12 * 32 * 12 * 2 * 128 * 64 * 128
    expected = 3 * 2 * (4096 * weights + attention)
    assert finetuning.step_flops(measured("transformers", [], CASE)) == expected
    # Ours computes keys and values for all tokens in the last layer, the rest for one.
    spared = 32 * 127 * (2 * 768**2 + 2 * 768 * 3072) + attention / 12 * 127 / 128
    ours = finetuning.step_flops(measured("decoupled", [], CASE))
    assert ours == expected - 3 * 2 * spared


def test_what_was_skipped_says_why():
    skipped = comparison("float32: no dropout", skipped="too little memory")
    (table,) = finetuning.tables([skipped])
    assert table.rows[0][1] == "too little memory"


@pytest.mark.slow
def test_our_worker_learns_the_batch():
    case = finetuning.finetuning_case(True, "float32", 0.0)
    (ours,) = interleave([finetuning.our_worker(case)], 3, 10, "float32")
    losses = [chunk.loss for chunk in ours.rounds]
    assert losses[0] == pytest.approx(math.log(finetuning.LABELS), rel=0.3)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_a_quick_run_against_transformers(tmp_path, monkeypatch, capsys):
    title = "float32: no dropout"
    arguments = ["finetuning", "--quick", f"--results_dir={tmp_path}", "--only", title]
    monkeypatch.setattr(sys, "argv", arguments)
    finetuning.main()
    (read,) = results.read(tmp_path / "finetuning.json")
    theirs, ours = read.worker("transformers"), read.worker("decoupled")
    assert theirs.facts["parameters"] == ours.facts["parameters"]
    assert theirs.rounds[0].loss == pytest.approx(ours.rounds[0].loss, rel=0.1)
    assert "Fine-tuning step" in capsys.readouterr().out
