"""Layer norm against Keras', over a whole and over a split dimension."""

import numpy as np
import pytest
import tensorflow as tf2

from decoupled.compat import mtf, tf
from decoupled.ops.layer_norm import layer_norm
from tests.helpers import mesh_impl, run_mesh

ROWS, COLUMNS = mtf.Dimension("rows", 4), mtf.Dimension("columns", 6)
MESHES = [
    ("all:1", ""),
    ("m:2", "columns:m"),
    ("m:2", "rows:m"),
    ("d:2;m:2", "rows:d;columns:m"),
]
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(4, 6)).astype(np.float32) * 2 + 1
WEIGHTS = GENERATOR.normal(size=(4, 6)).astype(np.float32)
GAMMA, BETA = GENERATOR.normal(size=(2, 6)).astype(np.float32)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES)
@pytest.mark.parametrize("dtype, tolerance", [(tf.float32, 1e-5), (tf.bfloat16, 5e-2)])
def test_values_and_gradients(mesh_shape, layout_rules, dtype, tolerance):
    def build(mesh, tensors):
        x = mtf.cast(tensors["x"], dtype)
        y = layer_norm(x, tensors["gamma"], tensors["beta"], 1e-3)
        loss = mtf.reduce_sum(mtf.cast(y, tf.float32) * tensors["weights"])
        given = [tensors[name] for name in ("x", "gamma", "beta")]
        return [mtf.cast(y, tf.float32), *mtf.gradients([loss], given)]

    inputs = {
        "x": (X, [ROWS, COLUMNS]),
        "weights": (WEIGHTS, [ROWS, COLUMNS]),
        "gamma": (GAMMA, [COLUMNS]),
        "beta": (BETA, [COLUMNS]),
    }
    found = run_mesh(build, inputs, mesh_shape, layout_rules)

    keras = tf2.keras.layers.LayerNormalization(epsilon=1e-3)
    keras.build(X.shape)
    keras.set_weights([GAMMA, BETA])
    x = tf2.constant(X)
    with tf2.GradientTape() as tape:
        tape.watch(x)
        y = keras(x)
        loss = tf2.reduce_sum(y * WEIGHTS)
    expected = [y, *tape.gradient(loss, [x, keras.gamma, keras.beta])]
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, atol=tolerance, rtol=tolerance)


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
