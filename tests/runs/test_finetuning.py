"""What fine-tuning computes before it trains; which runs it trains, in which order."""

from types import SimpleNamespace

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.data.array_input_fn import training_batches
from decoupled.data.packing import Packing
from decoupled.runs import finetuning
from decoupled.runs.finetuning import class_weights
from decoupled.runs.saved_run import Scores
from decoupled.runs.task_data import TaskData
from decoupled.tasks.task import loss_scale

DEV = {(1e-5, 0): 60.0, (2e-5, 0): 70.0, (3e-5, 0): 65.0, (2e-5, 1): 72.0}


class Run:
    """Stands for a run that scores what `DEV` says, once it is trained."""

    def __init__(self, key, trained, dev):
        self.key, self.folder = key, str(key)
        self._trained, self._dev = trained, dev

    def train(self, features):
        self._trained.append(self.key)

    def scores(self):
        if self.key not in self._trained or self.key not in self._dev:
            return Scores({}, {}, False)
        return Scores({5: {}}, {5: self._dev[self.key]}, True)


@pytest.fixture
def make_grid(monkeypatch):
    """Makes a plan, and the list to which each run that is trained is added."""
    made = {}

    def run_of(plan, rate, seed):
        run = Run((rate, seed), plan.trained, plan.dev)
        return made.setdefault((rate, seed), run)

    def make(rates, seeds, dev=DEV):
        plan = SimpleNamespace(
            rates=rates, seeds=seeds, dev=dev, trained=[], selecting=bool(dev)
        )
        return plan, plan.trained

    monkeypatch.setattr(finetuning, "run_of", run_of)
    return make


def keys(runs):
    return [run.key for run in runs]


def test_every_rate_with_the_first_seed_then_the_best_rate_with_the_others(make_grid):
    grid, trained = make_grid((1e-5, 2e-5, 3e-5), (0, 1, 2))
    finetuning.train_runs(grid, {})
    assert trained == [(1e-5, 0), (2e-5, 0), (3e-5, 0), (2e-5, 1), (2e-5, 2)]
    assert finetuning.chosen_rate(grid) == 2e-5
    assert keys(finetuning.chosen_runs(grid)) == [(2e-5, 0), (2e-5, 1), (2e-5, 2)]
    assert keys(finetuning.all_runs(grid)) == trained


def test_training_says_the_languages_of_its_examples(make_grid, monkeypatch, capsys):
    plan, _ = make_grid((1e-5,), (0,))
    task = SimpleNamespace(training_languages=("en", "zh"))
    vocabulary = SimpleNamespace(pairs=SimpleNamespace(second_type=1))
    plan.data, plan.examples = TaskData(task, vocabulary, "cache"), range(181)
    plan.config = SimpleNamespace(finetuning=SimpleNamespace(class_weights="none"))
    features = {"example_index": np.zeros(451, np.int32)}
    monkeypatch.setattr(plan.data, "features", lambda *_, **__: features)
    monkeypatch.setattr(plan.data, "for_graph", lambda features: features)
    monkeypatch.setattr(finetuning, "steps_of", lambda *_: 20)
    finetuning.train(plan)
    expected = "181 examples (English, zh) in 451 windows, 20 steps\n"
    assert capsys.readouterr().out == expected


def test_the_best_run_is_the_best_seed_of_the_chosen_rate(make_grid):
    grid, _ = make_grid((1e-5, 2e-5), (0, 1))
    finetuning.train_runs(grid, {})
    assert finetuning.best_run(grid).key == (2e-5, 1)


def test_of_equally_good_rates_the_first_is_chosen(make_grid):
    grid, _ = make_grid((3e-5, 1e-5), (0,), {(3e-5, 0): 50.0, (1e-5, 0): 50.0})
    finetuning.train_runs(grid, {})
    assert finetuning.chosen_rate(grid) == 3e-5


def test_one_rate_needs_no_comparison_and_no_dev_file(make_grid):
    grid, trained = make_grid((4e-5,), (7, 8), {})
    finetuning.train_runs(grid, {})
    assert trained == [(4e-5, 7), (4e-5, 8)]
    assert finetuning.best_run(grid).key == (4e-5, 7)


def test_no_rate_is_chosen_before_all_are_trained(make_grid):
    grid, trained = make_grid((1e-5, 2e-5), (0,))
    trained.append((1e-5, 0))
    with pytest.raises(UserError, match=r"\(2e-05, 0\): not complete.*--mode=train"):
        finetuning.chosen_rate(grid)


def test_no_best_run_is_chosen_before_all_seeds_are_trained(make_grid):
    grid, trained = make_grid((2e-5,), (0, 1))
    trained.append((2e-5, 0))
    with pytest.raises(UserError, match=r"\(2e-05, 1\): not complete.*--num_runs"):
        finetuning.best_run(grid)
    trained.append((2e-5, 1))
    assert finetuning.best_run(grid).key == (2e-5, 1)


def test_every_class_weighs_the_same_in_all():
    weights = class_weights(np.array([0, 0, 0, 2], np.int32), num_labels=3)
    # 4 examples, 2 classes that occur: 4 / (2 * 3) and 4 / (2 * 1).
    assert weights.tolist() == pytest.approx([2 / 3, 0, 2])
    assert weights.dtype == np.float32


def test_every_class_weighs_the_same_in_the_loss_of_an_epoch():
    """Also a class that most batches lack."""
    examples, batch = 320, 8
    labels = np.zeros(examples, np.int32)
    labels[::32] = 1
    used = {
        "input_mask": np.ones([examples, 4], np.int32),
        "label_ids": labels,
        "example_weights": class_weights(labels, 2)[labels],
    }
    total = np.zeros(2)
    with tf.Graph().as_default(), tf.Session() as session:
        placeholder = tf.placeholder(tf.float32, [batch, 1])
        scales = loss_scale(placeholder)
        for part in training_batches(used, batch, 0, 0, Packing(batch, 4, 1, 40)):
            weights = part["example_weights"]
            scale = session.run(scales, {placeholder: weights})[0]
            for label in (0, 1):
                total[label] += scale * weights[part["label_ids"] == label].sum()
    assert total[0] == pytest.approx(total[1], rel=1e-5)
