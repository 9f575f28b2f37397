"""What a gather must refuse, and the dtypes of its sums; values are in
test_against_stock.py."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.ops.gather import embedding_lookup, gather_positions
from tests.helpers import run_mesh
from tests.refusals import refusal

MESHES = [("all:1", ""), ("m:3", "vocab:m")]
VOCAB, WIDTH = mtf.Dimension("vocab", 12), mtf.Dimension("width", 4)
BATCH, LENGTH = mtf.Dimension("batch", 2), mtf.Dimension("length", 5)
# Repeated ids, and ids at the borders of shards.
IDS = np.array([[0, 5, 6, 11, 5], [3, 4, 7, 8, 5]], np.int32)


def look_up(ids, mesh_shape, layout_rules):
    """[rows, gradient of the table] for sum(rows * weights)."""
    table = np.arange(48, dtype=np.float32).reshape(12, 4)
    weights = np.arange(40, dtype=np.float32).reshape(2, 5, 4)

    def build(mesh, tensors):
        rows = embedding_lookup(tensors["table"], tensors["ids"], VOCAB)
        loss = mtf.reduce_sum(rows * tensors["weights"])
        return [rows, *mtf.gradients([loss], [tensors["table"]])]

    inputs = {
        "table": (table, [VOCAB, WIDTH]),
        "ids": (ids, [BATCH, LENGTH]),
        "weights": (weights, [BATCH, LENGTH, WIDTH]),
    }
    return run_mesh(build, inputs, mesh_shape, layout_rules)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES)
@pytest.mark.parametrize("outside", [12, -1])
def test_id_outside_the_vocabulary_is_an_error_that_shows_it(
    mesh_shape, layout_rules, outside
):
    """Whichever shard is the first to refuse it."""
    ids = IDS.copy()
    ids[1, 2] = outside
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"= {outside} is not in \[0"
    ):
        look_up(ids, mesh_shape, layout_rules)


def test_a_vocabulary_and_ids_on_one_axis_are_refused():
    """No processor would see all ids that ask for its rows: the sums would be wrong."""
    assert refusal(look_up, IDS, "m:2", "vocab:m;batch:m") == (
        "MeshConfig.layout_rules: rules vocab:m and batch:m split rows and the ids "
        "that look them up over the same mesh axis; give one of them another axis"
    )


POSITION_MESHES = [("all:1", ""), ("m:3", "sequence:m")]
SEQUENCE, PREDICTIONS = mtf.Dimension("sequence", 6), mtf.Dimension("predictions", 4)
THREE = mtf.Dimension("width", 3)
X = np.arange(36, dtype=np.float32).reshape(2, 6, 3)
# A repeated one, and both ends of parts.
POSITIONS = np.array([[0, 2, 3, 2], [5, 4, 1, 5]], np.int32)


def gather(positions, mesh_shape, layout_rules):
    """[entries, gradient of x] for sum(entries * weights)."""
    dims = [BATCH, PREDICTIONS]
    weights = np.random.default_rng(0).normal(size=[2, 4, 3]).astype(np.float32)

    def build(mesh, tensors):
        y = gather_positions(tensors["x"], tensors["positions"], SEQUENCE)
        loss = mtf.reduce_sum(y * tensors["weights"])
        return [y, *mtf.gradients([loss], [tensors["x"]])]

    inputs = {
        "x": (X, [BATCH, SEQUENCE, THREE]),
        "positions": (positions, dims),
        "weights": (weights, [*dims, THREE]),
    }
    return run_mesh(build, inputs, mesh_shape, layout_rules)


@pytest.mark.parametrize("mesh_shape, layout_rules", POSITION_MESHES)
@pytest.mark.parametrize("outside", [6, -1])
def test_position_outside_the_sequence_is_an_error_that_shows_it(
    mesh_shape, layout_rules, outside
):
    positions = POSITIONS.copy()
    positions[1, 3] = outside
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"= {outside} is not in \[0"
    ):
        gather(positions, mesh_shape, layout_rules)


def test_a_sequence_and_positions_on_one_axis_are_refused():
    with pytest.raises(UserError, match="rules sequence:m and predictions:m split"):
        gather(POSITIONS, "m:2", "sequence:m;predictions:m")


@pytest.mark.parametrize("sequence", POSITION_MESHES)
def test_sums_by_products_are_those_of_additions(monkeypatch, sequence):
    """Of repeated ids and positions, and over shards, as programs of XLA add up."""
    vocab = MESHES[POSITION_MESHES.index(sequence)]
    added = look_up(IDS, *vocab)[1], gather(POSITIONS, *sequence)[1]
    monkeypatch.setattr("decoupled.ops.gather._adds_by_product", lambda *_: True)
    products = look_up(IDS, *vocab)[1], gather(POSITIONS, *sequence)[1]
    for by_product, expected in zip(products, added, strict=True):
        np.testing.assert_allclose(by_product, expected, rtol=1e-6)


@pytest.mark.parametrize("by_product", [False, True])
def test_repeated_positions_add_up_in_float32(monkeypatch, by_product):
    """In bfloat16 a sum of ones stops growing at 256."""
    monkeypatch.setattr("decoupled.ops.gather._adds_by_product", lambda *_: by_product)
    many = mtf.Dimension("predictions", 600)

    def build(mesh, tensors):
        x = mtf.cast(tensors["x"], tf.bfloat16)
        y = gather_positions(x, tensors["positions"], SEQUENCE)
        [gradient] = mtf.gradients([mtf.reduce_sum(mtf.cast(y, tf.float32))], [x])
        assert y.dtype == gradient.dtype == tf.bfloat16
        return [mtf.cast(gradient, tf.float32)]

    inputs = {
        "x": (X, [BATCH, SEQUENCE, THREE]),
        "positions": (np.full([2, 600], 3, np.int32), [BATCH, many]),
    }
    [gradient] = run_mesh(build, inputs)
    np.testing.assert_array_equal(gradient[:, 3], np.full([2, 3], 600))
    assert gradient.sum() == 2 * 3 * 600
