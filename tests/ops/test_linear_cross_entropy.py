"""Cross-entropy in blocks of the vocabulary: equal to that of whole logits."""

import functools

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
from decoupled.ops.meshes.placement import PlacementMeshImpl
from decoupled.ops.weight_product import weight_product
from tests.helpers import mesh_impl, run_mesh
from tests.ops.simd_on_cpu import OneCore

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
# Divides neither the vocabulary nor its halves: five blocks, or three.
BLOCK = 48
NAMES = ("losses", "correct", "of x", "of table", "of bias")


def values(vocab=VOCAB.size, width=WIDTH.size):
    """Hidden vectors, table, bias, targets and weights; two of these are zero."""
    generator = np.random.default_rng(0)
    weights = generator.uniform(0.5, 2, [4, 5])
    weights[1, 2] = weights[3, 4] = 0
    found = {
        "x": generator.normal(size=[4, 5, width]),
        "table": generator.normal(size=[vocab, width]),
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
    width = mtf.Dimension("width", given["x"].shape[-1])

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
        "x": [*POSITIONS, width], "table": [vocab, width], "bias": [vocab],
        "targets": POSITIONS, "weights": POSITIONS,
    }  # fmt: skip
    inputs = {name: (given[name], dims[name]) for name in dims}
    results = run_mesh(build, inputs, mesh_shape, layout)
    return dict(zip(NAMES, results, strict=False)) | {"norms": results[len(NAMES) :]}


@functools.cache
def whole(dtype=tf.float32, **settings):
    """Of `values()` on one device."""
    return run(values(), None, dtype=dtype, **settings)


def assert_equal(found, expected, tolerance=1e-6, names=NAMES):
    """Relative to the largest element."""
    for name in names:
        error = np.abs(found[name] - expected[name]).max()
        assert error <= tolerance * np.abs(expected[name]).max(), (name, error)


def smoothed(meshes):
    """Without smoothing a term is missing, and that is the same on every mesh."""
    return [(*meshes[0], 0.0), *((*mesh, 0.1) for mesh in meshes)]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("mesh_shape", "layout", "smoothing"),
    [
        *smoothed([MESHES[0], MESHES[3]]),
        # Split as these are together.
        *(pytest.param(*mesh, 0.1, marks=pytest.mark.slow) for mesh in MESHES[1:3]),
    ],
)
def test_equals_the_cross_entropy_of_whole_logits(mesh_shape, layout, smoothing, kept):
    given = values()
    expected = whole(label_smoothing=smoothing)
    assert 2 <= expected["correct"].sum() < 20
    found = run(
        given, Blocks(BLOCK, kept), mesh_shape, layout, label_smoothing=smoothing
    )
    assert_equal(found, expected)
    np.testing.assert_array_equal(found["correct"], expected["correct"])
    assert not found["of x"][given["weights"] == 0].any()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("mesh_shape", "layout", "smoothing", "pairs"),
    [
        *((*case, True) for case in smoothed(APART)),
        (*APART[0], 0.1, False), (*APART[-1], 0.1, False),
    ],
)  # fmt: skip
def test_norms_of_gradients_in_blocks(mesh_shape, layout, smoothing, pairs, kept):
    """Of pairs of positions, in the forward pass, or of the gradients themselves."""
    given = values()
    found = run(
        given, Blocks(BLOCK, kept, True, pairs), mesh_shape, layout,
        label_smoothing=smoothing, norms=True,
    )  # fmt: skip
    expected = whole(label_smoothing=smoothing)
    assert_equal(found, expected)
    for squared, name in zip(found["norms"], NAMES[3:], strict=True):
        wanted = np.square(expected[name].astype(np.float64)).sum()
        assert squared == pytest.approx(wanted, rel=1e-6)


def in_float64(given):
    """`NAMES` by numpy."""
    x, table, bias, weights = (
        given[n].astype(np.float64) for n in ("x", "table", "bias", "weights")
    )
    logits = x @ table.T + bias
    targets = given["targets"][..., None]
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_p, targets, -1)
    of_logits = np.exp(log_p)
    at_target = np.take_along_axis(of_logits, targets, -1) - 1
    np.put_along_axis(of_logits, targets, at_target, -1)
    of_logits *= weights[..., None]
    of_table = np.tensordot(of_logits, x, [(0, 1), (0, 1)])
    found = (
        losses[..., 0], logits.argmax(-1) == given["targets"],
        of_logits @ table, of_table, of_logits.sum((0, 1)),
    )  # fmt: skip
    return dict(zip(NAMES, found, strict=True))


@pytest.mark.slow
def test_a_prime_number_of_pieces():
    """1,000,003, in blocks of 8,192 of which the last is smaller: as near to float64 as
    whole logits are, whose sums of a million terms are rounded too."""
    given, vocab = values(1_000_003, width=3), mtf.Dimension("vocab", 1_000_003)
    width = mtf.Dimension("width", 3)
    x, table = mtf.Shape([*POSITIONS, width]), mtf.Shape([vocab, width])
    blocks = choose_blocks(mesh_impl(), x, table, 8192, apart=False)
    assert blocks == Blocks(8192, kept=False)
    exact = in_float64(given)
    coarse = run(given, None, vocab=vocab)
    found = run(given, blocks, vocab=vocab)
    for name in NAMES:
        errors = [np.abs(r[name] - exact[name]).max() for r in (found, coarse)]
        size = np.abs(exact[name]).max()
        assert errors[0] <= max(errors[1], 1e-6 * size), (name, errors, size)


@pytest.mark.parametrize(
    ("mesh_shape", "layout", "kept"),
    [(*MESHES[0], True), (*MESHES[0], False), (*MESHES[3], False)],
)
def test_bfloat16_is_as_near_to_float32_as_whole_logits(mesh_shape, layout, kept):
    exact, coarse = whole(), whole(tf.bfloat16)
    found = run(values(), Blocks(BLOCK, kept), mesh_shape, layout, tf.bfloat16)
    for name in ("losses", "of x", "of table", "of bias"):
        errors = [np.abs(r[name] - exact[name]).max() for r in (found, coarse)]
        assert errors[0] <= 1.5 * errors[1], (name, errors)


@pytest.mark.parametrize(("mesh_shape", "layout"), [MESHES[0], MESHES[3]])
def test_evaluation_is_equal_and_makes_no_gradients(mesh_shape, layout):
    blocks = Blocks(BLOCK, True)
    found = run(values(), blocks, mesh_shape, layout, training=False)
    assert_equal(found, whole(training=False), names=NAMES[:2])


@pytest.mark.parametrize("kept", [True, False])
def test_extreme_logits(kept):
    """Up to 1e4, where exponentials are 0 or infinite but for the largest logit's."""
    given = values()
    given["x"][:] = 0
    given["bias"][:] = -1e4
    given["bias"][150] = 1e4
    given["targets"][0, :2] = 150, 3
    found = run(given, Blocks(BLOCK, kept, True, True), norms=True)
    assert found["losses"][0].tolist()[:2] == [0, 2e4]
    assert_equal(found, run(given, None))
    assert np.isfinite(found["norms"]).all()


def test_small_gradients_keep_their_digits():
    """A target's probability of 1 - 2e-9 is 1 in float32; its gradient is not 0."""
    given = values()
    given["x"][:] = 0
    given["bias"][:] = 0
    given["bias"][7] = 25.0
    given["targets"][:] = 7
    found = run(given, Blocks(BLOCK, True, True, True), norms=True)
    probability = np.exp(-25.0) * (VOCAB.size - 1)
    total = given["weights"].sum()
    assert found["of bias"][7] == pytest.approx(-probability * total, rel=1e-5)
    expected = (probability**2 + probability * np.exp(-25.0)) * total**2
    assert found["norms"][1] == pytest.approx(expected, rel=1e-5)


def test_the_smallest_id_wins_a_tie_between_blocks():
    given = values()
    given["x"][:] = 0
    given["bias"][:] = 0
    given["bias"][[40, 90]] = 1.0
    given["targets"][0, :2] = 40, 90
    for mesh in (MESHES[0], MESHES[1]):
        found = run(given, Blocks(BLOCK, False), *mesh, training=False)
        assert found["correct"][0, :2].tolist() == [1, 0]


def test_a_row_with_nan_has_the_loss_nan_and_others_their_own():
    given, expected = values(), whole(training=False)["losses"]
    given["x"][2, 1, 3] = np.nan
    found = run(given, Blocks(BLOCK, False), training=False)["losses"]
    assert np.isnan(found[2, 1])
    np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-6)


@pytest.mark.parametrize("outside", [VOCAB.size, -1])
def test_a_target_outside_the_vocabulary_is_an_error_that_shows_it(outside):
    given = values()
    given["targets"][1, 1] = outside
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{outside}.* not index"):
        run(given, Blocks(BLOCK, False), training=False)


def test_shapes_must_belong_together():
    given = values()
    given["targets"] = given["targets"][:, :4]
    with pytest.raises(ValueError):
        run(given, Blocks(BLOCK, False), training=False)


class TestTheRule:
    """Of 640 positions and 250,000 pieces: logits of 640 MB."""

    positions = [mtf.Dimension("batch", 32), mtf.Dimension("predictions", 20)]

    def choose(
        self, width, block_size=0, mesh="all:1", layout="", pieces=250_000, impl=None
    ):
        vocab, columns = mtf.Dimension("vocab", pieces), mtf.Dimension("width", width)
        return choose_blocks(
            impl or mesh_impl(mesh, layout),
            mtf.Shape([*self.positions, columns]),
            mtf.Shape([vocab, columns]),
            block_size,
            apart=True,
        )

    def test_wide_tables_keep_what_is_expensive_to_compute_again(self):
        assert self.choose(768) == Blocks(6250, kept=True, apart=True)
        assert self.choose(3072) == Blocks(3072, kept=True, apart=True, pairs=True)
        assert self.choose(257).kept and not self.choose(256).kept

    def test_pairs_of_positions_would_cost_too_much_for_a_narrow_table(self):
        """A quarter of 250,000 x 2587 / 252,587 is 640.1 positions."""
        assert not self.choose(2586).pairs
        assert self.choose(2587).pairs
        assert self.choose(641, block_size=1000).pairs is False
        assert self.choose(642, block_size=1000).pairs is True

    def test_a_size_that_is_set_is_computed_again(self):
        expected = Blocks(5000, kept=False, apart=True, pairs=True)
        assert self.choose(768, 5000) == expected

    def test_a_size_of_the_vocabulary_or_more_is_whole(self):
        assert self.choose(768, 249_999) is not None
        assert self.choose(768, 250_000) is None

    def test_logits_below_512_megabytes_are_whole(self):
        assert self.choose(768, pieces=199_999) is None
        assert self.choose(768, pieces=200_000) is not None
        # A device's part decides.
        assert self.choose(768, mesh="m:2", layout="vocab:m") is None

    def test_columns_that_are_split_are_whole(self):
        for block_size in (0, 5000):
            assert self.choose(768, block_size, "m:2", "width:m") is None

    @pytest.mark.parametrize("kind", ["gpu", "tpu"])
    def test_other_processors_are_whole_unless_a_size_is_set(self, kind):
        """And their updates take the table's gradient as a whole."""
        one = mtf.convert_to_shape("all:1"), mtf.convert_to_layout_rules("")
        on_gpu = PlacementMeshImpl(*one, ["gpu:0"])
        impl = OneCore(*one) if kind == "tpu" else on_gpu
        assert self.choose(768, impl=impl) is None
        expected = Blocks(5000, kept=False)
        assert self.choose(768, 5000, impl=impl) == expected

    def test_sums_over_devices_are_no_blocks_of_the_update(self):
        assert not self.choose(768, 5000, mesh="d:2", layout="batch:d").apart
        assert self.choose(768, 5000, mesh="d:2", layout="vocab:d").apart
