"""Sums within slices, by products and by reductions."""

import types

import numpy as np
import pytest
import tensorflow as tf2

from decoupled.ops.sums import sums_along_rows, sums_over_rows
from tests.helpers import mesh_impl

# One of explicit devices, and one that is none: as a TPU's, with a plain slicewise.
REDUCING = types.SimpleNamespace(slicewise=lambda function, *slices: function(*slices))
MESHES = {"products": mesh_impl("all:1", ""), "reductions": REDUCING}


def run(mesh, function, *arrays):
    given = [tf2.constant(array) for array in arrays]
    if mesh is not REDUCING:
        given = [mesh.LaidOutTensor([tensor]) for tensor in given]
    found = function(mesh, *given)
    return found if mesh is REDUCING else found.tensor_list[0]


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7), (1, 1)])
def test_over_rows(mesh, shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = run(mesh, sums_over_rows, x)
    np.testing.assert_allclose(found, x.reshape([-1, shape[-1]]).sum(0), rtol=1e-5)


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7)])
def test_along_rows(mesh, shape):
    generator = np.random.default_rng(0)
    x = generator.normal(size=shape).astype(np.float32)
    weights = generator.normal(size=shape[-1:]).astype(np.float32)
    found = run(mesh, sums_along_rows, x, weights)
    wanted = (x * weights).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_bfloat16_rounds_only_the_sum(mesh):
    """Of 4,096 ones, and of as many random numbers, within half a unit of 8 bits;
    adding in bfloat16 would stop at 256."""
    x = np.ones([4096, 3], np.float32)
    x[:, 1:] = np.random.default_rng(0).uniform(size=[4096, 2])
    given = tf2.cast(x, tf2.bfloat16)
    found = run(mesh, sums_over_rows, given)
    assert found.dtype == tf2.bfloat16
    wanted = np.asarray(tf2.cast(given, tf2.float64)).sum(0)
    np.testing.assert_allclose(tf2.cast(found, tf2.float64), wanted, rtol=2**-8)
