"""Softmax against TensorFlow's, over a whole and over a split dimension."""

import numpy as np
import pytest
import tensorflow as tf2

from decoupled.core.compat import mtf, tf
from decoupled.ops.softmax import softmax
from tests.helpers import run_mesh

ROWS, COLUMNS = mtf.Dimension("rows", 4), mtf.Dimension("columns", 6)
MESHES = [("all:1", ""), ("m:2", "columns:m"), ("d:2;m:2", "rows:d;columns:m")]


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES)
@pytest.mark.parametrize("dtype, tolerance", [(tf.float32, 1e-6), (tf.bfloat16, 1e-2)])
def test_values_and_gradient(mesh_shape, layout_rules, dtype, tolerance):
    generator = np.random.default_rng(0)
    x, weights = generator.normal(size=(2, 4, 6)).astype(np.float32) * 3
    x[0, 0] = 1e4

    def build(mesh, tensors):
        y = mtf.cast(softmax(mtf.cast(tensors["x"], dtype)), tf.float32)
        loss = mtf.reduce_sum(y * tensors["weights"])
        return [y, *mtf.gradients([loss], [tensors["x"]])]

    inputs = {"x": (x, [ROWS, COLUMNS]), "weights": (weights, [ROWS, COLUMNS])}
    y, gradient = run_mesh(build, inputs, mesh_shape, layout_rules)
    rounded = tf2.constant(tf2.cast(tf2.cast(x, dtype), tf2.float32))
    with tf2.GradientTape() as tape:
        tape.watch(rounded)
        expected = tf2.nn.softmax(rounded)
        loss = tf2.reduce_sum(expected * weights)
    np.testing.assert_allclose(y, expected, atol=tolerance)
    np.testing.assert_allclose(
        gradient, tape.gradient(loss, rounded), atol=5 * tolerance
    )


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:2])
def test_bfloat16_rounds_only_the_result(mesh_shape, layout_rules):
    """Of 512 equal terms a bfloat16 sum would lose half; 1 / 512 has no rounding."""
    wide = mtf.Dimension("columns", 512)

    def build(mesh, tensors):
        return [mtf.cast(softmax(mtf.cast(tensors["x"], tf.bfloat16)), tf.float32)]

    inputs = {"x": (np.full([4, 512], 3.0, np.float32), [ROWS, wide])}
    [y] = run_mesh(build, inputs, mesh_shape, layout_rules)
    np.testing.assert_array_equal(y, np.full([4, 512], 1 / 512))


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES)
def test_masked_scores_get_nothing(mesh_shape, layout_rules):
    """Attention adds -1e9 to padding; a row of padding alone stays finite."""
    x = np.zeros([4, 6], np.float32)
    x[0, 2:] = -1e9
    x[1, 3:] = -1e9
    x[2] = -1e9

    def build(mesh, tensors):
        y = softmax(tensors["x"])
        loss = mtf.reduce_sum(mtf.square(y))
        return [y, *mtf.gradients([loss], [tensors["x"]])]

    inputs = {"x": (x, [ROWS, COLUMNS])}
    y, gradient = run_mesh(build, inputs, mesh_shape, layout_rules)
    expected = np.full([4, 6], 1 / 6)
    expected[0] = [1 / 2] * 2 + [0] * 4
    expected[1] = [1 / 3] * 3 + [0] * 3
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, np.zeros([4, 6]), atol=1e-6)
