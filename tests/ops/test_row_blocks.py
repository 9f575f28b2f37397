"""Row-partitioned matrices: as variables, in checkpoints, in products."""

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.ops.row_blocks import (
    RowVariable,
    as_row_blocks,
    in_row_blocks,
    product_by_rows,
)
from tests.helpers import starting_from

TABLE = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of four or five rows of 3."""
    monkeypatch.setattr("decoupled.ops.row_blocks._BLOCK", 14)


def variable(name="table", rows=20, chosen=("table",), values=None):
    """One that starts from the first rows of TABLE, or from some values."""

    start = starting_from(TABLE[:rows] if values is None else values)
    getter = in_row_blocks(chosen.__contains__)
    with tf.variable_scope("", use_resource=True, custom_getter=getter):
        return tf.get_variable(name, [rows, 3], initializer=start)


def test_only_chosen_and_large_variables_are_in_blocks():
    with tf.Graph().as_default():
        table = variable()
        assert isinstance(table, RowVariable)
        assert not isinstance(variable("small", rows=6, chosen=("small",)), RowVariable)
        assert not isinstance(variable("other"), RowVariable)
        names = [v.op.name for v in tf.global_variables()]
    assert names == [*(f"table/part_{n}" for n in range(4)), "small", "other"]


def test_it_has_what_mesh_tensorflow_asks_of_a_variable():
    with tf.Graph().as_default(), tf.device("cpu:0"):
        table = variable()
    assert table.name == "table:0"
    assert table.shape.as_list() == [20, 3]
    assert table.dtype == tf.float32
    assert table.device.lower().endswith("cpu:0")
    assert [(t.first, t.size) for t in table.tiles] == [(n, 5) for n in (0, 5, 10, 15)]


def test_there_are_not_more_blocks_than_rows_nor_than_the_most(monkeypatch):
    monkeypatch.setattr("decoupled.ops.row_blocks._BLOCK", 1)
    with tf.Graph().as_default():
        assert len(variable().parts) == 20
    monkeypatch.setattr("decoupled.ops.row_blocks._MOST_BLOCKS", 3)
    with tf.Graph().as_default():
        assert [part.shape[0] for part in variable().parts] == [7, 7, 6]


def test_values_are_those_of_the_whole():
    with tf.Graph().as_default(), tf.Session() as session:
        table = variable()
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(tf.identity(table)), TABLE)
        read = table.read().cast(tf.bfloat16)
        assert (read.dtype, read.shape.as_list()) == (tf.bfloat16, [20, 3])
        np.testing.assert_array_equal(session.run(read.block(1)), TABLE[5:10])


def test_assigned_rows_are_copies():
    """Each block has its own buffer, and can be updated where it is."""
    with tf.Graph().as_default(), tf.Session() as session:
        table = variable()
        source = tf.Variable(-TABLE, use_resource=True)
        session.run(tf.global_variables_initializer())
        session.run(table.assign(source))
        session.run([part.assign_add(tf.ones_like(part)) for part in table.parts])
        np.testing.assert_array_equal(session.run(tf.identity(table)), 1 - TABLE)
        np.testing.assert_array_equal(session.run(source), -TABLE)


def saved(folder, chosen):
    """The prefix of a checkpoint of TABLE, in blocks where it is chosen."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable(chosen=chosen)
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(folder / "model.ckpt"))


@pytest.mark.parametrize("chosen", [("table",), ()], ids=["from blocks", "from whole"])
@pytest.mark.parametrize("block", [14, 20, 10**6], ids=["same", "larger", "whole"])
def test_blocks_of_any_size_are_restored_from_blocks_of_any_other(
    tmp_path, monkeypatch, chosen, block
):
    prefix = saved(tmp_path, chosen)
    monkeypatch.setattr("decoupled.ops.row_blocks._BLOCK", block)
    with tf.Graph().as_default(), tf.Session() as session:
        table = variable(values=np.zeros([20, 3], np.float32))
        assert isinstance(table, RowVariable) == (block < 10**6)
        tf.train.Saver().restore(session, prefix)
        np.testing.assert_array_equal(session.run(tf.identity(table)), TABLE)


def test_checkpoints_name_the_whole(tmp_path):
    reader = tf.train.load_checkpoint(saved(tmp_path, ("table",)))
    assert reader.get_variable_to_shape_map() == {"table": [20, 3]}
    np.testing.assert_array_equal(reader.get_tensor("table"), TABLE)


@pytest.mark.parametrize(
    ("equation", "shape"),
    [("abc,dc->abd", [2, 4, 3]), ("abd,dc->abc", [2, 4, 20]), ("dc,bc->db", [4, 3])],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_products_are_those_with_the_whole(equation, shape, dtype):
    x = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
    table = TABLE % 7 - 3
    with tf.Graph().as_default(), tf.Session() as session:
        blocks = as_row_blocks(tf.constant(table), 16).cast(dtype)
        assert len(blocks.tiles) == 2
        pair = (tf.cast(tf.constant(x), dtype), blocks)
        if equation.startswith("dc"):
            pair = pair[::-1]
        y = product_by_rows(tf.einsum, equation, *pair)
        assert y.dtype == dtype
        found = session.run(tf.cast(y, tf.float32))
    arrays = (table, x) if equation.startswith("dc") else (x, table)
    wanted = np.einsum(equation, *arrays)
    assert np.abs(wanted).max() < 256
    np.testing.assert_array_equal(found, wanted)


def test_a_product_reads_blocks_after_the_other_factor():
    """What is cast is not there before it can be used."""
    with tf.Graph().as_default():
        x = tf.ones([4, 3], tf.bfloat16)
        blocks = as_row_blocks(tf.constant(TABLE), 16).cast(tf.bfloat16)
        product_by_rows(tf.einsum, "bc,dc->bd", x, blocks)
        casts = [o for o in tf.get_default_graph().get_operations() if o.type == "Cast"]
        waits = [
            {source.op for source in cast.inputs[0].op.inputs} | {cast}
            for cast in casts
        ]
    assert len(casts) == 2
    for operations in waits:
        assert any(x.op in o.control_inputs for o in operations)
