"""Whole steps against a second implementation: weights and slots, not the loss."""

import functools

import numpy as np
import pytest

from decoupled.model.variables import NO_HEAD, shapes
from tests.helpers import adamw, masked_lm_features, schedule, tiny_model
from tests.training import eager
from tests.training.runs import (
    BOTH_AXES,
    DATA_AXIS,
    MODEL_AXIS,
    SMALL,
    Steps,
    graph_config,
)

STEPS = 6
PROJECTION = tiny_model(**SMALL)
ONE_LAYER = tiny_model(num_layers=1)
EMBEDDINGS = tuple(n for n in shapes(ONE_LAYER, NO_HEAD) if "/layer_0/" not in n)
COUPLED = tiny_model(
    num_layers=1, coupled=True, output_embedding_size=8, activation="gelu_tanh"
)
CASES = {
    "decoupled, two processors": dict(model=ONE_LAYER, mesh=MODEL_AXIS),
    "decoupled, four processors": dict(model=ONE_LAYER, mesh=BOTH_AXES),
    "coupled, tanh gelu": dict(model=COUPLED),
    "coupled, tanh gelu, four processors": dict(model=COUPLED, mesh=BOTH_AXES),
    "plain projection, not clipped, constant rates of tables and of a layer": dict(
        model=PROJECTION,
        optimizer=adamw(
            clip_norm=0.0,
            weight_decay=0.3,
            rates={"cls/predictions/output_*": 4, "*_embeddings": 0.5, "*/key/*": 3},
        ),
        schedule=schedule(20, 3, "constant"),
    ),
    "frozen input, two layers, four microbatches": dict(
        model=tiny_model(num_layers=2), frozen=EMBEDDINGS, gradient_accumulation=4
    ),
    "two microbatches on two processors": dict(
        model=ONE_LAYER, mesh=DATA_AXIS, gradient_accumulation=2
    ),
}
# Each has quicker ones beside it; tests/model has their gradients.
SLOW = {name for name in list(CASES)[1:] if name.endswith("processors")} | {
    "coupled, tanh gelu",
}


def batches():
    """Three batches of 8, in turn; the microbatches of one have unequal weights."""
    made = [masked_lm_features(seed=seed) for seed in range(3)]
    made[1]["masked_lm_weights"][:4, 1:] = 0
    made[2]["masked_lm_weights"][:2] = 0
    return made


@functools.cache
def steps_of(name):
    """The graph of a case."""
    return Steps(graph_config(**CASES[name]), batches())


def initial_weights(name):
    """name -> array; neither slots nor the step."""
    weights = graph_config(**CASES[name]).network.variables
    return {n: x for n, x in steps_of(name).initial().items() if n in weights}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in CASES
    ],
)
def test_weights_and_slots_after_six_steps(name):
    config, start = graph_config(**CASES[name]), initial_weights(name)
    three = batches()

    variables, losses, norms = steps_of(name).run(STEPS)

    expected, expected_losses, expected_norms = eager.train(
        config.network.model,
        config.optimizer,
        config.schedule,
        start,
        [three[step % 3] for step in range(STEPS)],
        config.frozen,
    )
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-6)
    np.testing.assert_allclose(norms, expected_norms, rtol=2e-5)
    assert variables.pop("global_step") == STEPS
    assert variables.keys() == expected.keys()
    for variable, value in expected.items():
        # The gradient of a key's bias is 0; Adam makes steps of its rounding.
        floor = 1e-5 if "key/bias" in variable else 5e-5 * np.abs(value).max()
        np.testing.assert_allclose(
            variables[variable], value, rtol=1e-4, atol=floor, err_msg=variable
        )
    if name == "decoupled, two processors":
        # Every weight moves by far more than the tolerance: Adam's step has the size of
        # the rate. A key's bias has no gradient.
        for weight, value in start.items():
            change = np.abs(expected[weight] - value).max()
            assert change > 1e-2 or "key/bias" in weight, weight
