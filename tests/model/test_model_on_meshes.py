"""Whatever dimension is split, loss and gradients are those of one device."""

import numpy as np
import pytest

from decoupled.core.compat import mtf
from decoupled.model.dims import NAMES
from decoupled.model.encoder import encode
from decoupled.model.heads import cls_positions, sequence_logits
from tests.helpers import masked_lm_features, tiny_model
from tests.model.graphs import (
    encoder_features,
    loss_and_gradients,
    masked_lm_loss,
    random_weights,
)

# All others are tried in the longer tests: batch, vocabulary, heads and feed-forward
# are split in TWO_BY_TWO, and in whole steps of a decoupled model in
# training/test_against_eager.py.
USUAL = ("output_embedding", "labels")


def dimensions(names):
    """The names as cases, all but these two slow."""
    return [
        name if name in USUAL else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


# Labels and the pooler belong to classifiers, a rank to one output embedding.
_ELSEWHERE = ("labels", "pooled", "output_rank")
SPLIT = dimensions(name for name in NAMES if name not in _ELSEWHERE)
SPLIT_LOW_RANK = (
    "vocab",
    "output_rank",
    pytest.param("output_embedding", marks=pytest.mark.slow),
)
# Where the table of a coupled model is used, as input and as output; its rows are split
# in TWO_BY_TWO.
SPLIT_COUPLED = dimensions(["input_embedding", "output_embedding"])
TWO_BY_TWO = "batch:d;vocab:m;heads:m;intermediate:m"

DECOUPLED = tiny_model(num_layers=1)
LOW_RANK = tiny_model(num_layers=1, output_embedding_rank=6)
COUPLED = tiny_model(num_layers=1, coupled=True, output_embedding_size=8)
TWO_LAYERS = tiny_model(
    num_layers=2,
    input_embedding_size=16,
    activation="gelu_tanh",
    mlm_transform="projection",
)


def classifier_loss(build, tensors):
    cls = encode(build, tensors, cls_positions(build)).output
    logits = sequence_logits(build, cls, 4, dropout=0.0)
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
        for name, wanted in self.expected.items():
            scale = self._scale(name)
            np.testing.assert_allclose(
                found[name] / scale, wanted / scale, atol=1e-5, rtol=0, err_msg=name
            )

    def _scale(self, name):
        # A key's bias adds the same number to all scores of a query: its gradient is
        # 0 but for rounding, whose size is that of the gradient of its kernel.
        name = name.replace("key/bias", "key/kernel")
        return np.abs(self.expected[name]).max()


@pytest.fixture(scope="module")
def decoupled():
    return Case(DECOUPLED, masked_lm_features(batch_size=4), masked_lm_loss)


@pytest.fixture(scope="module")
def coupled():
    return Case(COUPLED, masked_lm_features(batch_size=4), masked_lm_loss)


@pytest.fixture(scope="module")
def low_rank():
    return Case(LOW_RANK, masked_lm_features(batch_size=4), masked_lm_loss)


@pytest.fixture(scope="module")
def classifier():
    return Case(DECOUPLED, encoder_features(batch=4), classifier_loss)


def test_one_device_sees_every_variable(decoupled):
    """Or equality on meshes would be one of zeros."""
    largest = {name: np.abs(g).max() for name, g in decoupled.expected.items()}
    key = largest.pop("bert/encoder/layer_0/attention/self/key/bias")
    assert min(largest.values()) > 1e-2
    assert key < 1e-5


@pytest.mark.parametrize("name", SPLIT)
def test_one_dimension_of_a_decoupled_model(decoupled, name):
    decoupled.check("m:2", f"{name}:m")


@pytest.mark.parametrize("name", SPLIT_COUPLED)
def test_one_dimension_of_a_coupled_model(coupled, name):
    coupled.check("m:2", f"{name}:m")


@pytest.mark.parametrize("name", SPLIT_LOW_RANK)
def test_one_dimension_of_an_output_embedding_of_low_rank(low_rank, name):
    low_rank.check("m:2", f"{name}:m")


@pytest.mark.parametrize("name", dimensions(["labels", "pooled", "sequence"]))
def test_one_dimension_of_a_classifier(classifier, name):
    classifier.check("m:2", f"{name}:m")


@pytest.fixture(scope="module")
def two_layers():
    return Case(TWO_LAYERS, masked_lm_features(batch_size=4), masked_lm_loss)


@pytest.mark.parametrize(
    "model",
    [
        "coupled",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("low_rank", "two_layers")),
    ],
)
def test_batch_and_model_are_split(model, request):
    request.getfixturevalue(model).check("d:2;m:2", TWO_BY_TWO)
