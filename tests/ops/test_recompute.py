"""Recomputation: exactly the numbers without it, in the backward pass's own time."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.recompute import After, recompute
from tests.helpers import adamw, masked_lm_features, run_mesh, tiny_model
from tests.training.runs import (
    BODY,
    BOTH_AXES,
    ONE_DEVICE,
    SMALL,
    graph_config,
    run_steps,
    with_training,
)

ROWS, WIDTH = mtf.Dimension("rows", 4), mtf.Dimension("width", 3)


def test_value_and_gradient_of_a_function_with_a_weight():
    x = np.arange(12, dtype=np.float32).reshape(4, 3) - 5

    def build(mesh, tensors):
        weight = mtf.get_variable(
            mesh, "w", mtf.Shape([WIDTH]), initializer=tf.zeros_initializer()
        )
        y = recompute(lambda x: mtf.square(x) * weight, tensors["x"])
        loss = mtf.reduce_sum(y)
        return [y, *mtf.gradients([loss], [tensors["x"], weight])]

    weights = {"w": np.array([1.0, -2.0, 0.5], np.float32)}
    y, dx, dw = run_mesh(build, {"x": (x, [ROWS, WIDTH])}, weights=weights)
    np.testing.assert_array_equal(y, x * x * weights["w"])
    np.testing.assert_array_equal(dx, 2 * x * weights["w"])
    np.testing.assert_array_equal(dw, (x * x).sum(axis=0))


def test_tiny_numbers_stay_as_they_are():
    x = np.array([0.0, 1e-38, 1e-20, 1.0], np.float32)

    def build(mesh, tensors):
        signal = mtf.constant(mesh, 1e30, mtf.Shape([ROWS]))
        return [After([tensors["x"]], [signal]).outputs[0]]

    (held,) = run_mesh(build, {"x": (x, [ROWS])})
    np.testing.assert_array_equal(held, x)


@pytest.mark.parametrize(
    "mesh",
    [ONE_DEVICE, pytest.param(BOTH_AXES, marks=pytest.mark.slow)],
    ids=["one", "2x2"],
)
def test_training_is_the_same_bit_for_bit(mesh):
    model = tiny_model(hidden_dropout=0.1, attention_dropout=0.2, **SMALL)
    # Gradients flow through all of the model to its tables.
    frozen = [n for n in BODY if not n.endswith("_embeddings")]
    config = graph_config(
        mesh=mesh, model=model, optimizer=adamw(), frozen=tuple(frozen)
    )
    features = [masked_lm_features(seed=1)]
    expected, losses, norms = run_steps(config, 2, features)
    result, again, norms_again = run_steps(
        with_training(config, recompute_layers=True), 2, features
    )
    np.testing.assert_array_equal(again, losses)
    np.testing.assert_array_equal(norms_again, norms)
    for name, value in expected.items():
        np.testing.assert_array_equal(result[name], value, err_msg=name)
