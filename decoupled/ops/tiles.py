"""Large matrices worked on a few rows at a time, in TensorFlow's graph.

What is made on the way is then small, and mostly still in the processor's cache when it
is read.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decoupled.core.compat import tf

# Rows are counted in these, so that a few rows of a tensor begin where TensorFlow's
# kernels want a tensor to (64 bytes): they are then read where they are, not copied.
_ALIGNED_ROWS = 16


class Tile(NamedTuple):
    """Some rows: the first, and how many."""

    first: int
    size: int


def row_tiles(rows: int, size: int) -> list[Tile]:
    """All rows in order, in tiles of about `size`, 16 at least; the last is smaller."""
    size = _ALIGNED_ROWS * max(1, size // _ALIGNED_ROWS)
    return [Tile(first, min(size, rows - first)) for first in range(0, rows, size)]


def slice_along(x: tf.Tensor, axis: int, tile: Tile) -> tf.Tensor:
    """The part of a dimension that a tile counts; not copied if it is the first."""
    begin, size = [0] * len(x.shape), x.shape.as_list()
    begin[axis], size[axis] = tile
    return tf.slice(x, begin, size)


def in_two_lanes(
    work: Callable[[Any], list[tf.Tensor]], tiles: Sequence
) -> list[list[tf.Tensor]]:
    """work(tile) for each tile, at most two of them at a time.

    Two, so that one's copies run beside the other's products.

    Args:
      work: builds a tile's part of the graph; what it gives is there once it is done.
      tiles: in the order in which they begin.
    """
    done = []
    for number, tile in enumerate(tiles):
        with tf.control_dependencies(done[number - 2] if number > 1 else []):
            done.append(work(tile))
    return done
