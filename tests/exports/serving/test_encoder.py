"""The serving encoder and its heads against numpy, and what padding may not do."""

import numpy as np
import pytest

from decoupled.core.release import tf
from decoupled.exports.serving.encoder import Encoder, MaskedLm
from tests.exports.models import (
    finetuned_weights,
    model_config,
    pretrained_weights,
    random_batch,
)
from tests.exports.reference import Reference
from tests.helpers import masked_lm_features

# Settings that do not touch each other share a model.
MODELS = {
    "decoupled": {},
    "no projection, tanh gelu": {
        "input_embedding_size": 8,
        "activation": "gelu_tanh",
        "layer_norm_epsilon": 1e-12,
    },
    "coupled, relu, four heads": {
        "coupled": True,
        "output_embedding_size": 6,
        "activation": "relu",
        "num_heads": 4,
        "head_size": 2,
    },
    "coupled at H": {
        "coupled": True,
        "input_embedding_size": 8,
        "output_embedding_size": 8,
    },
    "plain projection, one layer, one type": {
        "mlm_transform": "projection",
        "num_layers": 1,
        "type_vocab_size": 1,
    },
    "no transform": {"mlm_transform": "projection", "output_embedding_size": 8},
    "projection of equal widths": {
        "mlm_transform": "projection",
        "output_embedding_size": 8,
        "project_equal_output_widths": True,
    },
}


def encode(encoder, batch, training=False):
    return encoder({k: tf.constant(v) for k, v in batch.items()}, training)


@pytest.mark.parametrize(
    "name, batch, length",
    [("decoupled", 1, 1), ("decoupled", 2, 24), *((name, 3, 9) for name in MODELS)],
)
def test_encoder_and_mlm_head_compute_what_numpy_does(name, batch, length):
    config = model_config(**MODELS[name])
    weights = pretrained_weights(config)
    features = random_batch(config, batch, length)
    positions = np.array([[0, length - 1, length // 2]] * batch, np.int32)

    reference = Reference(config, weights)
    expected = reference.encode(features)
    encoder = Encoder(config, weights)
    actual = encode(encoder, features)
    logits = MaskedLm(config, weights, encoder)(actual["sequence_output"], positions)

    assert len(actual["encoder_outputs"]) == config.num_layers
    for ours, theirs in zip(actual["encoder_outputs"], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(
        actual["sequence_output"], actual["encoder_outputs"][-1]
    )
    np.testing.assert_allclose(
        logits, reference.masked_lm(expected[-1], positions), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "name",
    [
        "decoupled",
        "coupled, relu, four heads",
        "plain projection, one layer, one type",
    ],
)
def test_the_last_layer_of_a_pooled_vector_is_computed_for_cls_alone(name):
    config = model_config(**MODELS[name])
    encoder = Encoder(config, finetuned_weights(config, 3))
    features = random_batch(config, batch=3, length=9)
    rows = []
    for layer in encoder.layers:
        layer.intermediate = spy(layer.intermediate, rows)
    inputs = {k: tf.constant(v) for k, v in features.items()}
    pooled = encoder.pooled_output(inputs)
    assert rows == [27] * (config.num_layers - 1) + [3]
    np.testing.assert_allclose(
        pooled, encoder(inputs)["pooled_output"], rtol=1e-5, atol=1e-6
    )


def spy(layer, rows):
    """The layer, which notes how many rows it is given."""

    def call(x):
        rows.append(x.shape[0])
        return layer(x)

    return call


def test_what_stands_on_padding_changes_no_real_token():
    config = model_config()
    encoder = Encoder(config, pretrained_weights(config))
    features = random_batch(config, 4, 12)
    real = features["input_mask"].astype(bool)
    noise = {
        "input_word_ids": np.where(real, features["input_word_ids"], 40),
        "input_mask": features["input_mask"],
        "input_type_ids": np.where(real, features["input_type_ids"], 1),
    }
    clean = encode(encoder, features)["sequence_output"].numpy()
    noisy = encode(encoder, noise)["sequence_output"].numpy()
    assert not real.all()
    np.testing.assert_array_equal(noisy[real], clean[real])


def test_more_padding_and_more_rows_change_no_real_token():
    config = model_config()
    encoder = Encoder(config, pretrained_weights(config))
    features = random_batch(config, 4, 9)
    padded = {k: np.pad(v, ((0, 0), (0, 11))) for k, v in features.items()}
    together = encode(encoder, padded)["sequence_output"].numpy()
    for row in range(4):
        count = features["input_mask"][row].sum()
        alone = encode(
            encoder, {k: v[row : row + 1, :count] for k, v in features.items()}
        )
        np.testing.assert_allclose(
            alone["sequence_output"][0], together[row, :count], atol=2e-6
        )


def test_gradients_are_those_of_the_definitions():
    """What fine-tuning an exported encoder relies on."""
    config, batch = model_config(), masked_lm_features(batch_size=3)
    arrays = pretrained_weights(config)
    tensors = {name: tf.constant(array, tf.float64) for name, array in arrays.items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = tf.reduce_sum(Reference(config, tensors).losses(batch))
    expected = tape.gradient(loss, tensors)

    encoder = Encoder(config, arrays)
    head = MaskedLm(config, arrays, encoder)
    with tf.GradientTape() as tape:
        output = encode(encoder, batch)["sequence_output"]
        logits = head(output, tf.constant(batch["masked_lm_positions"]))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch["masked_lm_ids"], logits
        )
        loss = tf.reduce_sum(losses)
    variables = {
        variable.name.removesuffix(":0"): variable
        for variable in (*encoder.variables, *head.variables)
    }
    gradients = tape.gradient(loss, variables)
    for name, gradient in gradients.items():
        # Query, key and value stand side by side.
        parts = ("query", "key", "value") if "query_key_value" in name else ("",)
        names = [name.replace("query_key_value", part) for part in parts]
        theirs = np.concatenate(
            [tf.convert_to_tensor(expected.pop(part)) for part in names], axis=-1
        )
        np.testing.assert_allclose(
            tf.convert_to_tensor(gradient), theirs, atol=1e-4, err_msg=name
        )
    assert not expected
