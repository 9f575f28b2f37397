"""The exports under TF Hub's own loader: names, calls and fine-tuning as documented.

Source: tensorflow/hub, docs/common_saved_model_apis/text.md.
"""

import numpy as np
import pytest

from decoupled.core.release import tf

TEXTS = ["Select the blue page", "Show the hidden image"]


@pytest.fixture(scope="module")
def hub():
    # It imports Keras, which no other test needs.
    return pytest.importorskip("tensorflow_hub")


@pytest.fixture(scope="module")
def preprocessor(hub, encoder_export):
    return hub.load(str(encoder_export / "preprocessor"))


@pytest.fixture(scope="module")
def packed(preprocessor):
    return preprocessor(tf.constant(TEXTS))


def test_two_steps_give_what_one_gives(hub, preprocessor, packed):
    tokenize = hub.KerasLayer(preprocessor.tokenize)
    pack = hub.KerasLayer(preprocessor.bert_pack_inputs, arguments={"seq_length": 16})
    in_two = pack([tokenize(tf.constant(TEXTS))])
    in_one = hub.KerasLayer(preprocessor)(tf.constant(TEXTS))
    for name, value in packed.items():
        np.testing.assert_array_equal(in_two[name], value)
        np.testing.assert_array_equal(in_one[name], value)


def test_trainable_layer_learns_through_the_encoder(hub, encoder_export, packed):
    layer = hub.KerasLayer(str(encoder_export / "encoder"), trainable=True)
    resolved = layer.resolved_object
    assert len(layer.trainable_weights) == len(resolved.trainable_variables) == 31
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(packed, training=True)["pooled_output"] ** 2)
    gradients = tape.gradient(loss, layer.trainable_weights)
    for weight, gradient in zip(layer.trainable_weights, gradients, strict=True):
        assert gradient is not None, weight.name
        assert np.all(np.isfinite(tf.convert_to_tensor(gradient))), weight.name

    before = layer(packed)["pooled_output"].numpy()
    for weight, gradient in zip(layer.trainable_weights, gradients, strict=True):
        weight.assign_sub(0.01 * tf.convert_to_tensor(gradient))
    assert np.abs(layer(packed)["pooled_output"] - before).max() > 1e-3


def test_frozen_layer_has_no_trainable_weights(hub, encoder_export, packed):
    layer = hub.KerasLayer(str(encoder_export / "encoder"), trainable=False)
    assert layer.trainable_weights == []
    assert layer(packed)["default"].shape == (2, 8)


def test_keras_model_from_strings_to_vectors(hub, encoder_export, preprocessor):
    keras = hub.keras_layer.keras
    text_input = keras.layers.Input(shape=(), dtype=tf.string)
    encoder = hub.KerasLayer(str(encoder_export / "encoder"), trainable=True)
    outputs = encoder(hub.KerasLayer(preprocessor)(text_input))
    model = keras.Model(text_input, outputs["pooled_output"])
    expected = encoder(preprocessor(tf.constant(TEXTS)))["pooled_output"]
    np.testing.assert_allclose(model(tf.constant(TEXTS)), expected, atol=2e-6)


def test_mlm_is_a_layer_of_its_own(hub, encoder_export, packed):
    encoder = hub.load(str(encoder_export / "encoder"))
    mlm = hub.KerasLayer(encoder.mlm, trainable=True)
    positions = tf.constant([[1, 2], [3, 0]])
    with tf.GradientTape() as tape:
        logits = mlm({**packed, "masked_lm_positions": positions})["mlm_logits"]
        loss = tf.reduce_sum(logits**2)
    assert logits.shape == (2, 2, 48)
    assert None not in tape.gradient(loss, mlm.trainable_weights)
