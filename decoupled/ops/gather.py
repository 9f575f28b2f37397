"""Rows gathered from a table or a sequence, instead of products with a one-hot matrix.

`mtf.gather` multiplies by a one-hot: [tokens, vocabulary] for an embedding,
[batch, predictions, sequence] for the masked positions. Here rows are copied. Where the
table or sequence is split, each device gathers the rows of its own part and puts zeros
for all others; an all-reduce over the mesh axis adds the parts up. In the backward
pass, each device sums the gradient of its own part only.
"""

import math
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.local import (
    Spec,
    check_separate,
    lazy_sum,
    local_index,
    mesh_op,
    shard_of,
    zero_unless,
)


def embedding_lookup(
    table: mtf.Tensor, ids: mtf.Tensor, vocab_dim: mtf.Dimension
) -> mtf.Tensor:
    """Rows of `table` [vocab_dim, ...] at `ids`: [ids' dimensions, ...].

    On a CPU an id outside of the table ends the step with an error that shows it.
    Any dimension may be split, but `vocab_dim` not over the mesh axis of an id's.
    """
    return _Lookup(table, ids, vocab_dim).outputs[0]


# In programs of XLA, a table of so few rows gets its gradient from a product with a
# one-hot matrix. GPUs add to a row one after the other, or sort first where operations
# must be deterministic.
_FEW_ROWS = 1024


def _adds_by_product(mesh_impl: mtf.MeshImpl, rows: int) -> bool:
    return rows <= _FEW_ROWS and not mesh_impl.supports_control_dependencies


class _Lookup(mtf.Operation):
    """No `mesh_op`: it reads a variable's slices in the dtype that they have."""

    def __init__(self, table: mtf.Tensor, ids: mtf.Tensor, vocab_dim: mtf.Dimension):
        super().__init__([table, ids], name="embedding_lookup")
        if table.shape.dims[0] != vocab_dim:
            raise ValueError(f"{table.shape} does not start with {vocab_dim}")
        self._vocab_dim = vocab_dim
        shape = mtf.Shape(ids.shape.dims + table.shape.dims[1:])
        self._outputs = [mtf.Tensor(self, shape, table.dtype)]

    def gradient(self, grad_ys):
        table, ids = self.inputs
        return [_lookup_gradient(ids, grad_ys[0], table.shape, self._vocab_dim), None]

    def check_layout(self, mesh_impl):
        """Also called before anything is lowered (`training.mesh.check_tensors`)."""
        check_separate(mesh_impl, self._vocab_dim, self.inputs[1].shape.dims)

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        self.check_layout(mesh_impl)
        table, ids = self.inputs
        dtype = table.dtype
        table, ids = _stored_slices(lowering, table), lowering.tensors[ids]
        axis, rows, coordinate = shard_of(mesh_impl, self._vocab_dim)

        def gather(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
            return tf.cast(tf.gather(table, ids), dtype)

        def gather_own_rows(
            table: tf.Tensor, ids: tf.Tensor, coordinate: tf.Tensor
        ) -> tf.Tensor:
            index, is_here = local_index(ids, coordinate, rows, self._vocab_dim.size)
            # Zeros for the ids of other shards: the sum below is the lookup.
            return zero_unless(is_here, gather(table, index))

        if axis is None:
            result = mesh_impl.slicewise(gather, table, ids)
        else:
            part = mesh_impl.slicewise(gather_own_rows, table, ids, coordinate)
            result = lazy_sum(mesh_impl, part, [axis])
        lowering.set_tensor_lowering(self.outputs[0], result)


def _stored_slices(lowering: mtf.Lowering, table: mtf.Tensor) -> Any:
    """The slices of a table. Those of a variable keep the dtype that they are stored
    in, so that only the gathered rows are cast."""
    variable = table.operation
    if (
        not isinstance(variable, mtf.ops.Variable)
        or variable.slice_dtype == table.dtype
    ):
        return lowering.tensors[table]
    slices = lowering.variables[variable].laid_out_tensor
    return lowering.mesh_impl(variable).slicewise(tf.convert_to_tensor, slices)


def _lookup_gradient(
    ids: mtf.Tensor, dy: mtf.Tensor, table_shape: mtf.Shape, vocab_dim: mtf.Dimension
) -> mtf.Tensor:
    id_dims = ids.shape.dims

    def lower(mesh_impl: mtf.MeshImpl, ids: Any, dy: Any) -> list:
        _, rows, coordinate = shard_of(mesh_impl, vocab_dim)

        def scatter(
            ids: tf.Tensor, dy: tf.Tensor, coordinate: tf.Tensor | int
        ) -> tf.Tensor:
            index = tf.reshape(ids - coordinate * rows, [-1])
            width = dy.shape.as_list()[len(ids.shape) :]
            dy_rows = tf.reshape(dy, [index.shape[0]] + width)
            if _adds_by_product(mesh_impl, rows):
                one_hot = tf.one_hot(index, rows, dtype=dy.dtype)
                return tf.tensordot(one_hot, dy_rows, [[0], [0]])
            # Negative segments are dropped: rows of other shards.
            segments = tf.where_v2(index < rows, index, -tf.ones_like(index))
            return tf.math.unsorted_segment_sum(dy_rows, segments, rows)

        part = mesh_impl.slicewise(scatter, ids, dy, coordinate)
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(d) for d in id_dims]
        return [lazy_sum(mesh_impl, part, axes)]

    output = Spec(table_shape, dy.dtype)
    return mesh_op("embedding_lookup_gradient", lower, [ids, dy], [output])[0]


def gather_positions(
    x: mtf.Tensor, positions: mtf.Tensor, dim: mtf.Dimension
) -> mtf.Tensor:
    """Entries of `x` [batch dimensions, dim, ...] at positions int32 [batch dimensions,
    ...], possibly repeated: [positions' dimensions, x's dimensions after dim].

    On a CPU a position outside of `dim` ends the step with an error that shows it. Any
    dimension may be split, but `dim` not over the mesh axis of a position's.
    """
    rank, x_shape = x.shape.dims.index(dim), x.shape
    batch_dims = x.shape.dims[:rank]
    if positions.shape.dims[:rank] != batch_dims:
        raise ValueError(f"{positions.shape} does not start with {batch_dims}")
    position_dims = positions.shape.dims
    shape = mtf.Shape(position_dims + x.shape.dims[rank + 1 :])

    def check(mesh_impl: mtf.MeshImpl) -> None:
        check_separate(mesh_impl, dim, position_dims)

    def lower(mesh_impl: mtf.MeshImpl, x: Any, positions: Any) -> list:
        axis, size, coordinate = shard_of(mesh_impl, dim)

        def gather(
            x: tf.Tensor, positions: tf.Tensor, coordinate: tf.Tensor | int
        ) -> tf.Tensor:
            index, is_here = local_index(positions, coordinate, size, dim.size)
            rows = tf.gather(x, index, axis=rank, batch_dims=rank)
            return rows if axis is None else zero_unless(is_here, rows)

        part = mesh_impl.slicewise(gather, x, positions, coordinate)
        return [lazy_sum(mesh_impl, part, [axis])]

    def backward(operation: mtf.Operation, dy: mtf.Tensor) -> list:
        positions = operation.inputs[1]
        return [_gather_positions_gradient(positions, dy, x_shape, dim, rank), None]

    outputs = [Spec(shape, x.dtype)]
    return mesh_op("gather_positions", lower, [x, positions], outputs, backward, check)[
        0
    ]


def _gather_positions_gradient(
    positions: mtf.Tensor,
    dy: mtf.Tensor,
    x_shape: mtf.Shape,
    dim: mtf.Dimension,
    rank: int,
) -> mtf.Tensor:
    summed_dims = positions.shape.dims[rank:]

    def lower(mesh_impl: mtf.MeshImpl, positions: Any, dy: Any) -> list:
        _, size, coordinate = shard_of(mesh_impl, dim)
        shape = mesh_impl.slice_shape(x_shape)
        rows, width = math.prod(shape[:rank]), shape[rank + 1 :]

        def scatter(
            positions: tf.Tensor, dy: tf.Tensor, coordinate: tf.Tensor | int
        ) -> tf.Tensor:
            index = tf.reshape(positions - coordinate * size, [rows, -1])
            if _adds_by_product(mesh_impl, size):
                one_hot = tf.one_hot(index, size, dtype=dy.dtype)
                dy_rows = tf.reshape(dy, [rows, index.shape[1], -1])
                sums = tf.matmul(one_hot, dy_rows, transpose_a=True)
                return tf.reshape(sums, shape)
            is_here = tf.logical_and(index >= 0, index < size)
            start = tf.expand_dims(tf.range(rows) * size, 1)
            # Negative segments are dropped: positions of other devices.
            segments = tf.where_v2(is_here, start + index, -tf.ones_like(index))
            dy_rows = tf.reshape(dy, [-1] + width)
            # A position can be repeated. Sums are float32, as in matrix products.
            sums = tf.math.unsorted_segment_sum(
                tf.cast(dy_rows, tf.float32), tf.reshape(segments, [-1]), rows * size
            )
            return tf.cast(tf.reshape(sums, shape), dy.dtype)

        part = mesh_impl.slicewise(scatter, positions, dy, coordinate)
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(d) for d in summed_dims]
        return [lazy_sum(mesh_impl, part, axes)]

    output = Spec(x_shape, dy.dtype)
    return mesh_op("gather_positions_gradient", lower, [positions, dy], [output])[0]
