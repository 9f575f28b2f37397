"""Tagging in the graph: loss, sums and labels beside those of plain numpy."""

import numpy as np
import pytest

from decoupled.core.compat import mtf
from decoupled.core.release import tf
from decoupled.model.dims import make_dims
from decoupled.model.encoder import encode
from decoupled.model.heads import token_logits
from decoupled.tasks.tagging import Tagging
from tests.exports.reference import Reference
from tests.helpers import masked_lm_features, tiny_model
from tests.model.graphs import random_weights, run_model

LABELS = ("ADJ", "NOUN", "VERB", "X")
BATCH, LENGTH = 4, 12
MODEL = tiny_model(num_layers=1)


def tagging():
    return Tagging("udpos", LABELS, LENGTH, 0.0)


@pytest.fixture(scope="module")
def features():
    """Random pieces; words start at random, never at [CLS] nor in padding."""
    rng = np.random.default_rng(2)
    features = {
        name: value
        for name, value in masked_lm_features(BATCH).items()
        if name.startswith("input")
    }
    starts = rng.integers(0, 2, [BATCH, LENGTH]).astype(np.int32)
    starts *= features["input_mask"]
    starts[:, 0] = 0
    labels = rng.integers(0, len(LABELS), [BATCH, LENGTH]).astype(np.int32)
    return {**features, "word_starts": starts, "label_ids": labels * starts}


@pytest.fixture(scope="module")
def weights():
    def head(build, tensors):
        encoded = encode(build, tensors)[-1]
        return [token_logits(build, encoded, len(LABELS), 0.0)]

    return random_weights(MODEL, head)


@pytest.fixture(scope="module")
def log_probabilities(features, weights):
    """By numpy, float64 [batch, sequence, labels]."""
    reference = Reference(MODEL, weights)
    encoded = reference.encode(features)[-1]
    logits = encoded @ weights["output_weights"].T + weights["output_bias"]
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def prepared(features):
    """As the graph gets them; `loss_scale` once for each token."""
    values = tagging().prepare({k: tf.constant(v) for k, v in features.items()})
    values = {name: value.numpy() for name, value in values.items()}
    scale = values["loss_scale"][:, np.newaxis]
    return {**values, "loss_scale": np.repeat(scale, LENGTH, axis=1)}


def run(features, weights):
    """Name -> value of loss, sums and best labels."""
    names = []

    def outputs(build, tensors):
        scale = mtf.reduce_max(tensors["loss_scale"], output_shape=[build.dims.batch])
        result = tagging().forward(build, {**tensors, "loss_scale": scale})
        values = {"loss": result.loss, **result.sums, **result.predictions}
        names[:] = values
        return list(values.values())

    values = run_model(MODEL, prepared(features), outputs, weights)
    return dict(zip(names, values, strict=True))


def test_loss_and_hits_are_of_first_pieces_in_rows_with_a_weight(
    features, weights, log_probabilities
):
    """Labels elsewhere count nothing."""
    starts, labels = features["word_starts"], features["label_ids"]
    other = {
        **features,
        "label_ids": np.where(starts, labels, 3).astype(np.int32),
        "example_weights": np.array([1, 1, 0, 1], np.float32),
    }
    found = run(other, weights)
    best = found["best_labels"]
    np.testing.assert_array_equal(best, log_probabilities.argmax(-1))
    assert best.dtype == np.int32
    counted = (starts == 1) & (other["example_weights"] > 0)[:, np.newaxis]
    labels, logs = labels[counted], log_probabilities[counted]
    right = logs[np.arange(len(labels)), labels]
    assert found["loss"] == pytest.approx(-right.mean(), rel=1e-5)
    assert found["loss_sum"] == pytest.approx(-right.sum(), rel=1e-5)
    assert found["hits"] == (logs.argmax(-1) == labels).sum() > 0
    assert found["hits"] < found["weight"] == counted.sum() < 18 == starts.sum()


def test_a_batch_of_padding_has_a_scale(features):
    values = prepared({**features, "example_weights": np.zeros(BATCH, np.float32)})
    assert not values["label_weights"].any()
    assert (values["loss_scale"] == 1).all()


def test_the_layout_covers_what_prepare_gives(features):
    layout = tagging().feature_dims(make_dims(MODEL, BATCH, LENGTH))
    values = tagging().prepare({k: tf.constant(v) for k, v in features.items()})
    assert {name: value.shape.as_list() for name, value in values.items()} == {
        name: [dim.size for dim in own] for name, own in layout.items()
    }
