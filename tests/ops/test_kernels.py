"""Which tensors get a separate kernel; sums over rows and along them."""

import types

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.core.release import tf as tf2
from decoupled.ops.kernels import (
    compiled_where_large,
    sums_over_rows,
)
from tests.helpers import mesh_impl


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


# One of explicit devices, and one that is none: as a TPU's, with a plain slicewise.
REDUCING = types.SimpleNamespace(slicewise=lambda function, *slices: function(*slices))
MESHES = {"products": mesh_impl("all:1", ""), "reductions": REDUCING}


def run(mesh, function, *arrays):
    inputs = [tf2.constant(array) for array in arrays]
    if mesh is not REDUCING:
        inputs = [mesh.LaidOutTensor([tensor]) for tensor in inputs]
    result = function(mesh, *inputs)
    return result if mesh is REDUCING else result.tensor_list[0]


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_bfloat16_rounds_only_the_sum(mesh):
    """Of 4,096 ones, and of as many random numbers, within half a unit of 8 bits;
    adding in bfloat16 would stop at 256."""
    x = np.ones([4096, 3], np.float32)
    x[:, 1:] = np.random.default_rng(0).uniform(size=[4096, 2])
    inputs = tf2.cast(x, tf2.bfloat16)
    result = run(mesh, sums_over_rows, inputs)
    assert result.dtype == tf2.bfloat16
    expected = np.asarray(tf2.cast(inputs, tf2.float64)).sum(0)
    np.testing.assert_allclose(tf2.cast(result, tf2.float64), expected, rtol=2**-8)
