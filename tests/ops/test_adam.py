"""AdamW against a numpy version of Loshchilov and Hutter's algorithm 2."""

import numpy as np
import pytest

from decoupled.compat import mtf, tf
from decoupled.ops.adam import AdamUpdate
from tests.helpers import SESSION_CONFIG, mesh_impl

ROWS, COLUMNS = mtf.Dimension("rows", 6), mtf.Dimension("columns", 4)
SETTINGS = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}
RATE, SCALE, STEPS = 0.05, 0.5, 20
MESHES = [("all:1", ""), ("m:2", "rows:m"), ("d:2;m:2", "rows:m;columns:d")]
START = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
PULL = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


def run(mesh_shape, layout_rules):
    """(weights, m, v) after 20 steps on the loss sum((w * w - pull)^2).

    The gradient reads the weights twice, which a racing update would change.
    """
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        names = ("weights", "m", "v")
        initial = (tf.constant_initializer(START), *[tf.zeros_initializer()] * 2)
        values = [
            mtf.get_variable(mesh, name, mtf.Shape([ROWS, COLUMNS]), initializer=init)
            for name, init in zip(names, initial, strict=True)
        ]
        weights = values[0]
        pull = mtf.import_tf_tensor(mesh, PULL, mtf.Shape([ROWS, COLUMNS]))
        loss = mtf.reduce_sum(mtf.square(weights * weights - pull))
        step = tf.placeholder(tf.float32, [])

        def scalar(value):
            return mtf.import_tf_tensor(mesh, value, mtf.Shape([]))

        update = AdamUpdate(
            *(value.operation for value in values),
            mtf.gradients([loss], [weights])[0],
            scalar(tf.constant(SCALE)),
            scalar(tf.constant(RATE)),
            scalar(step),
            **SETTINGS,
        )
        implementation = mesh_impl(mesh_shape, layout_rules)
        lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
        operation = lowering.lowered_operation(update)
        to_slices = lowering.copy_masters_to_slices()
        to_masters = lowering.copy_slices_to_masters()
        with tf.Session(config=SESSION_CONFIG) as session:
            session.run(tf.global_variables_initializer())
            session.run(to_slices)
            for number in range(1, STEPS + 1):
                session.run(operation, {step: number})
            session.run(to_masters)
            return session.run(tf.global_variables())


def reference():
    w, m, v = START.astype(np.float64), np.zeros((6, 4)), np.zeros((6, 4))
    beta1, beta2 = SETTINGS["beta1"], SETTINGS["beta2"]
    for step in range(1, STEPS + 1):
        g = SCALE * 2 * (w * w - PULL) * 2 * w
        w = w - RATE * SETTINGS["weight_decay"] * w
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        corrected = np.sqrt(v / (1 - beta2**step)) + SETTINGS["epsilon"]
        w = w - RATE * m / (1 - beta1**step) / corrected
    return w, m, v


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES)
def test_weights_and_slots_after_20_steps(mesh_shape, layout_rules):
    values = run(mesh_shape, layout_rules)
    for value, wanted in zip(values, reference(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES)
def test_repeated_runs_are_equal_bit_for_bit(mesh_shape, layout_rules):
    first = run(mesh_shape, layout_rules)
    for _ in range(3):
        for value, wanted in zip(run(mesh_shape, layout_rules), first, strict=True):
            np.testing.assert_array_equal(value, wanted)
