"""Classification: losses and sums, recomputed by hand."""

import numpy as np
import pytest

from decoupled.configs import MeshConfig, TrainingConfig
from decoupled.core.compat import tf
from decoupled.tasks.classification import Classification
from decoupled.training.graph import Network, TrainingGraph, build_step
from tests.helpers import (
    SESSION_CONFIG,
    adamw,
    masked_lm_features,
    schedule,
    tiny_model,
)
from tests.training.runs import BODY, build_evaluation


def evaluate(task, features, training=False):
    """(loss, sums, predictions) of initial weights; predictions outside training."""
    mesh = MeshConfig()
    config = TrainingGraph(
        Network(task, tiny_model(), mesh),
        adamw(),
        schedule(),
        # The seed of a network which only predicts, so that both have equal weights.
        TrainingConfig(seed=0),
        # Only the loss is read.
        frozen=BODY,
    )
    with tf.Graph().as_default():
        tensors = {name: tf.constant(value) for name, value in features.items()}
        if training:
            lowered, predictions = build_step(config, tensors), {}
        else:
            lowered = build_evaluation(config.network, tensors)
            predictions = lowered.predictions
        with tf.Session(config=SESSION_CONFIG) as session:
            session.run(tf.global_variables_initializer())
            return session.run([lowered.loss, lowered.sums, predictions])


def classification_features():
    """Eight sequences with labels of 0, 1 and 2."""
    features = {
        name: value
        for name, value in masked_lm_features().items()
        if name.startswith("input")
    }
    features["label_ids"] = np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int32)
    return features


def test_classification():
    features = classification_features()
    task = Classification("colours", ["red", "green", "blue"], 12, 0.1)
    loss, sums, rows = evaluate(task, features)
    chosen = rows["probabilities"][np.arange(8), features["label_ids"]]
    assert loss == pytest.approx(-np.log(chosen).mean(), rel=1e-5)
    hits = rows["probabilities"].argmax(1) == features["label_ids"]
    assert (sums["hits"], sums["weight"]) == (hits.sum(), 8)
    np.testing.assert_allclose(rows["probabilities"].sum(1), 1, rtol=1e-5)
    weights = np.array([1, 0, 0, 1, 1, 1, 0, 0], np.float32)
    weighted, sums, _ = evaluate(task, {**features, "example_weights": weights})
    expected = -(np.log(chosen) * weights).sum() / 4
    assert weighted == pytest.approx(expected, rel=1e-5)
    assert (sums["hits"], sums["weight"]) == ((hits * weights).sum(), 4)
