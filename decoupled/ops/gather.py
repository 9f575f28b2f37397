"""Rows gathered from a table or a sequence, instead of products with a one-hot matrix.

`mtf.gather` multiplies by a one-hot: [tokens, vocabulary] for an embedding,
[batch, predictions, sequence] for the masked positions. Here rows are copied. Where the
table or sequence is split, each device gathers the rows of its own part and puts zeros
for all others; an all-reduce over the mesh axis adds the parts up. In the backward
pass, each device sums the gradient of its own part only.
"""

import math
from contextlib import nullcontext
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.shared import (
    check_separate,
    lazy_sum,
    own_index,
    shard_of,
    zero_unless,
)


def embedding_lookup(
    table: mtf.Tensor, ids: mtf.Tensor, vocab_dim: mtf.Dimension
) -> mtf.Tensor:
    """Rows of `table`.

    Args:
      table: float [vocab_dim, ...]; `vocab_dim` is its first dimension.
      ids: int32 of any shape, values in [0, vocab_dim.size). On a CPU another value
        ends the step with an error that shows it.
      vocab_dim: the dimension that is looked up. Any dimension may be split, but this
        one and a dimension of the ids must not be split over the same mesh axis.

    Returns:
      [ids' dimensions, table's other dimensions], of the table's dtype.
    """
    return _Lookup(table, ids, vocab_dim).outputs[0]


def one_hot_lookup(
    table: mtf.Tensor, ids: mtf.Tensor, vocab_dim: mtf.Dimension
) -> mtf.Tensor:
    """`embedding_lookup` as the product of a one-hot matrix and the table.

    Meant for TPUs, whose matrix units can be faster than their gathers if the
    vocabulary is small. Needs memory for [ids, vocabulary] elements.
    """
    checked = _CheckedIds(ids, vocab_dim).outputs[0]
    shape = ids.shape.dims + table.shape.dims[1:]
    return mtf.gather(table, checked, vocab_dim, output_shape=shape)


class _Lookup(mtf.Operation):
    def __init__(self, table: mtf.Tensor, ids: mtf.Tensor, vocab_dim: mtf.Dimension):
        super().__init__([table, ids], name="embedding_lookup")
        if table.shape.dims[0] != vocab_dim:
            raise ValueError(f"{table.shape} does not start with {vocab_dim}")
        self._vocab_dim = vocab_dim
        shape = mtf.Shape(ids.shape.dims + table.shape.dims[1:])
        self._outputs = [mtf.Tensor(self, shape, table.dtype)]

    def gradient(self, grad_ys):
        table, ids = self.inputs
        operation = _LookupGradient(ids, grad_ys[0], table.shape, self._vocab_dim)
        return [operation.outputs[0], None]

    def check_layout(self, mesh_impl):
        """Also called before anything is lowered (`training.mesh.check_tensors`)."""
        check_separate(mesh_impl, self._vocab_dim, self.inputs[1].shape.dims)

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        self.check_layout(mesh_impl)
        table, ids = self.inputs
        dtype = table.dtype
        table, ids = _as_stored(lowering, table), lowering.tensors[ids]
        axis, rows, coordinate = shard_of(mesh_impl, self._vocab_dim)

        def gather(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
            return tf.cast(tf.gather(table, ids), dtype)

        def gather_own(
            table: tf.Tensor, ids: tf.Tensor, coordinate: tf.Tensor
        ) -> tf.Tensor:
            index, own = own_index(ids, coordinate, rows, self._vocab_dim.size)
            return zero_unless(own, gather(table, index))

        if axis is None:
            result = mesh_impl.slicewise(gather, table, ids)
        else:
            part = mesh_impl.slicewise(gather_own, table, ids, coordinate)
            result = lazy_sum(mesh_impl, part, [axis])
        lowering.set_tensor_lowering(self.outputs[0], result)


def _as_stored(lowering: mtf.Lowering, table: mtf.Tensor) -> Any:
    """The slices of a table. Those of a variable keep the dtype that they are stored
    in, so that only the gathered rows are cast and not the whole table.
    """
    variable = table.operation
    if (
        not isinstance(variable, mtf.ops.Variable)
        or variable.slice_dtype == table.dtype
    ):
        return lowering.tensors[table]
    slices = lowering.variables[variable].laid_out_tensor
    return lowering.mesh_impl(variable).slicewise(tf.convert_to_tensor, slices)


class _LookupGradient(mtf.Operation):
    def __init__(
        self,
        ids: mtf.Tensor,
        dy: mtf.Tensor,
        table_shape: mtf.Shape,
        vocab_dim: mtf.Dimension,
    ):
        super().__init__([ids, dy], name="embedding_lookup_gradient")
        self._vocab_dim = vocab_dim
        self._outputs = [mtf.Tensor(self, table_shape, dy.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        ids, dy = self.inputs
        _, rows, coordinate = shard_of(mesh_impl, self._vocab_dim)

        def scatter_own(
            ids_slice: tf.Tensor, dy_slice: tf.Tensor, coordinate: tf.Tensor
        ) -> tf.Tensor:
            local = tf.reshape(ids_slice - coordinate * rows, [-1])
            # Negative segments are dropped: rows of other shards.
            own = tf.where_v2(local < rows, local, -tf.ones_like(local))
            width = dy_slice.shape.as_list()[len(ids_slice.shape) :]
            flat = tf.reshape(dy_slice, [local.shape[0]] + width)
            return tf.math.unsorted_segment_sum(flat, own, rows)

        part = mesh_impl.slicewise(
            scatter_own, lowering.tensors[ids], lowering.tensors[dy], coordinate
        )
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(d) for d in ids.shape.dims]
        lowering.set_tensor_lowering(self.outputs[0], lazy_sum(mesh_impl, part, axes))


class _CheckedIds(mtf.Operation):
    """The ids unchanged; on a CPU, an id outside the vocabulary ends the step."""

    def __init__(self, ids: mtf.Tensor, vocab_dim: mtf.Dimension):
        super().__init__([ids], name="checked_ids")
        self._vocab_size = vocab_dim.size
        self._outputs = [mtf.Tensor(self, ids.shape, ids.dtype)]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        def checked(ids: tf.Tensor) -> tf.Tensor:
            low, high = tf.reduce_min(ids), tf.reduce_max(ids)
            inside = tf.logical_and(low >= 0, high < self._vocab_size)
            # GPUs have no string tensors, and a cluster has no soft placement.
            on_cpu = tf.device("cpu:0") if mesh_impl.on_gpus else nullcontext()
            with on_cpu:
                told = ["ids from", low, "to", high, f"not in [0, {self._vocab_size})"]
                check = tf.debugging.Assert(inside, told)
            with tf.control_dependencies([check]):
                return tf.identity(ids)

        ids = lowering.tensors[self.inputs[0]]
        mesh_impl = lowering.mesh_impl(self)
        # A TPU has neither string tensors nor a way to end the step.
        check = checked if mesh_impl.supports_control_dependencies else tf.identity
        result = mesh_impl.slicewise(check, ids)
        lowering.set_tensor_lowering(self.outputs[0], result)


def gather_positions(
    x: mtf.Tensor, positions: mtf.Tensor, dim: mtf.Dimension
) -> mtf.Tensor:
    """Entries of `x` at given positions, which differ between the sequences of a batch.

    Args:
      x: float [batch dimensions, dim, ...].
      positions: int32 [batch dimensions, ...], values in [0, dim.size), possibly
        repeated. On a CPU another value ends the step with an error that shows it.
      dim: the dimension that the positions index. Any dimension may be split, but this
        one and a dimension of the positions must not be split over the same mesh axis.

    Returns:
      [positions' dimensions, x's dimensions after dim], of x's dtype.
    """
    return _GatherPositions(x, positions, dim).outputs[0]


class _GatherPositions(mtf.Operation):
    def __init__(self, x: mtf.Tensor, positions: mtf.Tensor, dim: mtf.Dimension):
        super().__init__([x, positions], name="gather_positions")
        self._dim, self._rank = dim, x.shape.dims.index(dim)
        batch_dims = x.shape.dims[: self._rank]
        if positions.shape.dims[: self._rank] != batch_dims:
            raise ValueError(f"{positions.shape} does not start with {batch_dims}")
        shape = positions.shape.dims + x.shape.dims[self._rank + 1 :]
        self._outputs = [mtf.Tensor(self, mtf.Shape(shape), x.dtype)]

    def gradient(self, grad_ys):
        x, positions = self.inputs
        operation = _GatherPositionsGradient(
            positions, grad_ys[0], x.shape, self._dim, self._rank
        )
        return [operation.outputs[0], None]

    def check_layout(self, mesh_impl):
        """Also called before anything is lowered (`training.mesh.check_tensors`)."""
        check_separate(mesh_impl, self._dim, self.inputs[1].shape.dims)

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        self.check_layout(mesh_impl)
        axis, size, coordinate = shard_of(mesh_impl, self._dim)

        def gather_own(
            x: tf.Tensor, positions: tf.Tensor, coordinate: tf.Tensor
        ) -> tf.Tensor:
            index, own = own_index(positions, coordinate, size, self._dim.size)
            found = tf.gather(x, index, axis=self._rank, batch_dims=self._rank)
            return found if axis is None else zero_unless(own, found)

        inputs = [lowering.tensors[t] for t in self.inputs]
        part = mesh_impl.slicewise(gather_own, *inputs, coordinate)
        lowering.set_tensor_lowering(self.outputs[0], lazy_sum(mesh_impl, part, [axis]))


class _GatherPositionsGradient(mtf.Operation):
    def __init__(
        self,
        positions: mtf.Tensor,
        dy: mtf.Tensor,
        shape: mtf.Shape,
        dim: mtf.Dimension,
        rank: int,
    ):
        super().__init__([positions, dy], name="gather_positions_gradient")
        self._dim, self._rank = dim, rank
        self._outputs = [mtf.Tensor(self, shape, dy.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        positions, dy = self.inputs
        _, size, coordinate = shard_of(mesh_impl, self._dim)
        shape = mesh_impl.slice_shape(self.outputs[0].shape)
        rows, width = math.prod(shape[: self._rank]), shape[self._rank + 1 :]

        def scatter_own(
            positions: tf.Tensor, dy: tf.Tensor, coordinate: tf.Tensor
        ) -> tf.Tensor:
            local = tf.reshape(positions - coordinate * size, [rows, -1])
            own = tf.logical_and(local >= 0, local < size)
            first = tf.expand_dims(tf.range(rows) * size, 1)
            # Negative segments are dropped: positions of other devices.
            segments = tf.where_v2(own, first + local, -tf.ones_like(local))
            flat = tf.reshape(dy, [-1] + width)
            # A position can be repeated. Sums are float32, as in matrix products.
            sums = tf.math.unsorted_segment_sum(
                tf.cast(flat, tf.float32), tf.reshape(segments, [-1]), rows * size
            )
            return tf.cast(tf.reshape(sums, shape), dy.dtype)

        part = mesh_impl.slicewise(
            scatter_own, lowering.tensors[positions], lowering.tensors[dy], coordinate
        )
        summed = positions.shape.dims[self._rank :]
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(d) for d in summed]
        lowering.set_tensor_lowering(self.outputs[0], lazy_sum(mesh_impl, part, axes))
