"""Classification and question answering in the graph: losses and sums by hand."""

import numpy as np
import pytest

from decoupled.configs import MeshConfig, TrainingConfig
from decoupled.core.compat import tf
from decoupled.tasks.classification import Classification
from decoupled.tasks.qa import ExtractiveQA
from decoupled.training.graph import Network, TrainingGraph, build_step
from tests.helpers import (
    SESSION_CONFIG,
    adamw,
    masked_lm_features,
    schedule,
    tiny_model,
)
from tests.training.runs import BODY, build_evaluation

LENGTH = 12


def run(task, arrays, training=False):
    """(loss, sums, predictions, head) of initial weights, without dropout."""
    # The seed of a network which only predicts, so that both have equal weights.
    seed = TrainingConfig(seed=0)
    network = Network(task, tiny_model(), MeshConfig())
    with tf.Graph().as_default():
        tensors = {name: tf.constant(value) for name, value in arrays.items()}
        if training:
            # Only the loss is read.
            config = TrainingGraph(network, adamw(), schedule(), seed, frozen=BODY)
            lowered, predictions = build_step(config, tensors), {}
        else:
            lowered = build_evaluation(network, tensors)
            predictions = lowered.predictions
        head = {
            v.op.name: v
            for v in tf.global_variables()
            if v.op.name in ("output_weights", "output_bias")
        }
        with tf.Session(config=SESSION_CONFIG) as session:
            session.run(tf.global_variables_initializer())
            session.run(lowered.lowering.copy_masters_to_slices())
            fetched = [lowered.loss, lowered.sums, predictions, head]
            return session.run(fetched)


def inputs():
    """Eight sequences."""
    features = masked_lm_features().items()
    return {name: value for name, value in features if name.startswith("input")}


def test_classification():
    features = inputs()
    features["label_ids"] = np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int32)
    weights = np.array([1, 0, 0, 1, 1, 1, 0, 0], np.float32)
    task = Classification("colours", ["red", "green", "blue"], LENGTH, 0.0)
    loss, sums, rows, _ = run(task, {**features, "example_weights": weights})
    chosen = rows["probabilities"][np.arange(8), features["label_ids"]]
    expected = -(np.log(chosen) * weights).sum() / 4
    assert loss == pytest.approx(expected, rel=1e-5)
    hits = rows["probabilities"].argmax(1) == features["label_ids"]
    assert (sums["hits"], sums["weight"]) == ((hits * weights).sum(), 4)
    np.testing.assert_allclose(rows["probabilities"].sum(1), 1, rtol=1e-5)


QA = ExtractiveQA("xquad", LENGTH, 0.0)
# Tokens of each window; the rest is padding.
TOKENS = np.array([9, 10, 11, 12, 9, 10, 9, 9])


def windows():
    """Eight of them; the answers of two are not in them."""
    mask = (np.arange(LENGTH) < TOKENS[:, np.newaxis]).astype(np.int32)
    return inputs() | {
        "input_mask": mask,
        "start_positions": np.array([0, 3, 4, 5, 0, 7, 2, 1], np.int32),
        "end_positions": np.array([0, 3, 6, 8, 0, 8, 2, 8], np.int32),
    }


@pytest.fixture(scope="module")
def evaluated():
    """What `run` gives for `windows`."""
    return run(QA, windows())


def losses_by_hand(arrays, rows):
    """float [windows]: the mean of both ends' cross-entropy, without padding."""
    both = []
    for end in ("start", "end"):
        windows = zip(rows[f"{end}_logits"], TOKENS, strict=True)
        logits = [row[:size] for row, size in windows]
        right = zip(logits, arrays[f"{end}_positions"], strict=True)
        both.append([np.log(np.exp(row).sum()) - row[place] for row, place in right])
    return np.mean(both, axis=0)


def test_loss_and_sums_of_answers_leave_out_padding(evaluated):
    loss, sums, rows, head = evaluated
    expected = losses_by_hand(windows(), rows)
    assert loss == pytest.approx(expected.mean(), rel=1e-5)
    assert sums["loss_sum"] == pytest.approx(expected.sum(), rel=1e-5)
    assert sums["weight"] == 8
    assert rows["start_logits"].shape == rows["end_logits"].shape == (8, LENGTH)
    # The names and shapes of a checkpoint's head, as transformers' `qa_outputs`.
    shapes = {name: value.shape for name, value in head.items()}
    assert shapes == {"output_weights": (2, 16), "output_bias": (2,)}
    training, *_ = run(QA, windows(), training=True)
    assert training == pytest.approx(loss, rel=1e-5)


def test_a_hit_needs_both_ends_and_windows_of_weight_0_count_nothing(evaluated):
    arrays, (*_, rows, _) = windows(), evaluated
    for end, wrong in (("start", slice(2, 5)), ("end", slice(3))):
        logits = zip(rows[f"{end}_logits"], TOKENS, strict=True)
        best = np.array([row[:size].argmax() for row, size in logits], np.int32)
        best[wrong] = (best[wrong] + 1) % 9
        arrays[f"{end}_positions"] = best
    # Of the five that count, two are wrong.
    weights = np.array([1, 0, 0, 1, 0, 1, 1, 1], np.float32)
    loss, sums, *_ = run(QA, {**arrays, "example_weights": weights})
    expected = losses_by_hand(arrays, rows) * weights
    assert loss == pytest.approx(expected.sum() / 5, rel=1e-5)
    assert sums["loss_sum"] == pytest.approx(expected.sum(), rel=1e-5)
    assert (sums["hits"], sums["weight"]) == (3, 5)
