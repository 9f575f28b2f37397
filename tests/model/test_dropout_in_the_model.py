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


def outputs(seed, **rates):
    """[last layer at [CLS], classifier logits]; `seed` None is evaluation."""
    classifier = rates.pop("classifier", 0.0)
    config = tiny_model(num_layers=1, **rates)
    dims = make_dims(config, 4, MASKING.sequence_length)

    def build(mesh, tensors):
        number = None if seed is None else mtf.constant(mesh, seed, dtype=tf.int32)
        builder = Builder(config, dims, mesh, tf.float32, 5, dropout_seed=number)
        cls = encode(builder, tensors, cls_positions(builder)).output
        return [cls, sequence_logits(builder, cls, 3, classifier)]

    inputs = {
        name: (value, [dims.batch, dims.sequence]) for name, value in FEATURES.items()
    }
    return run_mesh(build, inputs)


@pytest.fixture(scope="module")
def still():
    return outputs(None)


@pytest.mark.parametrize(
    "rates", [{"hidden_dropout": 0.3}, {"attention_dropout": 0.3}, {"classifier": 0.3}]
)
def test_each_rate_acts_in_training_only(still, rates):
    for evaluated, wanted in zip(outputs(None, **rates), still, strict=True):
        np.testing.assert_array_equal(evaluated, wanted)
    trained = outputs(1, **rates)[1]
    assert np.abs(trained - still[1]).max() > 1e-3
    np.testing.assert_array_equal(outputs(1, **rates)[1], trained)
    assert (outputs(2, **rates)[1] != trained).any()
