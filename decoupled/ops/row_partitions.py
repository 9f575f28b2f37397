"""Row-partitioned matrices, and products with them.

TensorFlow's fused kernels update whole variables in place, and no single rows. A large
output embedding is therefore stored as several variables, each with some of its rows.
The gradient of one partition at a time is computed and used, while it is still in the
processor's cache. In checkpoints the partitions are slices of one variable, as with
TensorFlow's partitioners, and they can be restored from a variable that was saved
whole.

A tile is a range of rows: those of a partition, or of a part of any large matrix that
fits into the processor's cache.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decoupled.core.compat import tf

# Elements of a partition: 6 MB of gradient, beside weights and moments.
_PARTITION_ELEMENTS = 1_500_000
# Each partition adds some 0.3 MB to the graph, so that a matrix has no more than this.
# The largest matrices have larger partitions instead.
_MOST_PARTITIONS = 128
# The collection of a graph's row-partitioned variables, including mesh slices.
_COLLECTION = "row_partitioned_variables"
# Tiles begin at multiples of so many rows. They are then aligned to 64 bytes, as
# TensorFlow's kernels require, and can be read without a copy.
_ALIGNED_ROWS = 16
# TensorFlow draws four values at a time. It reserves 256 steps of its generator for
# them, as it draws values outside of the truncated range again.
_DRAW_SIZE = 4
_DRAW_STEPS = 256


class Tile(NamedTuple):
    """Some rows: the first, and how many."""

    first: int
    size: int


def row_tiles(rows: int, size: int) -> list[Tile]:
    """All rows in order, in tiles of about `size` rows, but at least 16; the last tile
    may be smaller."""
    size = _ALIGNED_ROWS * max(1, size // _ALIGNED_ROWS)
    return [Tile(first, min(size, rows - first)) for first in range(0, rows, size)]


def slice_along(x: tf.Tensor, axis: int, tile: Tile) -> tf.Tensor:
    """The part of dimension `axis` that a tile covers; not copied if `axis` is 0."""
    begin, size = [0] * len(x.shape), x.shape.as_list()
    begin[axis], size[axis] = tile
    return tf.slice(x, begin, size)


def two_at_a_time(
    work: Callable[[Any], list[tf.Tensor]], tiles: Sequence
) -> list[list[tf.Tensor]]:
    """work(tile) for each tile, at most two of them at a time: the copies of one run in
    parallel with the products of the other. It returns tensors that are available once
    the tile's part of the graph has run."""
    results = []
    for index, tile in enumerate(tiles):
        with tf.control_dependencies(results[index - 2] if index > 1 else []):
            results.append(work(tile))
    return results


class RowPartitionedVariable:
    """A matrix whose rows are stored in several variables, in their order.

    It has the attributes of a variable that Mesh-TensorFlow reads. Converting it to a
    tensor copies it. `tiles` has the rows of each partition.
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
        """Copies the rows of a matrix to the partitions."""
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
    """The value of a row-partitioned matrix. Converting it to a tensor copies it.

    partition: maps the index of a partition, whose rows are in `tiles`, to its tensor,
    which it creates in the current scope of the graph.
    """

    shape: tf.TensorShape
    dtype: tf.DType
    tiles: list[Tile]
    partition: Callable[[int], tf.Tensor]

    def cast(self, dtype: tf.DType) -> "RowPartitionedTensor":
        """Each partition is cast when it is needed."""
        return dataclasses.replace(
            self,
            dtype=dtype,
            partition=lambda index: tf.cast(self.partition(index), dtype),
        )


def _to_tensor(
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
    tf.register_tensor_conversion_function(_kind, _to_tensor)


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
    """A copy of each tile's rows, whose buffer a variable can take over."""
    # Variables that took over one tensor would share its buffer. TensorFlow copies a
    # shared buffer before each update.
    return [tf.raw_ops.DeepCopy(x=slice_along(matrix, 0, tile)) for tile in tiles]


def row_partitioning_getter(is_chosen: Callable[[str], bool]) -> Callable:
    """A custom getter of a `tf.variable_scope` that partitions large variables.

    Matrices whose name `is_chosen` become `RowPartitionedVariable`.
    """

    def get(getter, name, shape, **settings):
        count = _count(*shape) if is_chosen(name) else 1
        if count == 1:
            return getter(name, shape=shape, **settings)
        settings["partitioner"] = lambda shape, dtype: [count, 1]
        partitions = list(getter(name, shape=shape, **settings))
        variable = RowPartitionedVariable(name, partitions)
        tf.add_to_collection(_COLLECTION, variable)
        return variable

    return get


def _count(rows: int, columns: int) -> int:
    count = max(1, rows * columns // _PARTITION_ELEMENTS)
    if count > _MOST_PARTITIONS:
        count = min(_MOST_PARTITIONS, -(-rows // columns))
    return min(count, rows)


def saved_variables() -> dict[str, tf.Variable | RowPartitionedVariable]:
    """The current graph's variables by their names in a checkpoint."""
    matrices = tf.get_collection(_COLLECTION)
    owners = {id(p): matrix for matrix in matrices for p in matrix.partitions}
    variables = [owners.get(id(v), v) for v in tf.global_variables()]
    return {variable.name.removesuffix(":0"): variable for variable in variables}


def partitioned_product(product: Callable, equation: str, *factors) -> tf.Tensor:
    """A contraction with one row-partitioned matrix, one partition at a time.

    `product` maps an equation of `tf.einsum`, e.g. "abc,dc->abd", and two tensors to
    their contraction. If it sums over the rows, the sums over partitions are float32.
    """
    (side,) = (i for i, x in enumerate(factors) if isinstance(x, RowPartitionedTensor))
    matrix, factor = factors[side], factors[1 - side]
    operands, output = equation.split("->")
    operands = operands.split(",")
    row, indices = operands[side][0], operands[1 - side]
    results = []

    def multiply(index: int) -> list[tf.Tensor]:
        pair = [factor, factor]
        with tf.control_dependencies([factor]):
            pair[side] = matrix.partition(index)
        if row in indices:
            tile = matrix.tiles[index]
            pair[1 - side] = slice_along(factor, indices.index(row), tile)
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
    return tf.cast(results[0], factor.dtype)


def truncated_normal(
    shape: Sequence[int], seed: Sequence[int], stddev: float, first_row: int = 0
) -> tf.Tensor:
    """Float32 rows of `tf.random.stateless_truncated_normal(..., seed, stddev=stddev)`.

    Any range of rows can be drawn alone. A row-partitioned matrix therefore starts from
    the same weights as a whole one without being whole in memory. `shape` is that of
    the result, and `first_row` its place in the whole tensor.
    """
    shape = tf.TensorShape(shape)
    size = shape.num_elements()
    skipped_count = first_row * shape[1:].num_elements()
    groups, excess = divmod(skipped_count, _DRAW_SIZE)
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    values = tf.raw_ops.StatelessTruncatedNormalV2(
        shape=[excess + size],
        key=key,
        counter=counter + tf.constant([groups * _DRAW_STEPS, 0], tf.uint64),
        alg=tf.raw_ops.StatelessRandomGetAlg(),
    )
    return tf.reshape(values[excess:] if excess else values, shape) * stddev
