"""Cross-entropy against TensorFlow's own, whole and split over the vocabulary."""

import numpy as np
import pytest
import tensorflow as tf2

from decoupled.compat import mtf, tf
from decoupled.ops.cross_entropy import softmax_cross_entropy
from tests.helpers import run_mesh

MESHES = [
    ("all:1", ""),
    ("m:2", "vocab:m"),
    ("m:3", "vocab:m"),
    ("d:2;m:2", "batch:d;vocab:m"),
]
BATCH, VOCAB = mtf.Dimension("batch", 4), mtf.Dimension("vocab", 12)
TARGETS = np.array([0, 5, 6, 11], np.int32)


def run(logits, mesh_shape="all:1", layout_rules="", dtype=tf.float32):
    """[losses, hits, gradient of sum(losses * 1..4)]."""
    weights = np.arange(1, 5, dtype=np.float32)

    def build(mesh, tensors):
        x = mtf.cast(tensors["logits"], dtype)
        losses, hits = softmax_cross_entropy(x, tensors["targets"], VOCAB)
        loss = mtf.reduce_sum(losses * tensors["weights"])
        return [losses, hits, *mtf.gradients([loss], [tensors["logits"]])]

    inputs = {
        "logits": (logits.astype(np.float32), [BATCH, VOCAB]),
        "targets": (TARGETS, [BATCH]),
        "weights": (weights, [BATCH]),
    }
    return run_mesh(build, inputs, mesh_shape, layout_rules)


def reference(logits):
    x = tf2.constant(logits, tf2.float32)
    with tf2.GradientTape() as tape:
        tape.watch(x)
        losses = tf2.nn.sparse_softmax_cross_entropy_with_logits(TARGETS, x)
        loss = tf2.reduce_sum(losses * tf2.range(1.0, 5.0))
    hits = (np.argmax(logits, -1) == TARGETS).astype(np.float32)
    return losses.numpy(), hits, tape.gradient(loss, x).numpy()


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES)
def test_losses_hits_and_gradient(mesh_shape, layout_rules):
    logits = np.random.default_rng(0).normal(size=(4, 12)) * 3
    logits[1, 5] = 20.0
    expected = reference(logits)
    assert expected[1].sum() >= 1
    for value, wanted in zip(
        run(logits, mesh_shape, layout_rules), expected, strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:2])
def test_bfloat16_logits(mesh_shape, layout_rules):
    logits = np.random.default_rng(1).normal(size=(4, 12))
    losses, _, gradient = run(logits, mesh_shape, layout_rules, tf.bfloat16)
    expected = reference(logits)
    np.testing.assert_allclose(losses, expected[0], atol=1e-2)
    np.testing.assert_allclose(gradient, expected[2], atol=2e-2)
    # Only the logits are rounded, not what is computed from them.
    rounded = tf2.cast(tf2.cast(logits, tf2.bfloat16), tf2.float32).numpy()
    np.testing.assert_allclose(losses, reference(rounded)[0], rtol=1e-5)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES)
def test_smallest_id_wins_a_tie(mesh_shape, layout_rules):
    """Also where the tie is between shards."""
    hits = run(np.zeros((4, 12)), mesh_shape, layout_rules)[1]
    np.testing.assert_array_equal(hits, [1, 0, 0, 0])


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:2])
def test_extreme_logits_give_finite_numbers(mesh_shape, layout_rules):
    logits = np.full((4, 12), -1e4)
    logits[:, 5] = 1e4
    losses, hits, gradient = run(logits, mesh_shape, layout_rules)
    np.testing.assert_allclose(losses, [2e4, 0, 2e4, 2e4])
    np.testing.assert_array_equal(hits, [0, 1, 0, 0])
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    "mesh_shape, layout_rules",
    [("all:1", ""), ("m:2", "predictions:m"), ("d:2;m:2", "predictions:d;vocab:m")],
)
def test_targets_of_two_dimensions(mesh_shape, layout_rules):
    """Masked positions of several sequences, as in pre-training."""
    generator = np.random.default_rng(2)
    logits = generator.normal(size=(4, 2, 12)).astype(np.float32)
    targets = generator.integers(0, 12, (4, 2)).astype(np.int32)
    predictions = mtf.Dimension("predictions", 2)

    def build(mesh, tensors):
        losses, _ = softmax_cross_entropy(tensors["logits"], tensors["targets"], VOCAB)
        loss = mtf.reduce_sum(losses)
        return [losses, *mtf.gradients([loss], [tensors["logits"]])]

    inputs = {
        "logits": (logits, [BATCH, predictions, VOCAB]),
        "targets": (targets, [BATCH, predictions]),
    }
    losses, gradient = run_mesh(build, inputs, mesh_shape, layout_rules)
    exponentials = np.exp(logits)
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)
    one_hot = np.eye(12)[targets]
    chosen = (probabilities * one_hot).sum(-1)
    np.testing.assert_allclose(losses, -np.log(chosen), rtol=1e-5)
    np.testing.assert_allclose(gradient, probabilities - one_hot, atol=1e-5)


def test_the_gradient_has_the_logits_dtype():
    def build(mesh, tensors):
        logits = mtf.cast(tensors["logits"], tf.bfloat16)
        losses, hits = softmax_cross_entropy(logits, tensors["targets"], VOCAB)
        [gradient] = mtf.gradients([mtf.reduce_sum(losses)], [logits])
        assert (losses.dtype, hits.dtype) == (tf.float32, tf.float32)
        assert gradient.dtype == tf.bfloat16
        return [mtf.cast(gradient, tf.float32)]

    inputs = {
        "logits": (np.zeros([4, 12], np.float32), [BATCH, VOCAB]),
        "targets": (TARGETS, [BATCH]),
    }
    [gradient] = run_mesh(build, inputs)
    np.testing.assert_allclose(gradient, 1 / 12 - np.eye(12)[TARGETS], atol=4e-3)


def test_targets_have_the_logits_dimensions_but_the_last():
    def build(mesh, tensors):
        return softmax_cross_entropy(tensors["logits"], tensors["targets"], BATCH)

    inputs = {
        "logits": (np.zeros([4, 12], np.float32), [BATCH, VOCAB]),
        "targets": (TARGETS, [BATCH]),
    }
    with pytest.raises(ValueError, match="is not"):
        run_mesh(build, inputs)
