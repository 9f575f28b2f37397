"""Means over tokens in each layer, from the hidden states of Transformers' RemBERT."""

import numpy as np

from decoupled.core.release import tf
from decoupled.exports.serving.encoder import Encoder
from decoupled.exports.serving.roots import mean_over_tokens
from tests.exports.models import model_config, pretrained_weights
from tests.interop.reference import NEEDS_TRANSFORMERS, run_reference
from tests.interop.test_transformers import masked_lm_batch

pytestmark = NEEDS_TRANSFORMERS


def test_means_of_hidden_states():
    config = model_config()
    weights, batch = pretrained_weights(config), masked_lm_batch(config)
    hidden_states = run_reference(weights, config, batch)["hidden_states"]
    inputs = {k: tf.constant(v) for k, v in batch.items() if k.startswith("input")}
    states = Encoder(config, weights).hidden_states(inputs)
    mask = batch["input_mask"][..., np.newaxis]
    for state, hidden in zip(states[1:], hidden_states[-2:], strict=True):
        result = mean_over_tokens(state, inputs["input_mask"], True)
        expected = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
        np.testing.assert_allclose(result, expected, atol=1e-4)
