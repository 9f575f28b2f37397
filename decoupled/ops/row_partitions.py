"""Row-partitioned matrices: large ones kept as several variables, and their products.

TensorFlow's fused kernels update a whole variable in place, and nothing less. A large
output embedding is therefore several variables, each with some of its rows: the
gradient of one partition at a time is made and used, and is still in the processor's
cache when it is read. In checkpoints the partitions are slices of one variable, as
TensorFlow's partitioners make them: what reads such a variable elsewhere sees it whole,
and partitions are restored from one that was saved whole.

The rows of a partition, or of a part of any large matrix that is worked on while it is
in the processor's cache, are a tile.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decoupled.core.compat import tf

# Elements of a partition: 6 MB of gradient, beside weights and moments.
_PARTITION_ELEMENTS = 1_500_000
# A matrix has no more partitions than this, as each takes some 0.3 MB of the graph;
# those of the largest are larger.
_MOST_PARTITIONS = 128
# Of a graph: its row-partitioned variables, slices among them.
_COLLECTION = "row_partitioned_variables"
# Tiles begin at multiples of so many rows, where TensorFlow's kernels want a tensor to
# begin (64 bytes): a tile is then read where it is, not copied.
_ALIGNED_ROWS = 16
# TensorFlow draws four values at a time, and for each four has 256 steps of its
# generator ready, as it draws anew what lies outside.
_DRAWN_TOGETHER = 4
_STEPS = 256


class Tile(NamedTuple):
    """Some rows: the first, and how many."""

    first: int
    size: int


def row_tiles(rows: int, size: int) -> list[Tile]:
    """All rows in order, in tiles of about `size`, 16 at least; the last is smaller."""
    size = _ALIGNED_ROWS * max(1, size // _ALIGNED_ROWS)
    return [Tile(first, min(size, rows - first)) for first in range(0, rows, size)]


def slice_along(x: tf.Tensor, axis: int, tile: Tile) -> tf.Tensor:
    """The part of dimension `axis` that a tile covers; not copied if it is the first
    dimension."""
    begin, size = [0] * len(x.shape), x.shape.as_list()
    begin[axis], size[axis] = tile
    return tf.slice(x, begin, size)


def two_at_a_time(
    work: Callable[[Any], list[tf.Tensor]], tiles: Sequence
) -> list[list[tf.Tensor]]:
    """work(tile) for each tile, at most two of them at a time.

    Two, so that the copies of one run beside the products of the other.

    Args:
      work: builds a tile's part of the graph; returns tensors that are there once it is
        done.
      tiles: in the order in which they begin.
    """
    done = []
    for index, tile in enumerate(tiles):
        with tf.control_dependencies(done[index - 2] if index > 1 else []):
            done.append(work(tile))
    return done


class RowPartitionedVariable:
    """A matrix whose rows are kept in several variables.

    It has what Mesh-TensorFlow reads of a variable. As a tensor it is a copy.

    Args:
      name: of the whole.
      partitions: tf.Variable [rows, columns], from the first row on.

    Attributes: `tiles`, the rows of each partition.
    """

    def __init__(self, name: str, partitions: Sequence[tf.Variable]):
        self.name = f"{name}:0"
        self.partitions = list(partitions)
        self.dtype = self.partitions[0].dtype
        self.device = self.partitions[0].device
        sizes = [partition.shape.as_list()[0] for partition in self.partitions]
        ends = itertools.accumulate(sizes)
        self.tiles = [Tile(e - s, s) for e, s in zip(ends, sizes, strict=True)]
        self.shape = tf.TensorShape([sum(sizes), self.partitions[0].shape[1]])

    def assign(self, value: tf.Tensor, **_) -> tf.Operation:
        """Copies the rows of a matrix into buffers of the variables' own."""
        rows = copied_rows(value, self.tiles)
        return tf.group(
            [
                partition.assign(x)
                for partition, x in zip(self.partitions, rows, strict=True)
            ]
        )

    def read(self) -> "RowPartitionedTensor":
        """Its value, each partition read once."""
        values = [tf.identity(partition) for partition in self.partitions]
        return RowPartitionedTensor(
            self.shape, self.dtype, self.tiles, values.__getitem__
        )


@dataclasses.dataclass(frozen=True)
class RowPartitionedTensor:
    """The value of a row-partitioned matrix. As a tensor it is a copy.

    shape: of the whole. dtype: of its elements. tiles: the rows of each partition, in
    order. partition: from the index of a partition to its tensor [rows, columns], made
    when and where it is called.
    """

    shape: tf.TensorShape
    dtype: tf.DType
    tiles: list[Tile]
    partition: Callable[[int], tf.Tensor]

    def cast(self, dtype: tf.DType) -> "RowPartitionedTensor":
        """The same in another dtype, each partition cast when it is needed."""
        return dataclasses.replace(
            self,
            dtype=dtype,
            partition=lambda index: tf.cast(self.partition(index), dtype),
        )


def _whole(
    x: RowPartitionedVariable | RowPartitionedTensor,
    dtype: tf.DType | None = None,
    name: str | None = None,
    as_ref: bool = False,
) -> tf.Tensor:
    del name, as_ref
    value = x.read() if isinstance(x, RowPartitionedVariable) else x
    partitions = [value.partition(index) for index in range(len(value.tiles))]
    return tf.cast(tf.concat(partitions, axis=0), dtype or x.dtype)


for _kind in (RowPartitionedVariable, RowPartitionedTensor):
    tf.register_tensor_conversion_function(_kind, _whole)


def partition_rows(matrix: tf.Tensor, size: int) -> RowPartitionedTensor:
    """A matrix in partitions of about `size` rows, which are not copied."""
    tiles = row_tiles(matrix.shape[0], size)
    return RowPartitionedTensor(
        matrix.shape,
        matrix.dtype,
        tiles,
        lambda index: slice_along(matrix, 0, tiles[index]),
    )


def copied_rows(matrix: tf.Tensor, tiles: Sequence[Tile]) -> list[tf.Tensor]:
    """The rows of each tile in a buffer of its own, which a variable can take over."""
    return [tf.raw_ops.DeepCopy(x=slice_along(matrix, 0, tile)) for tile in tiles]


def row_partitioning_getter(is_chosen: Callable[[str], bool]) -> Callable:
    """A custom getter of a `tf.variable_scope`, by which the chosen variables become
    `RowPartitionedVariable`, where they are large.

    Args:
      is_chosen: whether the variable of this name is to be partitioned; it must be a
        matrix.
    """

    def get(getter, name, shape, **settings):
        count = _count(*shape) if is_chosen(name) else 1
        if count == 1:
            return getter(name, shape=shape, **settings)
        settings["partitioner"] = lambda shape, dtype: [count, 1]
        if settings["initializer"] is None:
            settings["initializer"] = tf.zeros_initializer()
        partitions = list(getter(name, shape=shape, **settings))
        variable = RowPartitionedVariable(name, partitions)
        tf.add_to_collection(_COLLECTION, variable)
        return variable

    return get


def _count(rows: int, columns: int) -> int:
    wanted = max(1, rows * columns // _PARTITION_ELEMENTS)
    return min(_MOST_PARTITIONS, wanted, rows)


def saved_variables() -> dict[str, tf.Variable | RowPartitionedVariable]:
    """The current graph's variables by their names in a checkpoint."""
    wholes = tf.get_collection(_COLLECTION)
    owners = {id(p): whole for whole in wholes for p in whole.partitions}
    found = [owners.get(id(v), v) for v in tf.global_variables()]
    return {variable.name.removesuffix(":0"): variable for variable in found}


def partitioned_product(product: Callable, equation: str, *factors) -> tf.Tensor:
    """A contraction with one row-partitioned matrix, a partition at a time.

    Args:
      product: computes an equation of two tensors.
      equation: of `tf.einsum`, e.g. "abc,dc->abd".
      factors: two, of which one is a `RowPartitionedTensor`.

    Returns:
      The result; summed in float32 where it sums over the rows.
    """
    (place,) = (i for i, x in enumerate(factors) if isinstance(x, RowPartitionedTensor))
    matrix, other = factors[place], factors[1 - place]
    operands, output = equation.split("->")
    operands = operands.split(",")
    row, indices = operands[place][0], operands[1 - place]
    results = []

    def multiply(index: int) -> list[tf.Tensor]:
        pair = [other, other]
        with tf.control_dependencies([other]):
            pair[place] = matrix.partition(index)
        if row in indices:
            tile = matrix.tiles[index]
            pair[1 - place] = slice_along(other, indices.index(row), tile)
        y = product(equation, *pair)
        if row in output:
            results.append(y)
        else:
            y = tf.cast(y, tf.float32)
            results[:] = [results[0] + y] if results else [y]
        return results[-1:]

    two_at_a_time(multiply, range(len(matrix.tiles)))
    if row in output:
        return tf.concat(results, axis=output.index(row))
    return tf.cast(results[0], other.dtype)


def truncated_normal(
    shape: Sequence[int], seed: Sequence[int], stddev: float, first_row: int = 0
) -> tf.Tensor:
    """Rows of `tf.random.stateless_truncated_normal(..., seed, stddev=stddev)`.

    Any rows can be drawn alone. So a row-partitioned matrix starts from the same
    weights as a whole one, and is never whole in memory.

    Args:
      shape: [rows, ...] of what is drawn.
      seed: two integers.
      stddev: of the normal distribution, which is cut at two of them.
      first_row: of the whole tensor, which has the same dimensions after the first.

    Returns:
      float32 values.
    """
    shape = tf.TensorShape(shape)
    size = shape.num_elements()
    before = first_row * shape[1:].num_elements()
    groups, excess = divmod(before, _DRAWN_TOGETHER)
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    values = tf.raw_ops.StatelessTruncatedNormalV2(
        shape=[excess + size],
        key=key,
        counter=counter + tf.constant([groups * _STEPS, 0], tf.uint64),
        alg=tf.raw_ops.StatelessRandomGetAlg(),
    )
    return tf.reshape(values[excess:] if excess else values, shape) * stddev
