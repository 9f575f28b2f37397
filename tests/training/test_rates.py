"""Learning rates of single variables, on every kind of mesh."""

import dataclasses

import numpy as np
import pytest

from decoupled.configs import OptimizerConfig, PretrainConfig
from decoupled.core.errors import UserError
from decoupled.model.variables import MASKED_LM, shapes
from decoupled.training.graph import pretraining_graph
from tests.helpers import MASKING, adamw, masked_lm_features, schedule, tiny_model
from tests.refusals import refusal
from tests.training.runs import (
    MODEL_AXIS,
    ONE_DEVICE,
    Steps,
    graph_config,
    run_steps,
)

TABLE = "cls/predictions/output_embedding"
# Its shape is that of the keys and values, with which it shares a stack.
QUERY = "bert/encoder/layer_0/attention/self/query/kernel"
RATES = {TABLE: 3.0, QUERY: 0.25}
# What is trained beside them; the rest makes graphs of about three times the size.
OTHERS = [QUERY.replace("query", name) for name in ("key", "value")]
FROZEN = tuple(set(shapes(tiny_model(), MASKED_LM)) - {TABLE, QUERY, *OTHERS})
MESHES = {
    "one device": ONE_DEVICE,
    "split": MODEL_AXIS,
    "bfloat16 slices": dataclasses.replace(ONE_DEVICE, slice_dtype="bfloat16"),
}


def trained(graph, steps=2):
    return run_steps(graph, steps, [masked_lm_features()])[0]


def pretraining(optimizer):
    return PretrainConfig(
        model=tiny_model(), masking=MASKING, optimizer=optimizer, schedule=schedule()
    )


@pytest.mark.parametrize(
    "mesh",
    [
        "bfloat16 slices",
        pytest.param("one device", marks=pytest.mark.slow),
        pytest.param("split", marks=pytest.mark.slow),
    ],
)
def test_a_first_step_is_as_many_times_as_long(mesh):
    """A constant rate, so that the first step is one, and no weight decay."""
    changes = dict(
        mesh=MESHES[mesh], schedule=schedule(20, 0, "constant"), frozen=FROZEN
    )
    fields = {"weight_decay": 0.0, "learning_rate": 0.05}

    without, with_rates = (
        Steps(
            graph_config(optimizer=adamw(**fields, rates=rates), **changes),
            [masked_lm_features()],
        )
        for rates in ({}, RATES)
    )
    start = without.initial()
    ends = [steps.run(1)[0] for steps in (without, with_rates)]
    plain, multiplied = (
        {name: end[name] - start[name] for name in (TABLE, QUERY, *OTHERS, *FROZEN)}
        for end in ends
    )
    # The rounding of a weight of bfloat16 is stochastic.
    tolerance = 2.0**-7 if mesh.startswith("bfloat16") else 1e-6
    for name, change in plain.items():
        np.testing.assert_allclose(
            multiplied[name], RATES.get(name, 1) * change, rtol=1e-4, atol=tolerance
        )
    for name in (TABLE, QUERY, *OTHERS):
        assert np.abs(plain[name]).max() > 4 * tolerance


def test_a_rate_of_zero_is_a_frozen_variable():
    """Also of the output embedding, which training partitions by rows."""
    optimizer = adamw(rates={"*embedding*": 0})
    frozen = pretraining_graph(pretraining(optimizer)).frozen
    assert TABLE in frozen and "bert/embeddings/LayerNorm/gamma" in frozen

    frozen = tuple({*frozen, *FROZEN})
    values = trained(graph_config(optimizer=optimizer, frozen=frozen))
    expected = trained(graph_config(optimizer=adamw(), frozen=frozen))

    assert not any(name.startswith(TABLE + "/") for name in values)
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"cls/predictions/output": 2.0}, "matches none of bert/embeddings/word_emb"),
        ({"*output_embedding": 2.0, "cls/*": 2.0}, "both match cls/predictions/"),
        ({"*": 0}, "all rates are 0; nothing is trained"),
    ],
)
def test_patterns_that_fit_no_model_are_refused(rates, message):
    settings = pretraining(adamw(rates=rates))
    assert message in refusal(pretraining_graph, settings)


@pytest.mark.parametrize(
    "rates", [{"a": -1.0}, {"a": float("inf")}, {"a": "2"}, {1: 2.0}, {"a": True}]
)
def test_rates_are_finite_numbers_by_pattern(rates):
    with pytest.raises(UserError, match="OptimizerConfig.rates: .* is not the pattern"):
        OptimizerConfig(rates=rates)
