"""Embedding lookup against numpy, whole and split."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.ops.gather import embedding_lookup, one_hot_lookup
from tests.helpers import run_mesh

MESHES = [
    ("all:1", ""),
    ("m:2", "vocab:m"),
    ("m:3", "vocab:m"),
    ("m:2", "width:m"),
    ("d:2;m:2", "batch:d;vocab:m"),
]
VOCAB, WIDTH = mtf.Dimension("vocab", 12), mtf.Dimension("width", 4)
BATCH, LENGTH = mtf.Dimension("batch", 2), mtf.Dimension("length", 5)
# Repeated ids, and ids at the borders of two and of three shards.
IDS = np.array([[0, 5, 6, 11, 5], [3, 4, 7, 8, 5]], np.int32)


def look_up(ids, mesh_shape, layout_rules, lookup=embedding_lookup):
    """[rows, gradient of the table] for sum(rows * weights)."""
    table = np.arange(48, dtype=np.float32).reshape(12, 4)
    weights = np.arange(40, dtype=np.float32).reshape(2, 5, 4)

    def build(mesh, tensors):
        rows = lookup(tensors["table"], tensors["ids"], VOCAB)
        loss = mtf.reduce_sum(rows * tensors["weights"])
        return [rows, *mtf.gradients([loss], [tensors["table"]])]

    inputs = {
        "table": (table, [VOCAB, WIDTH]),
        "ids": (ids, [BATCH, LENGTH]),
        "weights": (weights, [BATCH, LENGTH, WIDTH]),
    }
    return table, weights, run_mesh(build, inputs, mesh_shape, layout_rules)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:2])
def test_rows_of_a_variable_with_bfloat16_slices_are_read_as_float32(
    mesh_shape, layout_rules
):
    table = np.linspace(1, 2, 48, dtype=np.float32).reshape(12, 4)
    # The weight 1 + 2^-16 would be 1 in bfloat16: gradients are float32 throughout.
    weights = np.full([2, 5, 4], 1 + 2**-16, np.float32)

    def build(mesh, tensors):
        variable = mtf.get_variable(
            mesh,
            "table",
            mtf.Shape([VOCAB, WIDTH]),
            dtype=mtf.VariableDType(tf.float32, tf.bfloat16, tf.float32),
            initializer=tf.zeros_initializer(),
        )
        rows = embedding_lookup(variable, tensors["ids"], VOCAB)
        loss = mtf.reduce_sum(rows * tensors["weights"])
        return [rows, *mtf.gradients([loss], [variable])]

    inputs = {
        "ids": (IDS, [BATCH, LENGTH]),
        "weights": (weights, [BATCH, LENGTH, WIDTH]),
    }
    rows, gradient = run_mesh(
        build, inputs, mesh_shape, layout_rules, weights={"table": table}
    )
    kept = table.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
    assert rows.dtype == gradient.dtype == np.float32
    np.testing.assert_array_equal(rows, kept[IDS])
    counts = np.bincount(IDS.ravel(), minlength=12)
    np.testing.assert_array_equal(gradient[:, 0], counts * np.float32(1 + 2**-16))


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:3])
@pytest.mark.parametrize("outside", [12, 17, -1])
def test_id_outside_the_vocabulary_is_an_error_that_shows_it(
    mesh_shape, layout_rules, outside
):
    """Whichever shard is the first to refuse it."""
    ids = IDS.copy()
    ids[1, 2] = outside
    for _ in range(3):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=rf"= {outside} is not in \[0"
        ):
            look_up(ids, mesh_shape, layout_rules)


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:3])
@pytest.mark.parametrize("outside", [12, 17, -1])
def test_id_outside_the_vocabulary_is_an_error_of_a_one_hot_too(
    mesh_shape, layout_rules, outside
):
    """Whose row would be zeros."""
    ids = IDS.copy()
    ids[1, 2] = outside
    told = rf"ids from.*{outside}.*not in \[0, 12\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){told}"):
        look_up(ids, mesh_shape, layout_rules, one_hot_lookup)


def test_a_vocabulary_and_ids_on_one_axis_are_refused():
    """No processor would see all ids that ask for its rows: the sums would be wrong."""
    with pytest.raises(UserError) as caught:
        look_up(IDS, "m:2", "vocab:m;batch:m")
    assert str(caught.value) == (
        "MeshConfig.layout_rules: rules vocab:m and batch:m split rows and the ids "
        "that look them up over the same mesh axis; give one of them another axis"
    )
