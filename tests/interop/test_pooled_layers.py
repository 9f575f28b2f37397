"""Means over tokens in each layer, from the hidden states of Transformers' RemBERT."""

import numpy as np

from decoupled.configs import MeshConfig
from decoupled.core.compat import tf
from decoupled.tasks.pooling import PooledLayers
from decoupled.training.network import Network
from tests.exports.models import model_config, pretrained_weights
from tests.interop.reference import NEEDS_TRANSFORMERS, run_reference
from tests.interop.test_transformers import masked_lm_batch
from tests.training.runs import build_evaluation

pytestmark = NEEDS_TRANSFORMERS


def test_means_of_hidden_states():
    config = model_config()
    weights, batch = pretrained_weights(config), masked_lm_batch(config)
    hidden_states = run_reference(weights, config, batch)["hidden_states"]
    mask = batch["input_mask"][..., np.newaxis]
    features = {k: v for k, v in batch.items() if k.startswith("input")}
    features["pooled_tokens"] = batch["input_mask"]
    layers = [1, 2]
    task = PooledLayers(layers, mask.shape[1])
    mesh = MeshConfig("all:1", "", "float32", "gather", "float32", 128)
    network = Network(task, config, mesh)
    with tf.Graph().as_default():
        tensors = {name: tf.constant(value) for name, value in features.items()}
        lowered = build_evaluation(network, tensors)
        variables = tf.global_variables()
        values = {v.initializer.inputs[1]: weights.get(v.op.name, 0) for v in variables}
        with tf.Session() as session:
            session.run([v.initializer for v in variables], values)
            session.run(lowered.lowering.copy_masters_to_slices())
            found = session.run(lowered.predictions)
    for layer, hidden in zip(layers, hidden_states[-2:], strict=True):
        expected = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
        np.testing.assert_allclose(found[f"layer_{layer:02d}"], expected, atol=1e-4)
