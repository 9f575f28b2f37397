"""What fine-tuning computes before it trains; which runs it trains, in which order."""

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.runs.finetuning import Finetuning, class_weights
from decoupled.runs.saved_run import Scores

DEV = {(1e-5, 0): 60.0, (2e-5, 0): 70.0, (3e-5, 0): 65.0, (2e-5, 1): 72.0}


class Run:
    """Stands for a run that scores what `DEV` says, once it is trained."""

    def __init__(self, key, trained, dev):
        self.key, self.folder = key, str(key)
        self.selecting = bool(dev)
        self._trained, self._dev = trained, dev

    def train(self, features):
        self._trained.append(self.key)

    def scores(self):
        if self.key not in self._trained or self.key not in self._dev:
            return Scores({}, {}, False)
        return Scores({5: {}}, {5: self._dev[self.key]}, True)


class Runs(Finetuning):
    """Makes `Run`s."""

    def __init__(self, rates, seeds, dev=DEV):
        self.rates, self.seeds = rates, seeds
        self._dev, self._made, self.trained = dev, {}, []

    def _run(self, rate, seed):
        made = Run((rate, seed), self.trained, self._dev)
        return self._made.setdefault((rate, seed), made)


def make_grid(rates, seeds, dev=DEV):
    grid = Runs(rates, seeds, dev)
    return grid, grid.trained


def keys(runs):
    return [run.key for run in runs]


def test_every_rate_with_the_first_seed_then_the_best_rate_with_the_others():
    grid, trained = make_grid((1e-5, 2e-5, 3e-5), (0, 1, 2))
    grid._train_runs({})
    assert trained == [(1e-5, 0), (2e-5, 0), (3e-5, 0), (2e-5, 1), (2e-5, 2)]
    assert grid.chosen_rate() == 2e-5
    assert keys(grid.chosen_runs()) == [(2e-5, 0), (2e-5, 1), (2e-5, 2)]
    assert keys(grid.all_runs()) == trained


def test_the_best_run_is_the_best_seed_of_the_chosen_rate():
    grid, _ = make_grid((1e-5, 2e-5), (0, 1))
    grid._train_runs({})
    assert grid.best_run().key == (2e-5, 1)


def test_of_equally_good_rates_the_first_is_chosen():
    grid, _ = make_grid((3e-5, 1e-5), (0,), {(3e-5, 0): 50.0, (1e-5, 0): 50.0})
    grid._train_runs({})
    assert grid.chosen_rate() == 3e-5


def test_one_rate_needs_no_comparison_and_no_dev_file():
    grid, trained = make_grid((4e-5,), (7, 8), {})
    grid._train_runs({})
    assert trained == [(4e-5, 7), (4e-5, 8)]
    assert grid.best_run().key == (4e-5, 7)


def test_no_rate_is_chosen_before_all_are_trained():
    grid, trained = make_grid((1e-5, 2e-5), (0,))
    trained.append((1e-5, 0))
    with pytest.raises(UserError, match=r"\(2e-05, 0\): not complete.*--mode=train"):
        grid.chosen_rate()


def test_no_best_run_is_chosen_before_all_seeds_are_trained():
    grid, trained = make_grid((2e-5,), (0, 1))
    trained.append((2e-5, 0))
    with pytest.raises(UserError, match=r"\(2e-05, 1\): not complete.*--num_runs"):
        grid.best_run()
    trained.append((2e-5, 1))
    assert grid.best_run().key == (2e-5, 1)


def test_every_class_weighs_the_same_in_all():
    weights = class_weights(np.array([0, 0, 0, 2], np.int32), num_labels=3)
    # 4 examples, 2 classes that occur: 4 / (2 * 3) and 4 / (2 * 1).
    assert weights.tolist() == pytest.approx([2 / 3, 0, 2])
    assert weights.dtype == np.float32
