"""The exports as TF Hub's layers use them: two steps for one, gradients of what trains.

A layer loads a SavedModel, calls it with `training` and reads `trainable_variables`.
Source: tensorflow/hub, docs/common_saved_model_apis/text.md.
"""

import numpy as np
import pytest

from decoupled.core.release import tf

TEXTS = tf.constant(["Select the blue page", "Show the hidden image"])


@pytest.fixture(scope="module")
def preprocessor(encoder_export):
    return tf.saved_model.load(str(encoder_export / "preprocessor"))


@pytest.fixture
def encoder(encoder_export):
    """Loaded anew, since a test trains it."""
    return tf.saved_model.load(str(encoder_export / "encoder"))


def gradients_of(layer, inputs, name):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(inputs, training=True)[name] ** 2)
    return tape.gradient(loss, layer.trainable_variables)


def test_a_layer_learns_through_the_encoder(encoder, preprocessor):
    packed = preprocessor(TEXTS)
    assert encoder.regularization_losses == []
    gradients = gradients_of(encoder, packed, "pooled_output")
    before = encoder(packed)["pooled_output"].numpy()
    for weight, gradient in zip(encoder.trainable_variables, gradients, strict=True):
        gradient = tf.convert_to_tensor(gradient)
        assert np.all(np.isfinite(gradient)) and np.any(gradient), weight.name
        weight.assign_sub(0.01 * gradient)
    assert np.abs(encoder(packed)["pooled_output"] - before).max() > 1e-3


def test_mlm_is_a_layer_of_its_own(encoder, preprocessor):
    inputs = preprocessor(TEXTS) | {"masked_lm_positions": [[1, 2], [3, 0]]}
    assert encoder.mlm(inputs)["mlm_logits"].shape == (2, 2, 48)
    gradients = gradients_of(encoder.mlm, inputs, "mlm_logits")
    assert len(gradients) == len(encoder.trainable_variables) + 6
    assert None not in gradients
