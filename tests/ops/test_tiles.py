"""Large matrices a few rows at a time."""

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.ops.tiles import Tile, in_two_lanes, row_tiles, slice_along


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


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_part_of_any_dimension(axis):
    x = np.arange(60).reshape(3, 4, 5)
    with tf.Graph().as_default(), tf.Session() as session:
        part = session.run(slice_along(tf.constant(x), axis, Tile(1, 2)))
    np.testing.assert_array_equal(part, np.take(x, [1, 2], axis))


def test_a_tile_waits_for_the_one_before_the_last():
    """Only two are worked on at a time."""
    tiles = row_tiles(80, 16)
    with tf.Graph().as_default():
        made = in_two_lanes(lambda tile: [tf.constant(tile.first) + 1], tiles)
        sums = [tensors[0].op for tensors in made]
        waits = [
            {wait for source in op.inputs for wait in source.op.control_inputs}
            | set(op.control_inputs)
            for op in sums
        ]
    assert len(sums) == 5
    assert [w - {sums[n - 2]} for n, w in enumerate(waits)] == [set()] * 5
    assert [sums[n - 2] in w for n, w in enumerate(waits)] == [
        False, False, True, True, True,
    ]  # fmt: skip
