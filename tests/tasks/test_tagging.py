"""Tagging in the graph: loss, sums and labels beside those of plain numpy."""

import dataclasses

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


@pytest.fixture(scope="module")
def whole(features, weights):
    """What one device computes."""
    return run(features, weights, with_gradients=True)


def prepared(features):
    """As the graph gets them; `loss_scale` once for each token."""
    values = tagging().prepare({k: tf.constant(v) for k, v in features.items()})
    values = {name: value.numpy() for name, value in values.items()}
    scale = values["loss_scale"][:, np.newaxis]
    return {**values, "loss_scale": np.repeat(scale, LENGTH, axis=1)}


def run(features, weights, training=False, with_gradients=False, **mesh):
    """Name -> value of loss, sums, best labels and perhaps gradients."""
    names = []

    def outputs(build, tensors):
        if training:
            seed = mtf.constant(build.mesh, 1, dtype=tf.int32)
            build = dataclasses.replace(build, dropout_seed=seed)
        scale = mtf.reduce_max(tensors["loss_scale"], output_shape=[build.dims.batch])
        result = tagging().forward(build, {**tensors, "loss_scale": scale})
        values = {"loss": result.loss, **result.sums, **result.predictions}
        if with_gradients:
            variables = build.mesh.graph.trainable_variables
            found = mtf.gradients([result.loss], [v.value for v in variables])
            values |= {v.name: x for v, x in zip(variables, found, strict=True)}
        names[:] = values
        return list(values.values())

    values = run_model(MODEL, prepared(features), outputs, weights, **mesh)
    return dict(zip(names, values, strict=True))


def test_loss_and_hits_are_of_first_pieces_only(features, whole, log_probabilities):
    starts = features["word_starts"] == 1
    labels = features["label_ids"][starts]
    right = log_probabilities[starts][np.arange(len(labels)), labels]
    assert whole["loss"] == pytest.approx(-right.mean(), rel=1e-5)
    assert whole["loss_sum"] == pytest.approx(-right.sum(), rel=1e-5)
    assert whole["weight"] == starts.sum() == 18
    hits = (log_probabilities[starts].argmax(-1) == labels).sum()
    assert whole["hits"] == hits == 6
    np.testing.assert_array_equal(whole["best_labels"], log_probabilities.argmax(-1))
    assert whole["best_labels"].dtype == np.int32


def test_labels_elsewhere_and_rows_of_weight_0_count_nothing(features, weights):
    starts, labels = features["word_starts"], features["label_ids"]
    expected = run({name: value[:2] for name, value in features.items()}, weights)
    other = {
        **features,
        "label_ids": np.where(starts, labels, 3).astype(np.int32),
        "example_weights": np.array([1, 1, 0, 0], np.float32),
    }
    found = run(other, weights)
    for name in ("loss", "loss_sum", "hits", "weight"):
        assert found[name] == pytest.approx(expected[name], rel=1e-6), name


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
