"""The softmax of a linear layer on one device, a block of the vocabulary at a time.

`decoupled.ops.linear_cross_entropy` combines the devices' results. With p the softmax
of the logits, t the target of a position, s the label smoothing and V the size of the
vocabulary, the gradient of a logit is p - s / V, and at the target p - s / V - (1 - s).
There p - 1 is computed as minus the sum of all other probabilities, so that a small
gradient does not lose its digits. For this reason all sums leave out the target's own
exponential.

Sums are float32. Factors of products have the activation dtype, as in other layers.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from decoupled.core.compat import gen_xla_ops, tf
from decoupled.ops.cross_entropy import HOST, Kernels
from decoupled.ops.gradients import squared_norm_of_slice
from decoupled.ops.meshes.placement import matrix_product
from decoupled.ops.recompute import barrier
from decoupled.ops.row_partitions import (
    RowPartitionedTensor,
    Tile,
    row_tiles,
    slice_along,
    two_at_a_time,
)
from decoupled.ops.shared import own_in_range


class Block(NamedTuple):
    """Some rows of a table.

    tile: the rows within the device's whole table. partition: index of the partition
    that has them, 0 if the table is not partitioned. inner: the rows within the
    partition.
    """

    tile: Tile
    partition: int
    inner: Tile


@dataclasses.dataclass(frozen=True)
class Kept:
    """The exponentials of all blocks, kept for the gradient.

    shape: of the logits, [..., rows of the device]. blocks: for each block a pair of
    tensors: exp(logit - reference), [positions, rows], which is 0 at targets; and the
    reference, [positions, 1].
    """

    shape: tf.TensorShape
    blocks: list[tuple[tf.Tensor, tf.Tensor]]


class SoftmaxSlice:
    """One device's part of the vocabulary.

    Args:
      x: [..., E_out]. table: [rows, E_out], of any float dtype, whole or
        row-partitioned. bias: [rows]. targets: int32 [...], of the whole vocabulary.
      coordinate: index of this device's part of the vocabulary. vocab_size: size of the
        whole vocabulary.
      block_size: most rows of a block. smoothing: of labels.
      dtype: of the factors of products.
      kernels: `HOST` if TensorFlow's executor runs this, `XLA` if XLA compiles it.
    """

    def __init__(
        self,
        x: tf.Tensor,
        table: tf.Tensor | RowPartitionedTensor,
        bias: tf.Tensor,
        targets: tf.Tensor,
        coordinate: tf.Tensor | int,
        *,
        vocab_size: int,
        block_size: int,
        smoothing: float,
        dtype: tf.DType,
        kernels: Kernels,
    ):
        self.dtype, self._kernels, self._smoothing = dtype, kernels, smoothing
        self.on_host = kernels is HOST
        self._x = tf.cast(tf.reshape(x, [-1, x.shape[-1]]), dtype)
        self._targets_shape = targets.shape
        self._targets = tf.reshape(targets, [-1])
        self._positions = self._targets.shape[0]
        if not isinstance(table, RowPartitionedTensor):
            table = tf.convert_to_tensor(table)
        self._table, self._bias = table, tf.convert_to_tensor(bias)
        self._first = coordinate * table.shape[0]
        self._vocab_size = vocab_size
        self.partitions = [Tile(0, int(table.shape[0]))]
        if isinstance(table, RowPartitionedTensor):
            self.partitions = table.tiles
        self.blocks = _blocks(self.partitions, block_size)
        self.shape = tf.TensorShape(table.shape)

    def forward(self, wanted: Collection[str]) -> dict[str, Any]:
        """Sums over all blocks, each exponential relative to the largest logit here.

        Args:
          wanted: which optional groups of results to return: "of_x", "pairs", "kept".

        Returns:
          Name -> result. Always, float32 [positions, 1]:
            largest: the largest logit; candidate: its id in the whole vocabulary.
            target: the target's logit, 0 if another device has it.
            others: the sum of all exponentials but the target's.
            mean: the sum of the logits divided by V, only with smoothing.
          With "of_x":
            weighted: float32 [positions, E_out], the sum of the table's rows times
              these exponentials.
            target_rows: of the same shape, the row of the target, 0 if another device
              has it.
            all_rows: [1, E_out], the sum of the table's rows, only with smoothing.
          With "pairs":
            products: float32 [positions, positions], the inner product of the
              exponentials of each pair of positions.
            at_targets: of the same shape, the exponentials of one position at the
              target of the other.
          With "kept":
            kept: `Kept`.
        """
        sums, kept = {}, []

        def work(block: Block) -> list[tf.Tensor]:
            table = self._table
            if sums and not self.on_host:
                table, *held = barrier(table, *sums.values())
                sums.update(zip(sums, held, strict=True))
            rows = self._rows(table, block)
            logits = self._logits(block, rows)
            largest, place = self._kernels.largest(logits)
            place = tf.cast(place + self._first + block.tile.first, tf.float32)
            cells, index, own = self._cells(block)
            target = tf.expand_dims(tf.gather_nd(logits, cells) * own, 1)
            parts = {"target": target}
            read = [largest, target]
            if self._smoothing:
                parts["mean"] = self._row_sums(logits) / self._vocab_size
                read.append(parts["mean"])
            if sums.get("largest") is None:
                scale, sums["largest"], sums["candidate"] = None, largest, place
            else:
                before = sums["largest"]
                sums["largest"] = tf.maximum(before, largest)
                # The smallest id wins a tie.
                better = largest > before
                sums["candidate"] = tf.where_v2(better, place, sums["candidate"])
                scale = tf.exp(before - sums["largest"])
            e = self._exponentials(logits, sums["largest"], cells, own, read)
            scaled = {"others": self._row_sums(e)}
            if "of_x" in wanted:
                factor = tf.cast(e, self.dtype)
                product = matrix_product("pv,ve->pe", factor, rows)
                scaled["weighted"] = tf.cast(product, tf.float32)
                parts |= self._of_rows(rows, index, own, sums.get("target_rows"))
            if "pairs" in wanted:
                scaled["products"] = tf.matmul(e, e, transpose_b=True)
                scaled["at_targets"] = tf.gather(e, index, axis=1) * own
            for name, part in scaled.items():
                if scale is not None:
                    earlier = sums[name] * scale
                    if name == "products":
                        earlier *= tf.transpose(scale)
                    part += earlier
                sums[name] = part
            for name, part in parts.items():
                is_sum = name in sums and name != "target_rows"
                sums[name] = sums[name] + part if is_sum else part
            kept.append((e, sums["largest"]))
            return [sums["largest"], *(sums[name] for name in (*scaled, *parts))]

        if self.on_host:
            two_at_a_time(work, self.blocks)
        else:
            for block in self.blocks:
                work(block)
        if "kept" in wanted:
            shape = self._targets_shape.concatenate([self.shape[0]])
            sums["kept"] = Kept(shape, kept)
        return sums

    def gradient(
        self,
        dy: tf.Tensor,
        largest: tf.Tensor,
        total: tf.Tensor,
        of_target: tf.Tensor,
        kept: Kept | None,
    ) -> "TableGradient":
        """The gradients of table and bias.

        Args:
          dy: float32 [...], gradient of the losses.
          largest, total, of_target: float32 [...], over the whole vocabulary: the
            largest logit, the sum of exp(logit - largest), and the gradient of the
            target's logit without its -s / V.
          kept: from `forward`, or None to recompute the exponentials.
        """
        column = [self._positions, 1]
        dy, largest, total, of_target = (
            tf.reshape(v, column) for v in (dy, largest, total, of_target)
        )
        table = self._table
        if not self.on_host:
            # The table waits for the backward pass. Its blocks' logits would else be
            # those of the forward pass, kept since then.
            table, dy = barrier(table, dy)
        even = dy * (self._smoothing / self._vocab_size)

        def of_logits(place: int, table: tf.Tensor | RowPartitionedTensor) -> tf.Tensor:
            block = self.blocks[place]
            cells, _, own = self._cells(block)
            if kept:
                e, reference = kept.blocks[place]
                factor = dy * tf.exp(reference - largest) / total
            else:
                logits = self._logits(block, self._rows(table, block))
                e = self._exponentials(logits, largest, cells, own, [])
                factor = dy / total
            result = e * factor
            if self._smoothing:
                result -= even
            update = tf.squeeze(of_target * dy, 1) * own
            return self._kernels.add_at(result, cells, update)

        return TableGradient(self, of_logits, table)

    def transposed_product(self, gradient: tf.Tensor) -> tf.Tensor:
        """The product of a block's logits' gradient with x: float32 [rows, E_out].

        Args:
          gradient: float32 [positions, rows].
        """
        y = matrix_product("pv,pe->ve", tf.cast(gradient, self.dtype), self._x)
        return tf.cast(y, tf.float32)

    def _rows(self, table: tf.Tensor | RowPartitionedTensor, block: Block) -> tf.Tensor:
        if isinstance(table, RowPartitionedTensor):
            table = table.partition(block.partition)
        if block.inner.size < table.shape[0]:
            table = slice_along(table, 0, block.inner)
        return tf.cast(table, self.dtype)

    def _logits(self, block: Block, rows: tf.Tensor) -> tf.Tensor:
        logits = tf.cast(matrix_product("pe,ve->pv", self._x, rows), tf.float32)
        return logits + tf.cast(slice_along(self._bias, 0, block.tile), tf.float32)

    def _cells(self, block: Block) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The [row, column] of each target in a block's logits; the column alone; and
        float32 1 if the target lies in this block, else 0."""
        start = self._first + block.tile.first
        index, own = own_in_range(
            self._targets, start, block.tile.size, self._vocab_size
        )
        cells = tf.stack([tf.range(self._positions), index], axis=1)
        return cells, index, tf.cast(own, tf.float32)

    def _exponentials(
        self,
        logits: tf.Tensor,
        reference: tf.Tensor,
        cells: tf.Tensor,
        own: tf.Tensor,
        read: list[tf.Tensor],
    ) -> tf.Tensor:
        """exp(logits - reference), 0 at targets. `read`: tensors made of the logits."""
        # After every other read of the logits, so that their buffer may be overwritten.
        with tf.control_dependencies(read if self.on_host else []):
            e = tf.exp(logits - reference)
        return self._kernels.add_at(e, cells, -tf.gather_nd(e, cells) * own)

    def _of_rows(
        self,
        rows: tf.Tensor,
        index: tf.Tensor,
        own: tf.Tensor,
        target_rows: tf.Tensor | None,
    ) -> dict[str, tf.Tensor]:
        if self.on_host:
            if target_rows is None:
                target_rows = tf.zeros([self._positions, rows.shape[1]])
            places = tf.where(own > 0.0)
            found = tf.gather(rows, tf.gather_nd(index, places))
            found = tf.cast(found, tf.float32)
            target_rows = self._kernels.add_at(target_rows, places, found)
        else:
            found = tf.cast(tf.gather(rows, index), tf.float32) * own[:, tf.newaxis]
            target_rows = found if target_rows is None else target_rows + found
        if not self._smoothing:
            return {"target_rows": target_rows}
        all_rows = self.column_sums(tf.cast(rows, tf.float32))
        return {"target_rows": target_rows, "all_rows": all_rows}

    def _row_sums(self, x: tf.Tensor) -> tf.Tensor:
        # On a CPU a matrix product is faster; a TPU would round its factors.
        if self.on_host:
            return tf.matmul(x, tf.ones([x.shape[1], 1]))
        return tf.reduce_sum(x, axis=1, keepdims=True)

    def column_sums(self, x: tf.Tensor) -> tf.Tensor:
        """[positions, n] to [1, n]."""
        if self.on_host:
            return tf.matmul(tf.ones([1, x.shape[0]]), x)
        return tf.reduce_sum(x, axis=0, keepdims=True)


class TableGradient:
    """The gradients of one device's table and bias, computed where they are used.

    Args:
      of: the softmax.
      of_logits: maps the index of a block, and the table, to the gradient of the
        block's logits, float32 [positions, rows].
      table: see `SoftmaxSlice`.
    """

    def __init__(
        self,
        of: SoftmaxSlice,
        of_logits: Callable,
        table: tf.Tensor | RowPartitionedTensor,
    ):
        self._of, self._of_logits, self._table = of, of_logits, table
        self._gradients, self._bias, self._rows = {}, {}, {}
        self._wholes = self._norm = None
        self.shape = of.shape

    def rows(self, tile: Tile) -> tf.Tensor:
        """Some rows of the table's gradient, float32 [rows, E_out]. The tile must
        consist of whole blocks."""
        if tile not in self._rows:
            end = tile.first + tile.size
            parts = [
                self._of.transposed_product(self._block(place))
                for place, block in enumerate(self._of.blocks)
                if tile.first <= block.tile.first < end
            ]
            self._rows[tile] = tf.concat(parts, axis=0) if len(parts) > 1 else parts[0]
        return self._rows[tile]

    def squared_norm(self) -> tf.Tensor:
        """Of the table's gradient, float32 []. The rows of each partition are computed
        for it, and stay in memory until the update has used them."""
        if self._norm is None:
            if len(self._of.partitions) == 1:
                self._norm = squared_norm_of_slice(self.whole())
            else:
                norms = two_at_a_time(
                    lambda tile: [squared_norm_of_slice(self.rows(tile))],
                    self._of.partitions,
                )
                self._norm = tf.add_n([norm for [norm] in norms])
        return self._norm

    def whole(self) -> tf.Tensor:
        """All of the table's gradient."""
        return self.wholes()[0]

    def bias(self) -> tf.Tensor:
        """All of the bias's gradient, float32 [rows]. It is computed from the same
        blocks as the table's. If the table's update was built before, these blocks wait
        for it."""
        for place in range(len(self._of.blocks)):
            self._block(place)
        return tf.concat([self._bias[p] for p in sorted(self._bias)], axis=0)

    def wholes(self) -> tuple[tf.Tensor, tf.Tensor]:
        """`whole` and `bias`."""
        if self._wholes is None:
            whole = self._in_place() if self._of.on_host else self._joined()
            self._wholes = whole, self.bias()
        return self._wholes

    def _joined(self) -> tf.Tensor:
        """All of the table's gradient, in the dtype of the products. Each block is
        written to its place: XLA would hold all parts of a concatenation beside it."""
        whole = tf.zeros(self.shape, self._of.dtype)
        for place, block in enumerate(self._of.blocks):
            self._table, whole = barrier(self._table, whole)
            rows = self._of.transposed_product(self._block(place))
            rows = tf.cast(rows, whole.dtype)
            whole = gen_xla_ops.xla_dynamic_update_slice(
                input=whole, update=rows, indices=[block.tile.first, 0]
            )
        return whole

    def _in_place(self) -> tf.Tensor:
        """All of the table's gradient, in one buffer that each block is copied to."""
        whole = tf.raw_ops.Empty(shape=self.shape, dtype=tf.float32)
        for block in self._of.blocks:
            first, size = block.tile
            with tf.control_dependencies([whole]):
                rows = self.rows(block.tile)
            places = tf.range(first, first + size)
            whole = tf.raw_ops.InplaceUpdate(x=whole, i=places, v=rows)
        return whole

    def _block(self, place: int) -> tf.Tensor:
        if place not in self._gradients:
            gradient = self._of_logits(place, self._table)
            self._bias[place] = tf.squeeze(self._of.column_sums(gradient), 0)
            self._gradients[place] = gradient
        return self._gradients[place]


class BiasGradient:
    """The gradient of one device's bias, computed where it is used.

    Args:
      table: the gradient of the table, which is computed from the same blocks.
    """

    def __init__(self, table: TableGradient):
        self._table, self.shape = table, table.shape[:1]

    def whole(self) -> tf.Tensor:
        """float32 [rows]."""
        return self._table.bias()

    def squared_norm(self) -> tf.Tensor:
        """float32 []."""
        # That of the table first: it puts the blocks that both read in order.
        self._table.squared_norm()
        return squared_norm_of_slice(self.whole())


def _whole(
    x: TableGradient | BiasGradient,
    dtype: tf.DType | None = None,
    name: str | None = None,
    as_ref: bool = False,
) -> tf.Tensor:
    del name, as_ref
    return tf.cast(x.whole(), dtype or tf.float32)


for _kind in (TableGradient, BiasGradient):
    tf.register_tensor_conversion_function(_kind, _whole)


def _blocks(partitions: list[Tile], size: int) -> list[Block]:
    """The blocks of all rows in order; no block spans two partitions."""
    return [
        Block(Tile(partition.first + inner.first, inner.size), index, inner)
        for index, partition in enumerate(partitions)
        for inner in row_tiles(partition.size, size)
    ]
