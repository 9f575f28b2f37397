"""What several processors hold of one tensor stays one: weights and slots.

A checkpoint is taken from one replica of each slice, so that a comparison of
checkpoints says nothing about the others.
"""

import dataclasses

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.model.variables import MASKED_LM, shapes
from tests.helpers import masked_lm_features, tiny_model
from tests.training.runs import BOTH_AXES, DATA_AXIS, SMALL, Steps, graph_config

# Weights are replicated over the only axis; split over one axis and replicated over the
# other; or replicated over both, with gradients that are sums over both.
MESHES = {
    "batch": DATA_AXIS,
    "weights and batch": BOTH_AXES,
    "batch and sequence": MeshConfig("d:2;m:2", "batch:d;sequence:m"),
    "bfloat16 slices": dataclasses.replace(BOTH_AXES, slice_dtype="bfloat16"),
}
STEPS = 4
MODEL = tiny_model(hidden_dropout=0.1, attention_dropout=0.1, **SMALL)
# Of each kind of variable one is trained, with gradients through all of the model.
TRAINED = (
    "word_embeddings", "query/kernel", "query/bias", "intermediate/dense/kernel",
    "output/dense/kernel", "output/LayerNorm/gamma", "output_embedding", "output_bias",
)  # fmt: skip
FROZEN = tuple(n for n in shapes(MODEL, MASKED_LM) if not n.endswith(TRAINED))


def trained_slices(config):
    """Variable name -> one (begin of the slice, array) per processor, after training.

    Slots are among the variables.
    """
    steps = Steps(config, [masked_lm_features()])
    laid_out = steps.lowering.variables
    slices = {v.name: x.laid_out_tensor.all_slices for v, x in laid_out.items()}
    begins = {}
    for variable in laid_out:
        implementation = steps.lowering.mesh_impl(variable.mesh)
        begins[variable.name] = [
            tuple(implementation.slice_begin(variable.shape, number))
            for number in range(implementation.size)
        ]
    with steps.session_after(STEPS) as (session, _):
        values = session.run(slices)
    return {n: list(zip(begins[n], values[n], strict=True)) for n in values}


@pytest.mark.parametrize(
    "name",
    [*MESHES][:1]
    + [pytest.param(name, marks=pytest.mark.slow) for name in [*MESHES][1:]],
)
def test_replicas_are_equal_bit_for_bit(name):
    found = trained_slices(graph_config(model=MODEL, mesh=MESHES[name], frozen=FROZEN))

    weights = shapes(MODEL, MASKED_LM)
    assert len(found) == 3 * len(weights) - 2 * len(FROZEN)
    compared, different = 0, []
    for variable, processors in found.items():
        first = {}
        for begin, value in processors:
            if begin not in first:
                first[begin] = value
                continue
            compared += 1
            if not np.array_equal(first[begin], value):
                different.append(variable)
    assert compared >= len(found) / 3
    assert sorted(set(different)) == []
