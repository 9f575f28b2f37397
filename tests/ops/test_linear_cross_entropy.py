"""Cross-entropy in blocks of the vocabulary: equal to that of whole logits."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.bias import add_bias
from decoupled.ops.cross_entropy import softmax_cross_entropy
from decoupled.ops.linear_cross_entropy import (
    Blocks,
    as_blocks,
    choose_blocks,
    linear_cross_entropy,
)
from decoupled.ops.weight_product import weight_product
from tests.helpers import mesh_impl, run_mesh

MESHES = [
    ("all:1", ""),
    ("m:2", "vocab:m"),
    ("d:2", "batch:d"),
    ("d:2;m:2", "batch:d;vocab:m"),
]
# Whose tables' gradients are not summed over devices.
APART = [("all:1", ""), ("m:2", "vocab:m")]
BATCH, PREDICTIONS = mtf.Dimension("batch", 4), mtf.Dimension("predictions", 5)
VOCAB, WIDTH = mtf.Dimension("vocab", 202), mtf.Dimension("width", 12)
POSITIONS = [BATCH, PREDICTIONS]
NAMES = ("losses", "correct", "of x", "of table", "of bias")


def values(seed=0, scale=1.0, vocab=VOCAB.size):
    """Hidden vectors, table, bias, targets and weights; two of these are zero."""
    generator = np.random.default_rng(seed)
    weights = generator.uniform(0.5, 2, [4, 5])
    weights[1, 2] = weights[3, 4] = 0
    found = {
        "x": generator.normal(size=[4, 5, WIDTH.size]) * scale,
        "table": generator.normal(size=[vocab, WIDTH.size]),
        "bias": generator.normal(size=[vocab]),
        "weights": weights,
    }
    targets = generator.integers(0, vocab, [4, 5]).astype(np.int32)
    # The first and the last piece, one twice, and the most probable one.
    targets[0, :3] = 0, vocab - 1, 0
    logits = found["x"] @ found["table"].T + found["bias"]
    targets[1, 1], targets[2, 3] = logits[1, 1].argmax(), logits[2, 3].argmax()
    return {k: v.astype(np.float32) for k, v in found.items()} | {"targets": targets}


def run(
    given, blocks, mesh_shape="all:1", layout="", dtype=tf.float32, *,
    training=True, vocab=VOCAB, label_smoothing=0.0, norms=False,
):  # fmt: skip
    """Name -> array of `NAMES`, and "norms" of the table's and the bias's gradient;
    whole logits where `blocks` is None."""

    def build(mesh, tensors):
        x = mtf.cast(tensors["x"], dtype)
        table, bias, targets = (tensors[n] for n in ("table", "bias", "targets"))
        if blocks is None:
            logits = weight_product(x, table, [*POSITIONS, vocab])
            found = softmax_cross_entropy(
                add_bias(logits, mtf.cast(bias, dtype)), targets, vocab,
                label_smoothing=label_smoothing,
            )  # fmt: skip
        else:
            found = linear_cross_entropy(
                x, table, bias, targets, blocks,
                training=training, label_smoothing=label_smoothing,
            )  # fmt: skip
        if not training:
            return list(found)
        loss = mtf.reduce_sum(found[0] * tensors["weights"])
        gradients = mtf.gradients([loss], [tensors["x"], table, bias])
        made = [as_blocks(g) for g in gradients[1:]] if norms else []
        return [*found, *gradients, *(g.squared_norm for g in made)]

    dims = {
        "x": [*POSITIONS, WIDTH], "table": [vocab, WIDTH], "bias": [vocab],
        "targets": POSITIONS, "weights": POSITIONS,
    }  # fmt: skip
    inputs = {name: (given[name], dims[name]) for name in dims}
    results = run_mesh(build, inputs, mesh_shape, layout)
    return dict(zip(NAMES, results, strict=False)) | {"norms": results[len(NAMES) :]}


def assert_equal(found, expected, tolerance=1e-6, names=NAMES):
    """Relative to the largest element."""
    for name in names:
        error = np.abs(found[name] - expected[name]).max()
        assert error <= tolerance * np.abs(expected[name]).max(), (name, error)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
def test_equals_the_cross_entropy_of_whole_logits(mesh_shape, layout, kept, smoothing):
    """Of blocks that do not divide the vocabulary, 13 of them or 7."""
    given = values()
    expected = run(given, None, label_smoothing=smoothing)
    assert 2 <= expected["correct"].sum() < 20
    found = run(
        given, Blocks(16, kept, False), mesh_shape, layout, label_smoothing=smoothing
    )
    assert_equal(found, expected)
    np.testing.assert_array_equal(found["correct"], expected["correct"])
    assert not found["of x"][given["weights"] == 0].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("mesh_shape", "layout"), APART)
def test_norms_come_from_the_forward_pass(mesh_shape, layout, kept, smoothing):
    given = values()
    found = run(
        given, Blocks(16, kept, True), mesh_shape, layout,
        label_smoothing=smoothing, norms=True,
    )  # fmt: skip
    expected = run(given, None, label_smoothing=smoothing)
    assert_equal(found, expected)
    for squared, name in zip(found["norms"], NAMES[3:], strict=True):
        wanted = np.square(expected[name].astype(np.float64)).sum()
        assert squared == pytest.approx(wanted, rel=1e-6)
