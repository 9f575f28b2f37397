"""Whatever dimension is split, loss and gradients are those of one device."""

import numpy as np
import pytest

from decoupled.compat import mtf
from decoupled.model.dims import NAMES
from decoupled.model.encoder import encode
from decoupled.model.heads import sequence_logits
from tests.helpers import masked_lm_features, tiny_model
from tests.model.graphs import (
    encoder_features,
    loss_and_gradients,
    masked_lm_loss,
    random_weights,
)

# Labels and the pooler belong to classifiers.
SPLIT = [name for name in NAMES if name not in ("labels", "pooled")]
# Where the table of a coupled model is used, as input and as output.
SPLIT_COUPLED = ("batch", "predictions", "vocab", "input_embedding", "output_embedding")
TWO_BY_TWO = "batch:d;vocab:m;heads:m;intermediate:m"

DECOUPLED = tiny_model(num_layers=1)
COUPLED = tiny_model(num_layers=1, coupled=True, output_embedding_size=8)
TWO_LAYERS = tiny_model(
    input_embedding_size=16, activation="gelu_tanh", mlm_transform="projection"
)


def classifier_loss(build, tensors):
    logits = sequence_logits(build, encode(build, tensors).output, 4, dropout=0.0)
    return mtf.reduce_sum(mtf.square(logits))


class Case:
    """A model's loss and gradients on one device, to be found again on a mesh."""

    def __init__(self, config, features, loss):
        # Of initial weights, biases are 0: one added on every processor would not show.
        weights = random_weights(config, loss)
        self._arguments = (config, features, loss, weights)
        self.expected = loss_and_gradients(*self._arguments)

    def check(self, mesh_shape, layout):
        found = loss_and_gradients(*self._arguments, mesh_shape, layout)
        assert found.keys() == self.expected.keys()
        largest = max(np.abs(value).max() for value in self.expected.values())
        for name, wanted in self.expected.items():
            # The gradient of a key's bias is 0 but for rounding: hence the floor.
            scale = max(np.abs(wanted).max(), 1e-3 * largest)
            np.testing.assert_allclose(
                found[name] / scale, wanted / scale, atol=1e-5, rtol=0, err_msg=name
            )


@pytest.fixture(scope="module")
def decoupled():
    return Case(DECOUPLED, masked_lm_features(batch_size=4), masked_lm_loss)


@pytest.fixture(scope="module")
def coupled():
    return Case(COUPLED, masked_lm_features(batch_size=4), masked_lm_loss)


@pytest.fixture(scope="module")
def classifier():
    return Case(DECOUPLED, encoder_features(batch=4), classifier_loss)


def test_one_device_sees_every_variable(decoupled):
    """Or equality on meshes would be one of zeros."""
    for name, gradient in decoupled.expected.items():
        if not name.endswith("key/bias"):
            assert np.abs(gradient).max() > 1e-3, name
    key = decoupled.expected["bert/encoder/layer_0/attention/self/key/bias"]
    assert np.abs(key).max() < 1e-5


@pytest.mark.parametrize("name", SPLIT)
def test_one_dimension_of_a_decoupled_model(decoupled, name):
    decoupled.check("m:2", f"{name}:m")


@pytest.mark.parametrize("name", SPLIT_COUPLED)
def test_one_dimension_of_a_coupled_model(coupled, name):
    coupled.check("m:2", f"{name}:m")


@pytest.mark.parametrize("name", ["labels", "pooled", "batch", "sequence", "hidden"])
def test_one_dimension_of_a_classifier(classifier, name):
    classifier.check("m:2", f"{name}:m")


@pytest.mark.parametrize("config", [DECOUPLED, COUPLED, TWO_LAYERS])
def test_batch_and_model_are_split(config):
    case = Case(config, masked_lm_features(batch_size=4), masked_lm_loss)
    case.check("d:2;m:2", TWO_BY_TWO)


def test_a_dimension_of_each_kind_is_split_four_times(decoupled):
    decoupled.check("m:4", "vocab:m;heads:m;intermediate:m")
