"""Dropout acts in training and never in evaluation."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import make_dims
from decoupled.model.encoder import encode
from decoupled.model.heads import cls_positions, sequence_logits
from decoupled.model.layers import Builder
from tests.helpers import MASKING, masked_lm_features, run_mesh, tiny_model

FEATURES = {
    name: value
    for name, value in masked_lm_features(batch_size=4).items()
    if name.startswith("input")
}


# That a mask is a function of its seed is shown in tests/ops/test_dropout.py.
SEEDS = {"evaluation": None, "training": 1, "another seed": 2}


@pytest.mark.parametrize(
    "rates, classifier",
    [({"hidden_dropout": 0.3}, 0.0), ({"attention_dropout": 0.3}, 0.0), ({}, 0.3)],
)
def test_each_rate_acts_in_training_only(rates, classifier):
    """Seen in logits of one graph, where all copies of the model share weights."""
    still, config = tiny_model(num_layers=1), tiny_model(num_layers=1, **rates)
    dims = make_dims(still, 4, MASKING.sequence_length)

    def logits(mesh, tensors, config, seed, dropout):
        number = None if seed is None else mtf.constant(mesh, seed, dtype=tf.int32)
        builder = Builder(config, dims, mesh, tf.float32, 5, dropout_seed=number)
        cls = encode(builder, tensors, cls_positions(builder))[-1]
        return sequence_logits(builder, cls, 3, dropout)

    def build(mesh, tensors):
        result = [logits(mesh, tensors, still, None, 0.0)]
        for seed in SEEDS.values():
            result.append(logits(mesh, tensors, config, seed, classifier))
        return result

    inputs = {
        name: (value, [dims.batch, dims.sequence]) for name, value in FEATURES.items()
    }
    without, *result = run_mesh(build, inputs)
    result = dict(zip(SEEDS, result, strict=True))
    np.testing.assert_array_equal(result["evaluation"], without)
    assert np.abs(result["training"] - without).max() > 1e-3
    assert (result["another seed"] != result["training"]).any()
