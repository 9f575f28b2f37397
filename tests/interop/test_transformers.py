"""Identical weights in transformers' RemBertForMaskedLM give identical numbers."""

import numpy as np
import pytest

from decoupled.core.compat import mtf
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import Encoder, MaskedLm
from decoupled.model.dims import make_dims, predictions_dim
from decoupled.model.embeddings import OutputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.layers import Builder
from decoupled.ops.cross_entropy import softmax_cross_entropy
from tests.exports.models import model_config, pretrained_weights, random_batch
from tests.helpers import run_mesh
from tests.interop.reference import NEEDS_TRANSFORMERS, run_reference

pytestmark = NEEDS_TRANSFORMERS

MODELS = {
    "erf gelu, epsilon of the released model": {"layer_norm_epsilon": 1e-12},
    "tanh gelu, one larger layer": {
        "activation": "gelu_tanh",
        "num_layers": 1,
        "hidden_size": 24,
        "num_heads": 3,
        "head_size": 8,
        "input_embedding_size": 16,
        "output_embedding_size": 40,
    },
    "E_out = H, large epsilon": {
        "output_embedding_size": 8,
        "layer_norm_epsilon": 1e-2,
        "num_layers": 3,
    },
}


def masked_lm_batch(config, batch=3, length=11, predictions=4, seed=0):
    """Padding, two segments, masked positions with weights 1 and, as padding, 0."""
    generator = np.random.default_rng(seed)
    features = random_batch(config, batch, length, seed)
    real = features["input_mask"].sum(axis=1, keepdims=True)
    shape = (batch, predictions)
    weights = np.arange(predictions) < [[predictions]] + [[1]] * (batch - 1)
    positions = generator.integers(0, real, shape) * weights
    labels = generator.integers(1, config.vocab_size, shape) * weights
    return features | {
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": labels.astype(np.int32),
        "masked_lm_weights": weights.astype(np.float32),
    }


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """(config, weights, batch, what Transformers computes)."""
    config = model_config(**MODELS[request.param])
    weights = pretrained_weights(config)
    batch = masked_lm_batch(config)
    return config, weights, batch, run_reference(weights, config, batch)


def test_serving_encoder_and_mlm_head(case):
    config, weights, batch, expected = case
    encoder = Encoder(config, weights)
    features = {name: tf.constant(value) for name, value in batch.items()}
    outputs = encoder(features)
    logits = MaskedLm(config, weights, encoder)(
        outputs["sequence_output"], features["masked_lm_positions"]
    )
    np.testing.assert_allclose(
        tf.stack(outputs["encoder_outputs"]), expected["hidden_states"], atol=1e-4
    )
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)


def test_loss_and_gradients_of_the_serving_encoder(case):
    """What fine-tuning an exported encoder relies on."""
    config, weights, batch, expected = case
    encoder = Encoder(config, weights)
    head = MaskedLm(config, weights, encoder)
    features = {name: tf.constant(value) for name, value in batch.items()}
    with tf.GradientTape() as tape:
        logits = head(
            encoder(features)["sequence_output"], features["masked_lm_positions"]
        )
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            features["masked_lm_ids"], logits
        )
        mask = features["masked_lm_weights"]
        loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
    variables = {v.name.removesuffix(":0"): v for v in encoder.variables}
    variables |= {v.name.removesuffix(":0"): v for v in head.variables}
    gradients = {
        name: tf.convert_to_tensor(gradient).numpy()
        for name, gradient in tape.gradient(loss, variables).items()
    }
    assert float(loss) == pytest.approx(expected["loss"], abs=1e-4)
    theirs = _joined(expected["gradients"])
    assert set(gradients) == set(theirs)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, theirs[name], atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    "mesh_shape, layout_rules",
    [("all:1", ""), ("m:2", "vocab:m;heads:m;intermediate:m")],
)
def test_training_graph(case, mesh_shape, layout_rules):
    """Logits, loss and gradients of the graph that pre-training runs, split or not."""
    config, weights, batch, expected = case
    if config.num_heads % 2 and mesh_shape != "all:1":
        layout_rules = "vocab:m;intermediate:m"
    names = []

    def build(mesh, tensors):
        builder = Builder(config, dims, mesh, tf.float32, initializer_seed=0)
        encoded = encode(builder, tensors, tensors["masked_lm_positions"])
        logits = OutputEmbedding(builder).logits(encoded[-1])
        losses, _ = softmax_cross_entropy(logits, tensors["masked_lm_ids"], dims.vocab)
        mask = tensors["masked_lm_weights"]
        loss = mtf.reduce_sum(losses * mask) / mtf.reduce_sum(mask)
        variables = mesh.graph.trainable_variables
        names[:] = [variable.name for variable in variables]
        return [
            logits,
            loss,
            *mtf.gradients([loss], [variable.value for variable in variables]),
        ]

    size, length = batch["input_word_ids"].shape
    dims = make_dims(config, size, length)
    masked = predictions_dim(batch["masked_lm_ids"].shape[1])
    inputs = {
        name: (
            value,
            [dims.batch, masked if name.startswith("masked") else dims.sequence],
        )
        for name, value in batch.items()
    }
    logits, loss, *gradients = run_mesh(
        build, inputs, mesh_shape, layout_rules, weights=weights
    )
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)
    assert float(loss) == pytest.approx(expected["loss"], abs=1e-4)
    assert set(names) == set(expected["gradients"])
    for name, gradient in zip(names, gradients, strict=True):
        theirs = expected["gradients"][name]
        np.testing.assert_allclose(gradient, theirs, atol=1e-4, err_msg=name)


def _joined(gradients):
    """Query, key and value side by side, as the serving encoder keeps them."""
    joined = {}
    for name, gradient in gradients.items():
        if "/self/query/" not in name:
            if "/self/" not in name:
                joined[name] = gradient
            continue
        parts = [name.replace("query", part) for part in ("query", "key", "value")]
        joined[name.replace("query", "query_key_value")] = np.concatenate(
            [gradients[part] for part in parts], axis=-1
        )
    return joined
