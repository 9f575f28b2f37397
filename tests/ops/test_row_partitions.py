"""Row-partitioned matrices: tiles, variables, products, initial values."""

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.ops.row_partitions import (
    RowPartitionedVariable,
    Tile,
    partition_rows,
    partitioned_product,
    row_partitioning_getter,
    row_tiles,
    truncated_normal,
)
from tests.helpers import starting_from

TABLE = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch):
    """Partitions of four or five rows of 3."""
    monkeypatch.setattr("decoupled.ops.row_partitions._PARTITION_ELEMENTS", 14)


def variable(name="table", rows=20, chosen=("table",), values=None):
    """One that starts from the first rows of TABLE, or from some values."""

    start = starting_from(TABLE[:rows] if values is None else values)
    getter = row_partitioning_getter(chosen.__contains__)
    with tf.variable_scope("", use_resource=True, custom_getter=getter):
        return tf.get_variable(name, [rows, 3], initializer=start)


def test_only_chosen_and_large_variables_are_partitioned():
    with tf.Graph().as_default():
        table = variable()
        assert isinstance(table, RowPartitionedVariable)
        assert not isinstance(
            variable("small", rows=6, chosen=("small",)), RowPartitionedVariable
        )
        assert not isinstance(variable("other"), RowPartitionedVariable)
        names = [v.op.name for v in tf.global_variables()]
    assert names == [*(f"table/part_{n}" for n in range(4)), "small", "other"]


def test_partitions_of_the_largest_are_not_wider_than_long(monkeypatch):
    monkeypatch.setattr("decoupled.ops.row_partitions._PARTITION_ELEMENTS", 3)
    monkeypatch.setattr("decoupled.ops.row_partitions._MOST_PARTITIONS", 10)
    with tf.Graph().as_default():
        rows = [partition.shape[0] for partition in variable().partitions]
    assert rows == [3, 3, 3, 3, 3, 3, 2]


def test_assigned_rows_are_copies():
    """Each partition has its own buffer, and can be updated where it is."""
    with tf.Graph().as_default(), tf.Session() as session:
        table = variable()
        source = tf.Variable(-TABLE, use_resource=True)
        session.run(tf.global_variables_initializer())
        session.run(table.assign(source))
        session.run([p.assign_add(tf.ones_like(p)) for p in table.partitions])
        np.testing.assert_array_equal(session.run(tf.identity(table)), 1 - TABLE)
        np.testing.assert_array_equal(session.run(source), -TABLE)


@pytest.mark.parametrize(
    ("equation", "shape"),
    [("abc,dc->abd", [2, 4, 3]), ("abd,dc->abc", [2, 4, 20]), ("dc,bc->db", [4, 3])],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_products_are_those_with_the_whole(equation, shape, dtype):
    x = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
    table = TABLE % 7 - 3
    with tf.Graph().as_default(), tf.Session() as session:
        matrix = partition_rows(tf.constant(table), 16).cast(dtype)
        assert len(matrix.tiles) == 2
        pair = (tf.cast(tf.constant(x), dtype), matrix)
        if equation.startswith("dc"):
            pair = pair[::-1]
        y = partitioned_product(tf.einsum, equation, *pair)
        assert y.dtype == dtype
        result = session.run(tf.cast(y, tf.float32))
    arrays = (table, x) if equation.startswith("dc") else (x, table)
    product = np.einsum(equation, *arrays)
    assert np.abs(product).max() < 256
    np.testing.assert_array_equal(result, product)


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [
        (100, 40, [Tile(0, 32), Tile(32, 32), Tile(64, 32), Tile(96, 4)]),
        (64, 32, [Tile(0, 32), Tile(32, 32)]),
        (20, 1, [Tile(0, 16), Tile(16, 4)]),
        (20, 0, [Tile(0, 16), Tile(16, 4)]),
        (5, 1000, [Tile(0, 5)]),
    ],
)
def test_tiles_cover_all_rows_in_multiples_of_16(rows, size, expected):
    assert row_tiles(rows, size) == expected


SEED = [7, 12345]


@pytest.fixture(scope="module")
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def expected(session, shape):
    drawn = tf.random.stateless_truncated_normal(shape, SEED, stddev=0.02)
    return session.run(drawn)


@pytest.mark.parametrize("shape", [[9], [1001, 7], [64, 48], [3, 5, 6], [0, 4]])
def test_whole(session, shape):
    result = session.run(truncated_normal(shape, SEED, 0.02))
    np.testing.assert_array_equal(result, expected(session, shape))


@pytest.mark.parametrize(
    ("columns", "first", "rows"),
    [(7, 0, 10), (7, 4, 3), (7, 101, 501), (7, 999, 2), (6, 3, 500), (128, 77, 900)],
)
def test_some_rows_of_a_matrix(session, columns, first, rows):
    result = session.run(truncated_normal([rows, columns], SEED, 0.02, first))
    whole = expected(session, [1001, columns])
    np.testing.assert_array_equal(result, whole[first : first + rows])
