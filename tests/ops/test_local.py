"""What operations share: parts of a dimension, and nodes made once for a graph."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.core.compat import tf
from decoupled.core.release import tf as tf2
from decoupled.ops.local import (
    local_index,
    ones,
    reshape,
)


@given(
    parts=st.integers(1, 5),
    size=st.integers(1, 7),
    ids=st.lists(st.integers(-3, 40), min_size=1, max_size=6),
)
def test_places_belong_to_one_part_and_others_to_none(parts, size, ids):
    total = parts * size
    result = [
        [x.numpy() for x in local_index(tf2.constant(ids), part, size, total)]
        for part in range(parts)
    ]
    for column, place in enumerate(ids):
        owners = [part for part in range(parts) if result[part][1][column]]
        indices = [index[column] for index, _ in result]
        if 0 <= place < total:
            assert owners == [place // size]
            assert indices[owners[0]] == place % size
            assert all(0 <= index < size for index in indices)
        else:
            # A gather from a part refuses it, whichever part it is.
            assert owners == []
            assert set(indices) == {place}


VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def run(*tensors):
    with tf.Session() as session:
        return session.run(tensors)


def test_what_waits_for_something_is_not_shared_with_what_does_not(graph):
    x, signal = tf.constant(VALUES), tf.constant(0)
    free = reshape(x, [24])
    with tf.control_dependencies([signal]):
        waiting = reshape(x, [24])
        assert reshape(x, [24]) is waiting
    assert free is not waiting and reshape(x, [24]) is free
    # TensorFlow leaves out what an input waits for already.
    shape = waiting.op.inputs[1].op
    assert signal.op in shape.control_inputs
    assert not free.op.control_inputs and not free.op.inputs[1].op.control_inputs


def test_a_loop_has_nodes_of_its_own(graph):
    x = tf.constant(VALUES)

    def body(step, total):
        return step + 1, total + tf.reduce_sum(reshape(x, [24]) * ones([24], x.dtype))

    loop = tf.while_loop(lambda step, _: step < 3, body, [0, 0.0])
    # Behind the loop, a node of its inside would have no value.
    behind = reshape(x, [24]) + ones([24], tf.float32)
    (steps, total), values = run(loop, behind)
    assert steps == 3 and total == 3 * VALUES.sum()
    np.testing.assert_array_equal(values, VALUES.reshape(24) + 1)
