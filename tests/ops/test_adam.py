"""AdamW against a numpy version of Loshchilov and Hutter's algorithm 2."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.adam import AdamUpdate, step_scalars
from tests.helpers import SESSION_CONFIG, adamw_step, mesh_impl, operations_before

ROWS, COLUMNS = mtf.Dimension("rows", 6), mtf.Dimension("columns", 4)
SETTINGS = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}
SCALE, STEPS = 0.5, 20
START = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
RATES = np.linspace(0.08, 0.01, STEPS).astype(np.float32)


def reference(gradients, weight_decay):
    w, m, v = START.astype(np.float64), np.zeros((6, 4)), np.zeros((6, 4))
    settings = {**SETTINGS, "weight_decay": weight_decay}
    for step, (rate, g) in enumerate(zip(RATES, gradients, strict=True), start=1):
        w, m, v = adamw_step(w, m, v, SCALE * g, step, rate, **settings)
    return w, m, v


class NarrowTraining:
    """20 steps with bfloat16 gradients that do not depend on the weights.

    Args:
      mesh_shape, layout_rules: of the mesh. is_decayed: of the weights.
    """

    GRADIENTS = np.random.default_rng(3).normal(size=(STEPS, 6, 4))
    GRADIENTS = GRADIENTS.astype(tf.bfloat16.as_numpy_dtype)

    def __init__(self, mesh_shape, layout_rules, is_decayed):
        self._graph = tf.Graph()
        with self._graph.as_default():
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            dims = [ROWS, COLUMNS]
            places = [
                variable(mesh, name, dims, value).operation
                for name, value in (("weights", START), ("m", 0), ("v", 0))
            ]
            self._fed = tf.placeholder(tf.bfloat16, [6, 4])
            gradient = mtf.import_tf_tensor(mesh, self._fed, mtf.Shape(dims))
            self._numbers = [tf.placeholder(tf.float32, []) for _ in range(2)]
            rate, step = (
                mtf.import_tf_tensor(mesh, x, mtf.Shape([])) for x in self._numbers
            )
            update = AdamUpdate(
                *places,
                # As the optimizer gets the gradient of a matrix.
                mtf.cast(gradient, tf.float32),
                mtf.constant(mesh, SCALE, dtype=tf.float32),
                step_scalars(rate, step, **SETTINGS),
                is_decayed,
            )
            implementation = mesh_impl(mesh_shape, layout_rules)
            lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
            self.update = lowering.lowered_operation(update)
            self._to_slices = lowering.copy_masters_to_slices()
            self._to_masters = lowering.copy_slices_to_masters()
            self._initialize = tf.global_variables_initializer()
            self._values = tf.global_variables()

    def run(self):
        """(weights, m, v) after all steps."""
        with tf.Session(graph=self._graph, config=SESSION_CONFIG) as session:
            session.run([self._initialize])
            session.run(self._to_slices)
            for number, (rate, gradient) in enumerate(
                zip(RATES, self.GRADIENTS, strict=True), start=1
            ):
                fed = dict(zip(self._numbers, (rate, number), strict=True))
                session.run(self.update, {**fed, self._fed: gradient})
            session.run(self._to_masters)
            return session.run(self._values)

    def kinds(self):
        """Types of the operations that the update runs."""
        return {operation.type for operation in operations_before([self.update])}

    def expected(self, weight_decay):
        return reference(self.GRADIENTS.astype(np.float64), weight_decay)


@pytest.mark.parametrize(
    "mesh_shape, layout_rules, is_decayed",
    [
        ("all:1", "", True),
        ("all:1", "", False),
        ("d:2;m:2", "rows:m;columns:d", True),
    ],
)
def test_one_kernel_applies_a_bfloat16_gradient(
    mesh_shape, layout_rules, is_decayed, monkeypatch
):
    monkeypatch.setattr("decoupled.ops.kernels._LARGE", 1)
    training = NarrowTraining(mesh_shape, layout_rules, is_decayed)
    values = training.run()
    expected = training.expected(SETTINGS["weight_decay"] if is_decayed else 0.0)
    for value, right in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)
    # The kernel casts and scales the gradient itself.
    assert "StatefulPartitionedCall" in training.kinds()
    assert not training.kinds() & {"Cast", "ResourceApplyAdam"}
    for value, again in zip(values, training.run(), strict=True):
        np.testing.assert_array_equal(value, again)


def variable(mesh, name, dims, value):
    initial = tf.constant_initializer(value)
    return mtf.get_variable(mesh, name, mtf.Shape(dims), initializer=initial)


def test_a_small_gradient_needs_no_compiled_kernel():
    training = NarrowTraining("all:1", "", is_decayed=True)
    assert "ResourceApplyAdam" in training.kinds()
    assert "StatefulPartitionedCall" not in training.kinds()
    expected = training.expected(SETTINGS["weight_decay"])
    for value, right in zip(training.run(), expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)
