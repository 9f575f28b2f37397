"""Row-partitioned matrices: large ones kept as several variables, and their products.

TensorFlow's fused kernels update a whole variable in place, and nothing less. Of a
large output embedding whose rows are kept in variables of their own, the gradient of
one block at a time is made and used, and is still in the processor's cache when it is
read. In checkpoints the blocks are slices of one variable, as TensorFlow's partitioners
make them: what reads such a variable elsewhere sees it whole, and blocks are restored
from one that was saved whole.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from decoupled.core.compat import tf
from decoupled.ops.tiles import Tile, in_two_lanes, row_tiles, slice_along

# Numbers in a block: 6 MB of gradient, beside weights and moments.
_BLOCK = 1_500_000
# A matrix has no more blocks than this, as each takes some 0.3 MB of the graph; those
# of the largest are larger.
_MOST_BLOCKS = 128
# Of a graph: its variables in blocks, slices among them.
_COLLECTION = "row_variables"


class RowVariable:
    """A matrix whose rows are kept in several variables.

    It has what Mesh-TensorFlow asks of a variable. As a tensor it is a copy.

    Args:
      name: of the whole. parts: tf.Variable [rows, columns], from the first row on.
    """

    def __init__(self, name: str, parts: Sequence[tf.Variable]):
        self.name = f"{name}:0"
        self.parts = list(parts)
        self.dtype = self.parts[0].dtype
        self.device = self.parts[0].device
        sizes = [part.shape.as_list()[0] for part in self.parts]
        ends = itertools.accumulate(sizes)
        self.tiles = [Tile(e - s, s) for e, s in zip(ends, sizes, strict=True)]
        self.shape = tf.TensorShape([sum(sizes), self.parts[0].shape[1]])

    def assign(self, value: tf.Tensor, **_) -> tf.Operation:
        """Copies the rows of a matrix into buffers of the variables' own."""
        rows = copied_rows(value, self.tiles)
        return tf.group(
            [part.assign(x) for part, x in zip(self.parts, rows, strict=True)]
        )

    def read(self) -> "RowBlocks":
        """Its values, each block read once."""
        values = [tf.identity(part) for part in self.parts]
        return RowBlocks(self.shape, self.dtype, self.tiles, values.__getitem__)


@dataclasses.dataclass(frozen=True)
class RowBlocks:
    """The value of a row-partitioned matrix. As a tensor it is a copy.

    shape: of the whole. dtype: of its numbers. tiles: the rows of each block, in order.
    block: from the number of a block to its tensor [rows, columns], made when and where
      it is called.
    """

    shape: tf.TensorShape
    dtype: tf.DType
    tiles: list[Tile]
    block: Callable[[int], tf.Tensor]

    def cast(self, dtype: tf.DType) -> "RowBlocks":
        """The same in another dtype, each block cast when it is needed."""
        return dataclasses.replace(
            self, dtype=dtype, block=lambda number: tf.cast(self.block(number), dtype)
        )


def as_row_blocks(matrix: tf.Tensor, size: int) -> RowBlocks:
    """A matrix in blocks of about `size` rows, which are not copied."""
    tiles = row_tiles(matrix.shape[0], size)
    return RowBlocks(
        matrix.shape,
        matrix.dtype,
        tiles,
        lambda number: slice_along(matrix, 0, tiles[number]),
    )


def _whole(x, dtype=None, name=None, as_ref=False):
    del name, as_ref
    blocks = x.read() if isinstance(x, RowVariable) else x
    parts = [blocks.block(number) for number in range(len(blocks.tiles))]
    return tf.cast(tf.concat(parts, axis=0), dtype or x.dtype)


for _kind in (RowVariable, RowBlocks):
    tf.register_tensor_conversion_function(_kind, _whole)


def copied_rows(matrix: tf.Tensor, tiles: Sequence[Tile]) -> list[tf.Tensor]:
    """The rows of each tile in a buffer of its own, which a variable can take over."""
    return [tf.raw_ops.DeepCopy(x=slice_along(matrix, 0, tile)) for tile in tiles]


def in_row_blocks(is_chosen: Callable[[str], bool]) -> Callable:
    """What makes the chosen variables of a scope `RowVariable`, where they are large.

    Args:
      is_chosen: whether the variable of this name is one, being a matrix.

    Returns:
      A custom getter of a `tf.variable_scope`.
    """

    def get(getter, name, shape, **settings):
        count = _count(*shape) if is_chosen(name) else 1
        if count == 1:
            return getter(name, shape=shape, **settings)
        settings["partitioner"] = lambda shape, dtype: [count, 1]
        if settings["initializer"] is None:
            settings["initializer"] = tf.zeros_initializer()
        variable = RowVariable(name, list(getter(name, shape=shape, **settings)))
        tf.add_to_collection(_COLLECTION, variable)
        return variable

    return get


def _count(rows, columns):
    return min(_MOST_BLOCKS, max(1, rows * columns // _BLOCK), rows)


def saved_variables() -> dict[str, tf.Variable | RowVariable]:
    """The current graph's variables by their names in a checkpoint."""
    in_blocks = tf.get_collection(_COLLECTION)
    owners = {id(part): whole for whole in in_blocks for part in whole.parts}
    wholes = [owners.get(id(v), v) for v in tf.global_variables()]
    return {whole.name.removesuffix(":0"): whole for whole in wholes}


def product_by_rows(product: Callable, equation: str, *factors) -> tf.Tensor:
    """A contraction with one row-partitioned matrix, a partition at a time.

    Args:
      product: computes an equation of two tensors.
      equation: of `tf.einsum`, e.g. "abc,dc->abd".
      factors: two, of which one is a `RowBlocks`.

    Returns:
      The result; summed in float32 where it sums over the rows.
    """
    (place,) = (i for i, x in enumerate(factors) if isinstance(x, RowBlocks))
    blocks, other = factors[place], factors[1 - place]
    operands, output = equation.split("->")
    operands = operands.split(",")
    row, indices = operands[place][0], operands[1 - place]
    parts = []

    def part(number):
        pair = [other, other]
        with tf.control_dependencies([other]):
            pair[place] = blocks.block(number)
        if row in indices:
            tile = blocks.tiles[number]
            pair[1 - place] = slice_along(other, indices.index(row), tile)
        y = product(equation, *pair)
        if row in output:
            parts.append(y)
        else:
            y = tf.cast(y, tf.float32)
            parts[:] = [parts[0] + y] if parts else [y]
        return parts[-1:]

    in_two_lanes(part, range(len(blocks.tiles)))
    if row in output:
        return tf.concat(parts, axis=output.index(row))
    return tf.cast(parts[0], other.dtype)
