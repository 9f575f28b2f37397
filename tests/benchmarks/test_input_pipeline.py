"""The input pipeline's table from numbers typed in, and quick runs of its workers."""

import statistics
import sys

import numpy as np
import pytest

from benchmarks import input_pipeline, results
from benchmarks.interleave import interleave
from benchmarks.sizes import pretraining_case
from benchmarks.workers import synthetic
from decoupled.commands import pretrain
from decoupled.launch import gin_files
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON

(QUICK,) = input_pipeline.QUICK_SETTINGS
CASE = {
    "vocab_size": 1000,
    "languages": {"en": 50_000, "sw": 50_000, "yo": 700},
}


def demo(peer_seconds=1.0):
    setting = input_pipeline.SETTINGS[0]
    step = pretraining_case(setting.model, setting.step_batch, "bfloat16")
    case = input_pipeline.input_case(setting, 409_600)
    facts = {"first_batch": {"0": [0.5, 0.75, 0.625], "100000": [1.0, 2.0, 1.5]}}
    return comparison(
        "demo: bfloat16",
        [
            # 4096 tokens a step; 100 batches of them.
            measured("training step", [[0.02] * 3, [0.04] * 3], step),
            measured("decoupled", [[0.1], [0.1]], case, facts),
            measured("transformers", [[peer_seconds]] * 2, case),
        ],
    )


def test_table():
    (table,) = input_pipeline.tables([demo()])
    step, ours, peer = table.rows
    assert step == [
        "demo: bfloat16", "training step", "256 x 16", "154 k/s (102-205)", "", "",
        "", "2.50 GB",
    ]  # fmt: skip
    assert ours[1:] == [
        "decoupled", "256 x 16", "4,096 k/s (4,096-4,096)", "30.0 times (20.0-40.0)",
        "0.62 s", "1.50 s", "2.50 GB",
    ]  # fmt: skip
    assert peer[3:7] == ["410 k/s (410-410)", "3.00 times (2.00-4.00)", "", ""]


def test_a_step_of_fewer_sequences_counts_its_own_tokens():
    setting = input_pipeline.SETTINGS[2]
    case = pretraining_case(setting.model, setting.step_batch, "bfloat16")
    assert input_pipeline.tokens(measured("training step", [], case)) == 8 * 512
    case = input_pipeline.input_case(setting, input_pipeline.OUR_TOKENS)
    assert input_pipeline.tokens(measured("decoupled", [], case)) == 1 << 22


def test_what_was_skipped_says_why():
    skipped = comparison("long: bfloat16", skipped="too little memory")
    (table,) = input_pipeline.tables([skipped])
    assert table.rows == [["long: bfloat16", "too little memory", *[""] * 6]]


def test_the_demo_is_that_of_the_settings_files():
    config = gin_files.configure(
        pretrain.pretrain,
        ["runs/pretrain.gin", "models/demo_decoupled.gin", "runs/demo_pretrain.gin"],
        [],
    )
    batch = input_pipeline.DEMO_BATCH
    assert input_pipeline.DEMO == config.model
    assert batch.sequences == config.training.batch_size
    assert batch.length == config.masking.sequence_length
    assert batch.predictions == config.masking.max_predictions
    assert input_pipeline.SAMPLING == config.sampling


def test_documents_are_like_text():
    languages = dict(synthetic.documents(CASE))
    assert list(languages) == ["en", "sw", "yo"]
    for name, texts in languages.items():
        assert sum(map(len, texts)) >= CASE["languages"][name]
    lengths = [len(text) for text in languages["en"]]
    assert statistics.median(lengths) == pytest.approx(120, rel=0.2)
    assert min(lengths) >= 1 and max(lengths) > 600
    ids = np.concatenate(languages["en"])
    assert ids.min() == 5 and ids.max() == 999
    # Zipf: the logarithms of the ranks are uniform.
    ranks = np.log(ids - 4) / np.log(995)
    assert np.median(ranks) == pytest.approx(0.5, abs=0.05)
    assert not np.array_equal(ids[:100], np.concatenate(languages["sw"])[:100])


def test_documents_are_the_same_each_time():
    once, again = (list(synthetic.documents(CASE)) for _ in range(2))
    for (_, one), (_, two) in zip(once, again, strict=True):
        np.testing.assert_array_equal(np.concatenate(one), np.concatenate(two))


@pytest.mark.slow
def test_our_pipeline_delivers_whole_batches(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    _, worker = input_pipeline.our_workers(QUICK, "float32")
    (ours,) = interleave([worker], 2, 3, "quick")
    # Two sequences of 16 tokens, 14 of them text: 15% of that is 2.
    assert {chunk.loss for chunk in ours.rounds} <= {2.0, 3.0, 4.0}
    texts = [text for _, texts in synthetic.documents(ours.case) for text in texts]
    assert ours.facts["tokens"] == sum(map(len, texts))
    assert ours.facts["shards"] > len(ours.case["languages"])
    assert set(ours.facts["first_batch"]) == {"0", "100000"}
    assert not list(tmp_path.iterdir()), "the records were left behind"


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_a_quick_run_against_transformers(tmp_path, monkeypatch, capsys):
    arguments = ["input_pipeline", "--quick", f"--results_dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", arguments)
    input_pipeline.main()
    (read,) = results.read(tmp_path / "input_pipeline.json")
    names = [worker.name for worker in read.workers]
    assert names == ["training step", "decoupled", "transformers"]
    # Predictions of two sequences of 14 maskable tokens, each drawn by itself.
    assert all(0 <= chunk.loss <= 28 for chunk in read.workers[2].rounds)
    assert "Input pipeline" in capsys.readouterr().out
