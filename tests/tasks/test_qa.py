"""Question answering in the graph: loss, sums and logits, recomputed by hand."""

import numpy as np
import pytest

from decoupled.configs import MeshConfig, TrainingConfig
from decoupled.core.compat import tf
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


def features():
    """Eight windows; the answers of two are not in them."""
    inputs = {k: v for k, v in masked_lm_features().items() if k.startswith("input")}
    starts = np.array([0, 3, 4, 5, 0, 7, 2, 1], np.int32)
    ends = np.array([0, 3, 6, 8, 0, 8, 2, 8], np.int32)
    mask = np.ones_like(inputs["input_mask"])
    spans = {"start_positions": starts, "end_positions": ends}
    return {**inputs, "input_mask": mask, **spans}


def run(arrays, mesh=("all:1", ""), training=False):
    """(loss, sums, predictions, weights) of initial weights, without dropout."""
    placed = MeshConfig(*mesh)
    task = ExtractiveQA("xquad", LENGTH, 0.0)
    config = TrainingGraph(
        Network(task, tiny_model(), placed),
        adamw(),
        schedule(),
        # The seed of a network which only predicts, so that both have equal weights.
        TrainingConfig(seed=0),
        # Only the loss is read.
        frozen=BODY,
    )
    with tf.Graph().as_default():
        tensors = {name: tf.constant(value) for name, value in arrays.items()}
        if training:
            lowered, predictions = build_step(config, tensors), {}
        else:
            lowered = build_evaluation(config.network, tensors)
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


@pytest.fixture(scope="module")
def one_device():
    """What `run` gives for `features`."""
    return run(features())


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def losses_by_hand(arrays, rows):
    """float [windows]: the mean of both ends' cross-entropy over all positions."""
    both = []
    for end in ("start", "end"):
        logs = log_softmax(rows[f"{end}_logits"])
        both.append(-logs[np.arange(8), arrays[f"{end}_positions"]])
    return np.mean(both, axis=0)


def test_loss_and_sums(one_device):
    arrays = features()
    loss, sums, rows, head = one_device
    expected = losses_by_hand(arrays, rows)
    assert loss == pytest.approx(expected.mean(), rel=1e-5)
    assert sums["loss_sum"] == pytest.approx(expected.sum(), rel=1e-5)
    both = (rows["start_logits"].argmax(1) == arrays["start_positions"]) & (
        rows["end_logits"].argmax(1) == arrays["end_positions"]
    )
    assert (sums["hits"], sums["weight"]) == (both.sum(), 8)
    assert rows["start_logits"].shape == rows["end_logits"].shape == (8, LENGTH)
    # The names and shapes of a checkpoint's head, as transformers' `qa_outputs`.
    shapes = {name: value.shape for name, value in head.items()}
    assert shapes == {"output_weights": (2, 16), "output_bias": (2,)}


def test_a_hit_needs_both_ends(one_device):
    arrays = features()
    _, _, rows, _ = one_device
    arrays["start_positions"] = rows["start_logits"].argmax(1).astype(np.int32)
    arrays["end_positions"] = rows["end_logits"].argmax(1).astype(np.int32)
    arrays["end_positions"][:3] ^= 1
    arrays["start_positions"][2:5] ^= 1
    _, sums, _, _ = run(arrays)
    assert sums["hits"] == 3


def test_windows_of_weight_0_count_nothing():
    arrays = features()
    weights = np.array([1, 0, 0, 1, 1, 1, 0, 1], np.float32)
    loss, sums, rows, _ = run({**arrays, "example_weights": weights})
    expected = losses_by_hand(arrays, rows) * weights
    assert loss == pytest.approx(expected.sum() / 5, rel=1e-5)
    assert sums["weight"] == 5
    assert sums["loss_sum"] == pytest.approx(expected.sum(), rel=1e-5)


def test_the_training_loss_leaves_out_padding():
    arrays = features()
    tokens = np.array([9, 10, 11, 12, 9, 10, 9, 9])
    arrays["input_mask"] = (np.arange(LENGTH) < tokens[:, np.newaxis]).astype(np.int32)
    _, _, rows, _ = run(arrays)

    loss, _, _, _ = run(arrays, training=True)

    expected = []
    for end in ("start", "end"):
        for row, size, position in zip(
            rows[f"{end}_logits"], tokens, arrays[f"{end}_positions"], strict=True
        ):
            expected.append(-log_softmax(row[:size])[position])
    assert loss == pytest.approx(np.mean(expected), rel=1e-5)
