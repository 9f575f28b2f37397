"""Cross-entropy against TensorFlow's own, whole and split over the vocabulary."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.core.release import tf as tf2
from decoupled.ops.cross_entropy import softmax_cross_entropy
from tests import helpers
from tests.helpers import SESSION_CONFIG, run_mesh

MESHES = [
    ("all:1", ""),
    ("m:3", "vocab:m"),
    ("d:2;m:2", "batch:d;vocab:m"),
]
BATCH, VOCAB = mtf.Dimension("batch", 4), mtf.Dimension("vocab", 12)
TARGETS = np.array([0, 5, 6, 11], np.int32)


def run(logits, mesh_shape="all:1", layout_rules=""):
    """[losses, hits, gradient of sum(losses * 1..4)]."""
    weights = np.arange(1, 5, dtype=np.float32)

    def build(mesh, tensors):
        logits, targets = tensors["logits"], tensors["targets"]
        losses, hits = softmax_cross_entropy(logits, targets, VOCAB)
        loss = mtf.reduce_sum(losses * tensors["weights"])
        return [losses, hits, *mtf.gradients([loss], [logits])]

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
    # Ties between shards, which the smallest id wins: the target 0, and 1 before 6.
    logits[0, [0, 7]] = logits[2, [1, 6]] = 9.0
    expected = reference(logits)
    np.testing.assert_array_equal(expected[1][:3], [1, 1, 0])
    for value, right in zip(
        run(logits, mesh_shape, layout_rules), expected, strict=True
    ):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:2])
def test_extreme_logits_give_finite_numbers(mesh_shape, layout_rules):
    logits = np.full((4, 12), -1e4)
    logits[:, 5] = 1e4
    losses, hits, gradient = run(logits, mesh_shape, layout_rules)
    np.testing.assert_allclose(losses, [2e4, 0, 2e4, 2e4])
    np.testing.assert_array_equal(hits, [0, 1, 0, 0])
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:2])
@pytest.mark.parametrize("outside", [12, -1])
def test_target_outside_the_vocabulary_is_an_error_that_shows_it(
    monkeypatch, mesh_shape, layout_rules, outside
):
    monkeypatch.setitem(globals(), "TARGETS", np.array([0, 5, outside, 11], np.int32))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"\[2, {outside}\] does not index"
    ):
        run(np.zeros((4, 12)), mesh_shape, layout_rules)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES)
def test_a_row_with_nan_has_the_loss_nan_and_others_their_own(
    mesh_shape, layout_rules, monkeypatch
):
    """Whichever shard has it; what is not a number must not pass for a loss."""
    logits = np.random.default_rng(4).normal(size=(4, 12))
    expected = reference(logits)[0]
    logits[2, 9] = np.nan
    losses = run(logits, mesh_shape, layout_rules)[0]
    # Without TensorFlow's rewriting of graphs it is infinite, which ends a run too.
    assert not np.isfinite(losses[2])
    np.testing.assert_allclose(losses[[0, 1, 3]], expected[[0, 1, 3]], rtol=1e-5)

    rewriting = tf.ConfigProto()
    rewriting.CopyFrom(SESSION_CONFIG)
    rewriting.graph_options.rewrite_options.disable_meta_optimizer = False
    monkeypatch.setattr(helpers, "SESSION_CONFIG", rewriting)
    losses = run(logits, mesh_shape, layout_rules)[0]
    assert np.isnan(losses[2])
    np.testing.assert_allclose(losses[[0, 1, 3]], expected[[0, 1, 3]], rtol=1e-5)
