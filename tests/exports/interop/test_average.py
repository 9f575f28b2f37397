"""Averages of checkpoints: the mean of every weight, and what is refused."""

import json
import os

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.data.vocabulary import open_vocabulary
from decoupled.exports.interop.average import average
from decoupled.runs.saved_run import open_model
from decoupled.training.checkpoint_files import CheckpointFile
from tests.analyses.tiny_runs import write_finetuned_run, write_run
from tests.exports.models import (
    model_config,
    pretrained_weights,
    train_sentencepiece,
    write_checkpoint,
)

CONFIG = model_config()
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "sentencepiece.model")
    train_sentencepiece(path)
    return open_vocabulary(path)


@pytest.fixture(scope="module")
def run(vocabulary, tmp_path_factory):
    """A run with a checkpoint of each seed, with Adam's slots."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "run", vocabulary)
    for seed in SEEDS:
        weights = pretrained_weights(CONFIG, seed)
        slots = {f"{name}/adam_m": value for name, value in weights.items()}
        prefix = os.path.join(folder, "model.ckpt")
        write_checkpoint(prefix, weights | slots, 10 + seed)
    return folder


def prefixes(run):
    return [f"{run}/model.ckpt-{10 + seed}" for seed in SEEDS]


def test_every_weight_is_the_mean(run, vocabulary, tmp_path, capsys):
    target = str(tmp_path / "mean")
    report = average(prefixes(run), target)
    opened = open_model(target)
    assert opened.description.model == CONFIG
    assert opened.vocabulary.fingerprint == vocabulary.fingerprint
    found = opened.weights
    # The highest step, and no slots.
    assert found.global_step == 12
    assert set(found.shapes) == {*found, "global_step"}
    sources = [pretrained_weights(CONFIG, seed) for seed in SEEDS]
    assert set(found) == set(sources[0])
    for name in found:
        exact = sum(source[name].astype(np.float64) for source in sources) / 3
        np.testing.assert_array_equal(found[name], exact.astype(np.float32))
    saved = json.loads((tmp_path / "mean" / "conversion.json").read_text())
    assert saved["kind"] == report["kind"] == "mean of 3 checkpoints"
    assert saved["source"].split(", ") == prefixes(run)
    assert f"mean of 3 checkpoints, {len(found)} variables" in capsys.readouterr().out


def test_older_checkpoints_weigh_less(run, tmp_path):
    target = str(tmp_path / "mean")
    # Of steps 10, 11 and 12, with half the weight for each step of age.
    report = average(prefixes(run), target, half_life=1.0)
    assert report["kind"] == "mean of 3 checkpoints, half-life 1 steps"
    found = CheckpointFile(open_model(target).weights.path)
    sources = [pretrained_weights(CONFIG, seed) for seed in SEEDS]
    for name in found:
        parts = [source[name].astype(np.float64) for source in sources]
        exact = (parts[0] / 4 + parts[1] / 2 + parts[2]) / 1.75
        np.testing.assert_array_equal(found[name], exact.astype(np.float32))


@pytest.mark.parametrize("half_life", [0.0, -1.0, float("nan")])
def test_a_half_life_that_is_none(run, tmp_path, half_life):
    with pytest.raises(UserError, match="--half_life: .* is not above 0"):
        average(prefixes(run), str(tmp_path / "mean"), half_life)


def test_a_finetuned_model_keeps_its_task(vocabulary, tmp_path):
    folders = [write_finetuned_run(tmp_path / name, vocabulary) for name in "ab"]
    average(folders, str(tmp_path / "mean"))
    assert open_model(str(tmp_path / "mean")).description.task["labels"] == [
        "no",
        "yes",
    ]


def test_refused_checkpoints(run, vocabulary, tmp_path):
    target = str(tmp_path / "mean")
    deeper = write_run(tmp_path / "deeper", vocabulary, {"num_layers": 3})
    fewer = {n: x for n, x in pretrained_weights(CONFIG).items() if "pooler" not in n}
    less = write_run(tmp_path / "less", vocabulary)
    del fewer["cls/predictions/output_bias"]
    write_checkpoint(f"{less}/model.ckpt", fewer, 20)
    for paths, message in (
        (prefixes(run)[:1], "give --checkpoint twice or more"),
        ([run, prefixes(run)[0], run], r"model.ckpt-\d+ is given twice"),
        (
            [run, deeper],
            r"another model than .*: model.num_layers is 3, not 2; average",
        ),
        ([run, f"{less}/model.ckpt-20"], r"output_bias is missing, in .* of shape \["),
    ):
        with pytest.raises(UserError, match=message) as refused:
            average(paths, target)
        assert "\n" not in str(refused.value)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="full: exists; choose a new folder"):
        average(prefixes(run), str(tmp_path / "full"))
    assert not os.path.exists(target)
