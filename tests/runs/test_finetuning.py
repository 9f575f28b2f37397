"""What fine-tuning computes before it trains; which runs it trains, in which order."""

import dataclasses
import itertools

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.data.array_input_fn import training_order
from decoupled.runs.finetuning import Grid, class_weights
from decoupled.runs.finetuning_run import training_lengths, training_packing
from decoupled.runs.saved_run import Scores
from decoupled.tasks.tagging import Tagging
from decoupled.training import lengths as lengths_module
from tests.helpers import schedule, tiny_training
from tests.training.runs import ONE_DEVICE, graph_config
from tests.training.test_lengths import LENGTH, TAGS

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


def make_grid(rates, seeds, dev=DEV):
    trained, runs = [], {}

    def make_run(rate, seed):
        return runs.setdefault((rate, seed), Run((rate, seed), trained, dev))

    return Grid(rates, seeds, make_run), trained


def keys(runs):
    return [run.key for run in runs]


def test_every_rate_with_the_first_seed_then_the_best_rate_with_the_others():
    grid, trained = make_grid((1e-5, 2e-5, 3e-5), (0, 1, 2))
    grid.train({})
    assert trained == [(1e-5, 0), (2e-5, 0), (3e-5, 0), (2e-5, 1), (2e-5, 2)]
    assert grid.chosen_rate() == 2e-5
    assert keys(grid.chosen_runs()) == [(2e-5, 0), (2e-5, 1), (2e-5, 2)]
    assert keys(grid.all_runs()) == trained


def test_the_best_run_is_the_best_seed_of_the_chosen_rate():
    grid, _ = make_grid((1e-5, 2e-5), (0, 1))
    grid.train({})
    assert grid.best_run().key == (2e-5, 1)


def test_of_equally_good_rates_the_first_is_chosen():
    grid, _ = make_grid((3e-5, 1e-5), (0,), {(3e-5, 0): 50.0, (1e-5, 0): 50.0})
    grid.train({})
    assert grid.chosen_rate() == 3e-5


def test_one_rate_needs_no_comparison_and_no_dev_file():
    grid, trained = make_grid((4e-5,), (7, 8), {})
    grid.train({})
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


def lengths_of(steps, graphs=1, sizes=(3, 3, 5, 7, 9, 12, 17, 18)):
    """Of a run with batches of two, in which a graph is as dear as 40 tokens a row."""
    graph = graph_config(task=TAGS, schedule=schedule(steps, 0))
    training = tiny_training(batch_size=2)
    return training_lengths(graph, np.array(sizes), training, graphs)


def test_a_run_has_more_lengths_the_longer_it_is(monkeypatch):
    monkeypatch.setattr(
        "decoupled.runs.finetuning_run.training_tokens_per_length",
        lambda model, steps, graphs: 80 * graphs,
    )
    monkeypatch.setattr("decoupled.data.array_input_fn._GROUPS_PER_EPOCH", 1)
    # An epoch's four batches have at most 3, 7, 12 and 18 tokens.
    assert lengths_of(steps=4) == (LENGTH,)
    assert lengths_of(steps=8) == (8, LENGTH)
    assert lengths_of(steps=80) == (8, 16, LENGTH)
    # Each evaluation is followed by a graph of its own.
    assert lengths_of(steps=8, graphs=2) == (LENGTH,)
    # Nothing is longer than the rows, and nothing shorter than a run's longest.
    assert lengths_of(steps=80, sizes=[5] * 8) == (8,)
    assert lengths_of(steps=1, sizes=[*[5] * 7, 17])[-1] == LENGTH


def packing_of(steps=60, on_tpu=False, accumulation=1, **mesh):
    """Of a run with batches of 8 and examples of 3 to 18 tokens."""
    placed = dataclasses.replace(ONE_DEVICE, **mesh)
    graph = graph_config(task=TAGS, schedule=schedule(steps, 0), mesh=placed)
    training = tiny_training(batch_size=8, gradient_accumulation=accumulation)
    sizes = np.random.default_rng(0).integers(3, 19, 100)
    return training_packing(graph, sizes, training, on_tpu)


def test_packed_batches_have_a_shape_that_the_mesh_can_split():
    plain = packing_of()
    # 8 examples of 10.5 tokens.
    assert 84 <= plain.rows * plain.length <= 104 and plain.length % 8 == 0
    split = packing_of(mesh_shape="d:2;s:3", layout_rules="batch:d;sequence:s")
    assert split.rows % 2 == 0 and split.length % 24 == 0
    assert packing_of(accumulation=4).rows % 4 == 0
    on_tpu = packing_of(on_tpu=True)
    assert (on_tpu.rows, on_tpu.length) == (1, 128)


# The cores of this machine train on a token of `tiny_model` in a second, build a length
# in ten, and skip it in 40 steps in as long; a GPU trains ten times as fast.
MACHINE = {
    "_FLOPS_BESIDE_PRODUCTS": 904,
    "_FLOPS_PER_TRAINING_GRAPH": 10 * (2 * (4 * 16 * 16 + 2 * 16 * 32) + 904),
    "_STEPS_PER_GRAPH": 40,
    "_GPU_SPEED": 10,
}


def lengths_on(gpus, monkeypatch, *run):
    """`training_lengths` of a run on a host with these GPUs."""
    for name, value in MACHINE.items():
        monkeypatch.setattr(lengths_module, name, value)
    monkeypatch.setattr(
        lengths_module.tf.config, "list_physical_devices", lambda kind: gpus
    )
    return training_lengths(*run)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_lengths_of_a_run_take_less_time(monkeypatch, seed):
    longest, steps, graphs, batch_size = 50, 80, 3, 2
    tokens = np.random.default_rng(seed).geometric(0.06, 60)
    sizes = np.minimum(2 + tokens, longest)
    task = Tagging("tags", ("A", "B", "C"), longest, 0.0, 0.0)
    graph = graph_config(task=task, schedule=schedule(steps, 0))
    order = training_order(len(sizes), batch_size, graph.seed, 0, sizes)
    batches = [sizes[rows].max() for rows in itertools.islice(order, steps)]
    run = graph, sizes, tiny_training(batch_size=batch_size), graphs

    def seconds(chosen, tokens_per_second):
        padded = np.array(chosen)[np.searchsorted(chosen, batches)]
        training = batch_size * padded.sum() / tokens_per_second
        return training + 10 * (graphs + steps / 40) * len(chosen)

    def least(tokens_per_second):
        possible = [*range(8, longest, 8), longest]
        every_choice = itertools.chain.from_iterable(
            itertools.combinations(possible, n + 1) for n in range(len(possible))
        )
        fitting = [chosen for chosen in every_choice if chosen[-1] >= sizes.max()]
        return min(seconds(chosen, tokens_per_second) for chosen in fitting)

    on_cores, on_gpu = (lengths_on(gpus, monkeypatch, *run) for gpus in ([], ["GPU"]))
    assert seconds(on_cores, 1) == pytest.approx(least(1))
    assert seconds(on_gpu, 10) == pytest.approx(least(10))
    # What building takes weighs more where training is fast.
    assert 1 < len(on_gpu) < len(on_cores)
