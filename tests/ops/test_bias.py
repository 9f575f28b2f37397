"""GELU and its approximation: values of scipy and TensorFlow, slopes by differences."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops import bias
from tests.helpers import run_mesh


def with_no_bias(activation):
    """A function of one tensor [points]."""

    def function(x):
        zeros = mtf.zeros(x.mesh, x.shape, x.dtype)
        return activation(x, zeros)

    return function


gelu = with_no_bias(bias.gelu)
gelu_tanh = with_no_bias(bias.gelu_tanh)


def values_and_slopes(activation, x, dtype=tf.float32):
    dims = [mtf.Dimension("points", len(x))]

    def build(mesh, tensors):
        given = mtf.cast(tensors["x"], dtype)
        y = activation(given)
        [slopes] = mtf.gradients([mtf.reduce_sum(y)], [given])
        assert y.dtype == slopes.dtype == dtype
        return [mtf.cast(y, tf.float32), mtf.cast(slopes, tf.float32)]

    return run_mesh(build, {"x": (x, dims)})


@pytest.mark.parametrize("activation", [gelu, gelu_tanh])
def test_known_values(activation):
    """gelu(1) = 0.841345; far from 0 it is 0 or x, and its slope 0 or 1."""
    x = np.array([-100, -1, 0, 1, 100], np.float32)
    values, slopes = values_and_slopes(activation, x)
    np.testing.assert_allclose(values, [0, -0.158655, 0, 0.841345, 100], atol=2e-4)
    np.testing.assert_allclose(slopes, [0, -0.083315, 0.5, 1.083315, 1], atol=1e-3)


@pytest.mark.parametrize("activation", [gelu, gelu_tanh])
def test_bfloat16_rounds_only_the_result(activation):
    """Relative error at most half a unit of 8 bits, also where gelu is small."""
    x = np.array([-3, -2.5, -2, -1.5, -1, -0.5, 0.25, 0.75, 2], np.float32)
    expected = values_and_slopes(activation, x)
    result = values_and_slopes(activation, x, tf.bfloat16)
    for value, right in zip(result, expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=2**-8)
