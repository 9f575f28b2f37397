"""Batches that go by way of files are those that Python would make."""

import itertools

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.data.array_input_fn import (
    evaluation_batches,
    evaluation_input_fn,
    record_batches,
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


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert set(one) == set(other)
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("skipped", [0, 3])
def test_training_goes_on_from_any_step(skipped, tmp_path):
    path = str(tmp_path / "batches" / "training")
    made = list(training_batches(ARRAYS, BATCH, SEED, 2, PACKING))
    input_fn_after = record_batches(path, iter(made))
    read, graph_def = values(input_fn_after(skipped))
    assert len(made) == 8
    assert_same(read, made[skipped:])
    assert "PyFunc" not in operation_types(graph_def)


def test_a_kill_leaves_no_file_that_is_not_whole(tmp_path):
    def killed():
        yield from itertools.islice(
            training_batches(ARRAYS, BATCH, SEED, 0, PACKING), 3
        )
        raise KeyboardInterrupt

    path = tmp_path / "batches" / "training"
    with pytest.raises(KeyboardInterrupt):
        record_batches(str(path), killed())
    assert list(path.parent.iterdir()) == []


def test_data_sets_to_predict_are_the_same_with_their_padding(tmp_path):
    other = {name: array[:5] for name, array in ARRAYS.items()}
    parts = [(a, [[n] for n in range(len(a["input_mask"]))]) for a in (ARRAYS, other)]
    path = str(tmp_path / "batches" / "evaluation")
    found, graph_def = values(
        record_batches(path, evaluation_batches(parts, PACKING))(0)
    )
    expected, by_python = values(evaluation_input_fn(parts, PACKING))
    assert_same(found, expected)
    assert len(found) == 4
    assert "PyFunc" not in operation_types(graph_def)
    # What a host without Python could not run.
    assert "PyFunc" in operation_types(by_python)
