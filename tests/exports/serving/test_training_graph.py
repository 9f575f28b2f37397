"""The serving encoder against the Mesh-TensorFlow graph that trained the weights."""

import numpy as np
import pytest

from decoupled.core.compat import mtf
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import Classifier, Encoder, MaskedLm
from decoupled.model.dims import make_dims
from decoupled.model.embeddings import OutputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.heads import cls_positions, sequence_logits
from decoupled.model.layers import Builder
from tests.exports.models import (
    finetuned_weights,
    model_config,
    pretrained_weights,
    random_batch,
)
from tests.exports.serving.test_encoder import MODELS
from tests.helpers import run_mesh

BATCH, LENGTH, LABELS = 3, 9, 3
POSITIONS = np.array([[0, 8, 4]] * BATCH, np.int32)


def run_training_graph(config, weights, features, head):
    """[output of each layer..., head's logits] from the training graph."""
    dims = make_dims(config, BATCH, LENGTH)
    predictions = mtf.Dimension("predictions", POSITIONS.shape[1])
    inputs = {
        name: (value, [dims.batch, dims.sequence]) for name, value in features.items()
    }
    inputs["positions"] = (POSITIONS, [dims.batch, predictions])

    def build(mesh, tensors):
        builder = Builder(config, dims, mesh, tf.float32, initializer_seed=0)
        layers = encode(builder, tensors)
        return [*layers, head(builder, tensors)]

    return run_mesh(build, inputs, weights=weights)


@pytest.mark.parametrize("name", MODELS)
def test_layers_and_mlm_head(name):
    layers = {} if name == "decoupled" else {"num_layers": 1}
    config = model_config(**{**MODELS[name], **layers})
    weights = pretrained_weights(config)
    features = random_batch(config, BATCH, LENGTH)

    def head(build, tensors):
        encoded = encode(build, tensors, tensors["positions"])[-1]
        return OutputEmbedding(build).logits(encoded)

    *layers, logits = run_training_graph(config, weights, features, head)

    encoder = Encoder(config, weights)
    outputs = encoder({k: tf.constant(v) for k, v in features.items()})
    served = MaskedLm(config, weights, encoder)(outputs["sequence_output"], POSITIONS)
    np.testing.assert_allclose(
        tf.stack(outputs["encoder_outputs"]), layers, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(served, logits, rtol=1e-5, atol=1e-5)


def test_pooler_and_classifier():
    config = model_config(num_layers=1)
    weights = finetuned_weights(config, LABELS)
    features = random_batch(config, BATCH, LENGTH)

    def head(build, tensors):
        cls = encode(build, tensors, cls_positions(build))[-1]
        return sequence_logits(build, cls, LABELS, dropout=0.1)

    *_, logits = run_training_graph(config, weights, features, head)
    outputs = Encoder(config, weights)({k: tf.constant(v) for k, v in features.items()})
    served = Classifier(weights)(outputs["pooled_output"])
    np.testing.assert_allclose(served, logits, rtol=1e-5, atol=1e-5)
