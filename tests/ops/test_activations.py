"""GELU and its approximation: values of scipy and TensorFlow, slopes by differences."""

import numpy as np
import pytest
import tensorflow as tf2
from scipy.special import ndtr

from decoupled.compat import mtf
from decoupled.ops.activations import gelu, gelu_tanh
from tests.helpers import run_mesh

X = np.linspace(-6, 6, 49).astype(np.float32)


def values_and_slopes(activation, x):
    dims = [mtf.Dimension("points", len(x))]

    def build(mesh, tensors):
        y = activation(tensors["x"])
        return [y, *mtf.gradients([mtf.reduce_sum(y)], [tensors["x"]])]

    return run_mesh(build, {"x": (x, dims)})


def test_gelu_is_x_times_the_normal_distribution():
    values, slopes = values_and_slopes(gelu, X)
    np.testing.assert_allclose(values, X * ndtr(X), atol=1e-6)
    density = np.exp(-0.5 * X**2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(slopes, ndtr(X) + X * density, atol=1e-6)


def test_gelu_tanh_is_tensorflow_s_approximation():
    values, slopes = values_and_slopes(gelu_tanh, X)
    x = tf2.constant(X)
    with tf2.GradientTape() as tape:
        tape.watch(x)
        expected = tf2.nn.gelu(x, approximate=True)
    np.testing.assert_allclose(values, expected, atol=1e-6)
    np.testing.assert_allclose(slopes, tape.gradient(expected, x), atol=1e-5)


def test_the_two_differ_by_less_than_a_thousandth():
    exact, _ = values_and_slopes(gelu, X)
    approximate, _ = values_and_slopes(gelu_tanh, X)
    assert 1e-4 < np.abs(exact - approximate).max() < 1e-3


@pytest.mark.parametrize("activation", [gelu, gelu_tanh])
def test_gradient_behind_a_pending_all_reduce(activation):
    """A contraction over a split dimension leaves its sum to be done."""
    inner, outer = mtf.Dimension("inner", 4), mtf.Dimension("outer", 6)
    x = np.linspace(-1, 1, 4).astype(np.float32)
    kernel = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)

    def build(mesh, tensors):
        y = activation(tensors["x"])
        loss = mtf.reduce_sum(mtf.einsum([y, tensors["kernel"]], output_shape=[outer]))
        return mtf.gradients([loss], [tensors["x"]])

    inputs = {"x": (x, [inner]), "kernel": (kernel, [inner, outer])}
    [whole] = run_mesh(build, inputs)
    [split] = run_mesh(build, inputs, "m:2", "outer:m")
    np.testing.assert_allclose(split, whole, rtol=1e-5)
