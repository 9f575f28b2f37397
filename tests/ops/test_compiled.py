"""Which tensors get a kernel of their own."""

import subprocess
import sys

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.ops.compiled import compiled, compiled_where_large, row_sums


@compiled_where_large
def sum_and_twice(x, y, factor):
    return x + y, x * factor


def operations(rows):
    """Types of a graph's operations in which [rows, 256] and [256] are given."""
    with tf.Graph().as_default() as graph:
        x, y = tf.zeros([rows, 256]), tf.zeros([256])
        sum_and_twice(x, y, 2.0)
    return {operation.type for operation in graph.get_operations()}


def test_a_large_tensor_has_one_kernel_and_small_ones_have_many():
    """Of 65,536 numbers, in any of the arguments."""
    assert {"PartitionedCall", "StatefulPartitionedCall"} & operations(256)
    assert "Mul" not in operations(256)
    assert {"AddV2", "Mul"} <= operations(255)
    assert not any("Call" in kind for kind in operations(255))


@pytest.mark.parametrize("rows", [1, 300])
def test_values_are_the_same(rows):
    x = np.arange(rows * 256, dtype=np.float32).reshape([rows, 256])
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(sum_and_twice(tf.constant(x), tf.constant(x[0]), 2.0))
    np.testing.assert_array_equal(found[0], x + x[0])
    np.testing.assert_array_equal(found[1], x * 2)


def test_the_function_itself_is_there_for_what_is_compiled_as_a_whole():
    assert sum_and_twice.python_function(3, 4, 5) == (7, 15)


@pytest.mark.parametrize("width", [1, 15, 16, 40, 64, 768])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_sums_of_rows(width, is_compiled):
    x = np.random.default_rng(0).normal(size=(3, 2, width)).astype(np.float32)
    sums = compiled(row_sums) if is_compiled else row_sums
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(sums(tf.constant(x)))
    wanted = x.astype(np.float64).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


KERNELS = """
import os
from decoupled.core.compat import tf
from decoupled.ops.compiled import compile_first_quietly, compiled

compile_first_quietly()
compile_first_quietly()
with tf.Graph().as_default(), tf.Session() as session:
    given = tf.placeholder(tf.float32, [2])
    print(session.run(compiled(tf.square)(given), {given: [2.0, 3.0]}))
os.write(2, b"an error")
"""


def test_the_first_kernel_of_a_process_announces_nothing_and_errors_are_seen():
    done = subprocess.run(
        [sys.executable, "-c", KERNELS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "an error")
    assert done.stdout == "[4. 9.]\n"
