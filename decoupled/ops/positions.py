"""Gathers some positions of every sequence, whole or split across the mesh.

`mtf.gather` multiplies by a one-hot of [batch, predictions, sequence]. Here rows are
copied; where the sequence is split, each processor copies those of its own part, and an
all-reduce adds the parts up.
"""

import math

from decoupled.core.compat import mtf, tf
from decoupled.ops.shards import (
    check_separate,
    lazy_sum,
    own_index,
    shard_of,
    zero_unless,
)


def gather_positions(
    x: mtf.Tensor, positions: mtf.Tensor, dim: mtf.Dimension
) -> mtf.Tensor:
    """Entries of `x` at places of one dimension that differ between sequences.

    Args:
      x: float [batch dimensions, dim, ...].
      positions: int32 [batch dimensions, ...], values in [0, dim.size), possibly
        repeated. On a CPU another value ends the step with an error that shows it.
      dim: where the positions lie; any dimension may be split, but not this one and
        one of the positions' over the same mesh axis.

    Returns:
      [positions' dimensions, x's dimensions after dim], of x's dtype.
    """
    return _GatherPositions(x, positions, dim).outputs[0]


class _GatherPositions(mtf.Operation):
    def __init__(self, x, positions, dim):
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
        """Also called before anything is lowered (`training.mesh.check_conflicts`)."""
        check_separate(mesh_impl, self._dim, self.inputs[1].shape.dims)

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        self.check_layout(mesh_impl)
        axis, size, coordinate = shard_of(mesh_impl, self._dim)

        def gather_own(x, positions, coordinate):
            index, own = own_index(positions, coordinate, size, self._dim.size)
            found = tf.gather(x, index, axis=self._rank, batch_dims=self._rank)
            return found if axis is None else zero_unless(own, found)

        inputs = [lowering.tensors[t] for t in self.inputs]
        part = mesh_impl.slicewise(gather_own, *inputs, coordinate)
        lowering.set_tensor_lowering(self.outputs[0], lazy_sum(mesh_impl, part, [axis]))


class _GatherPositionsGradient(mtf.Operation):
    def __init__(self, positions, dy, shape, dim, rank):
        super().__init__([positions, dy], name="gather_positions_gradient")
        self._dim, self._rank = dim, rank
        self._outputs = [mtf.Tensor(self, shape, dy.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        positions, dy = self.inputs
        _, size, coordinate = shard_of(mesh_impl, self._dim)
        shape = mesh_impl.slice_shape(self.outputs[0].shape)
        rows, width = math.prod(shape[: self._rank]), shape[self._rank + 1 :]

        def scatter_own(positions, dy, coordinate):
            local = tf.reshape(positions - coordinate * size, [rows, -1])
            own = tf.logical_and(local >= 0, local < size)
            first = tf.expand_dims(tf.range(rows) * size, 1)
            # Negative segments are dropped: positions of other processors.
            segments = tf.where_v2(own, first + local, -tf.ones_like(local))
            flat = tf.reshape(dy, [-1] + width)
            # A position can be asked for twice: the sum is float32, as of a product.
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
