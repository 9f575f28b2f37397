"""Batches that go by way of files are those that Python would make."""

import os

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.data import array_input_fn
from decoupled.data.array_input_fn import (
    evaluation_input_fn,
    recorded_training_input_fn,
    training_batches,
)
from decoupled.data.packing import Packing

EXAMPLES, BATCH, SEED = 11, 4, 5
ARRAYS = {
    "input_word_ids": np.arange(EXAMPLES * 6, dtype=np.int32).reshape(EXAMPLES, 6),
    "input_mask": np.ones((EXAMPLES, 6), np.int32),
    "example_weights": np.linspace(0, 1, EXAMPLES, dtype=np.float32),
}
PACKING = Packing(BATCH, 6, 1, steps=10)


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(array_input_fn, "PER_FILE", 3)


def values(input_fn):
    """All batches, from a graph as TPUEstimator's; and the graph's operations."""
    with tf.Graph().as_default() as graph:
        batch = tf.data.make_one_shot_iterator(input_fn()).get_next()
        found = []
        with tf.Session() as session:
            try:
                while True:
                    found.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                pass
    return found, graph.as_graph_def()


def operation_types(graph_def):
    functions = (f.node_def for f in graph_def.library.function)
    return {node.op for nodes in (graph_def.node, *functions) for node in nodes}


def untold(items, description):
    return iter(items)


def recorded(folder, start, end=10, track=untold, arrays=ARRAYS, seed=SEED):
    steps = range(start, end)
    return recorded_training_input_fn(
        arrays, BATCH, seed, steps, PACKING, str(folder), track
    )


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert set(one) == set(other)
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("start", [0, 2, 3, 7])
def test_training_goes_on_from_any_step(start, tmp_path):
    found, graph_def = values(recorded(tmp_path / "batches", start))
    made = list(training_batches(ARRAYS, BATCH, SEED, start, PACKING))
    assert len(made) == 10 - start
    assert_same(found, made)
    assert "PyFunc" not in operation_types(graph_def)


def test_files_that_are_there_are_not_written_again(tmp_path):
    written = []

    def track(items, description):
        written.append(list(items))
        return iter(items)

    recorded(tmp_path, 4, track=track)
    recorded(tmp_path, 0, track=track)
    recorded(tmp_path, 7, track=track)
    assert written == [[1, 2, 3], [0], []]
    (folder,) = tmp_path.iterdir()
    assert sorted(os.listdir(folder)) == [f"batches-{n:05d}" for n in range(4)]


@pytest.mark.parametrize("changed", ["arrays", "seed"])
def test_batches_of_a_run_that_came_to_nothing_are_not_taken_for_another(
    tmp_path, changed
):
    """A folder in which nothing was saved may become another run's."""
    fewer = {name: array[1:] for name, array in ARRAYS.items()}
    other = {"arrays": fewer} if changed == "arrays" else {"seed": SEED + 1}
    recorded(tmp_path, 0)
    found, _ = values(recorded(tmp_path, 0, **other))
    settings = {"arrays": ARRAYS, "seed": SEED, **other}
    made = training_batches(settings["arrays"], BATCH, settings["seed"], 0, PACKING)
    assert_same(found, list(made))


def test_a_kill_leaves_no_file_that_is_not_whole(tmp_path, monkeypatch):
    def killed(batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(array_input_fn, "_example", killed)
    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path, 0)
    (folder,) = tmp_path.iterdir()
    assert os.listdir(folder) == []


def test_data_sets_to_predict_are_the_same_with_their_padding(tmp_path):
    other = {name: array[:5] for name, array in ARRAYS.items()}
    parts = [(a, [[n] for n in range(len(a["input_mask"]))]) for a in (ARRAYS, other)]
    path = str(tmp_path / "batches" / "evaluation")
    found, graph_def = values(evaluation_input_fn(parts, PACKING, record_to=path))
    expected, by_python = values(evaluation_input_fn(parts, PACKING))
    assert_same(found, expected)
    assert len(found) == 4
    assert "PyFunc" not in operation_types(graph_def)
    # What a host without Python could not run.
    assert "PyFunc" in operation_types(by_python)
