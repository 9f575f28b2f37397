"""Masked LM and classification: losses and sums, recomputed by hand."""

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.core.compat import tf
from decoupled.tasks.classification import Classification
from decoupled.tasks.mlm import MaskedLM
from decoupled.training.graph import Network, TrainingGraph, build_step
from tests.helpers import (
    MASKING,
    SESSION_CONFIG,
    adamw,
    masked_lm_features,
    schedule,
    tiny_model,
)
from tests.training.runs import build_evaluation


def evaluate(task, features, training=False):
    """(loss, sums, predictions) of initial weights; predictions outside training."""
    mesh = MeshConfig()
    config = TrainingGraph(
        Network(task, tiny_model(), mesh),
        adamw(),
        schedule(),
        accumulation=1,
        # That of a network which only predicts, so that both have equal weights.
        seed=0,
        frozen=(),
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


def test_masked_lm_loss_is_the_mean_over_predictions_that_count():
    features = masked_lm_features()
    loss, sums, rows = evaluate(MaskedLM(MASKING, label_smoothing=0.0), features)
    weight = features["masked_lm_weights"].sum()
    assert sums["weight"] == weight == 30
    assert loss == pytest.approx(sums["loss_sum"] / weight, rel=1e-5)
    np.testing.assert_allclose(rows["weight"], features["masked_lm_weights"].sum(1))
    assert rows["loss_sum"].sum() == pytest.approx(sums["loss_sum"], rel=1e-5)
    # Untrained: close to a blind guess among 48 pieces.
    assert loss == pytest.approx(np.log(48), abs=0.5)


def test_predictions_of_weight_0_count_nothing():
    features = masked_lm_features()
    loss, sums, _ = evaluate(MaskedLM(MASKING, label_smoothing=0.0), features)
    unused = features["masked_lm_weights"] == 0
    features["masked_lm_ids"] = np.where(unused, 7, features["masked_lm_ids"])
    again, sums_again, _ = evaluate(MaskedLM(MASKING, label_smoothing=0.0), features)
    assert (again, sums_again) == (loss, sums)


def test_examples_of_weight_0_count_nothing():
    features = masked_lm_features()
    half = {name: value[:4] for name, value in features.items()}
    loss, sums, _ = evaluate(MaskedLM(MASKING, label_smoothing=0.0), half)
    features["example_weights"] = np.array([1] * 4 + [0] * 4, np.float32)
    padded, sums_padded, _ = evaluate(MaskedLM(MASKING, label_smoothing=0.0), features)
    assert padded == pytest.approx(loss, rel=1e-5)
    assert sums_padded["weight"] == sums["weight"]
    assert sums_padded["hits"] == sums["hits"]


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
    task = Classification("colours", ["red", "green", "blue"], 12, 0.1, 0.0)
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


def test_label_smoothing_of_a_classifier_is_of_the_training_loss_only():
    """Without dropout, evaluation knows the probabilities of the training step."""
    features = classification_features()
    task = Classification("colours", ["red", "green", "blue"], 12, 0.0, 0.3)
    plain, _, rows = evaluate(task, features)
    logs = np.log(rows["probabilities"])
    chosen = logs[np.arange(8), features["label_ids"]]
    assert plain == pytest.approx(-chosen.mean(), rel=1e-5)
    smoothed, _, _ = evaluate(task, features, training=True)
    assert smoothed == pytest.approx(-(0.7 * chosen.mean() + 0.3 * logs.mean()))
