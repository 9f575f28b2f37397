"""Layer normalisation and softmax against NumPy, on meshes too."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.normalization import layer_norm, softmax
from tests.helpers import mesh_impl, run_mesh
from tests.ops.simd_on_cpu import OneCore

ROWS, COLUMNS = mtf.Dimension("rows", 4), mtf.Dimension("columns", 6)
MESHES = [
    ("all:1", ""),
    ("m:2", "columns:m"),
    ("m:2", "rows:m"),
    ("d:2;m:2", "rows:d;columns:m"),
]
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(4, 6)).astype(np.float32) * 2 + 1
GAMMA, BETA = GENERATOR.normal(size=(2, 6)).astype(np.float32)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:2])
def test_a_large_mean_costs_no_digits_of_the_variance(mesh_shape, layout_rules):
    """The mean of squares less the squared mean would be 0 here, or negative."""
    x = np.tile([4095.0, 4097.0], [4, 3]).astype(np.float32)

    def build(mesh, tensors):
        one = mtf.ones(mesh, mtf.Shape([COLUMNS]))
        return [layer_norm(tensors["x"], one, mtf.zeros_like(one), 1e-6)]

    inputs = {"x": (x, [ROWS, COLUMNS])}
    [y] = run_mesh(build, inputs, mesh_shape, layout_rules)
    np.testing.assert_allclose(y, np.tile([-1.0, 1.0], [4, 3]), rtol=1e-6)


def test_layer_norm_of_bfloat16_in_programs_of_xla():
    """Also of rows whose mean is many times their deviation."""
    wide = mtf.Dimension("columns", 768)
    x = GENERATOR.normal(size=(4, 768)) + np.array([[0], [1], [-8], [60]])
    x = tf.cast(tf.cast(x, tf.bfloat16), tf.float32).numpy()

    def build(mesh, tensors):
        one = mtf.ones(mesh, mtf.Shape([wide]))
        x = mtf.cast(tensors["x"], tf.bfloat16)
        y = mtf.cast(layer_norm(x, one, mtf.zeros_like(one), 1e-6), tf.float32)
        loss = mtf.reduce_sum(mtf.square(y - tensors["y"]))
        return [y, mtf.cast(mtf.gradients([loss], [x])[0], tf.float32)]

    def one_core(shape, layout):
        return OneCore(mtf.convert_to_shape(shape), mtf.convert_to_layout_rules(layout))

    inputs = {"x": (x, [ROWS, wide]), "y": (np.roll(x, 1, axis=1), [ROWS, wide])}
    y, gradient = run_mesh(build, inputs, make_impl=one_core)
    _, expected = run_mesh(build, inputs)
    x = x.astype(np.float64)
    normal = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    np.testing.assert_allclose(y, normal, rtol=2**-8, atol=1e-4)
    np.testing.assert_allclose(
        gradient, expected, rtol=2**-6, atol=2**-8 * np.abs(expected).max()
    )


def test_the_graph_rewriter_sees_no_instance_norm():
    """Its pattern begins with SquaredDifference, and can end the process."""
    with tf.Graph().as_default() as tensorflow_graph:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        x = mtf.import_tf_tensor(mesh, X, mtf.Shape([ROWS, COLUMNS]))
        gamma = mtf.import_tf_tensor(mesh, GAMMA, mtf.Shape([COLUMNS]))
        layer_norm(x, gamma, gamma, 1e-3)
        mtf.Lowering(graph, {mesh: mesh_impl()}, autostack=False)
        kinds = {operation.type for operation in tensorflow_graph.get_operations()}
    assert "Rsqrt" in kinds
    assert "SquaredDifference" not in kinds


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
