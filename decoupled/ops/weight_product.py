"""Products with weights that are stored in float32 and multiplied in bfloat16.

A bfloat16 copy of all weights, made at the start of a step and kept for the backward
pass, would take half as much memory as the weights. Here each product, forward and
backward, casts its weights just before it runs. This copy is small, is still in the
processor's cache when it is read, and is freed after the product. A large table, such
as an output embedding, is cast a few rows at a time.
"""

from collections.abc import Sequence
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.local import before_cast, lazy_sum
from decoupled.ops.meshes.placement import PlacementMeshImpl
from decoupled.ops.recompute import identity_after
from decoupled.ops.row_partitions import RowPartitionedTensor, partition_rows

# Elements of a table that are cast at a time, 16 MB in bfloat16. A table with fewer
# than twice as many is cast as a whole.
_TILE = 8_000_000


def weight_product(
    x: mtf.Tensor, weights: mtf.Tensor, output_shape: Sequence[mtf.Dimension]
) -> mtf.Tensor:
    """The contraction of `x` and `weights`, as a variable is read, in the dtype of `x`.
    Dimensions that `output_shape` lacks are summed over."""
    if weights.dtype == x.dtype:
        return mtf.einsum([x, weights], output_shape=output_shape)
    return _WeightProduct(x, weights, mtf.Shape(output_shape)).outputs[0]


class _WeightProduct(mtf.EinsumOperation):
    """An einsum whose gradient casts the weights anew."""

    def __init__(self, x: mtf.Tensor, weights: mtf.Tensor, output_shape: mtf.Shape):
        cast = CastAfter(weights, x).outputs[0]
        super().__init__([x, cast], output_shape, "weight_product")
        self._weights = weights

    def gradient(self, grad_ys):
        (dy,), (x, cast) = grad_ys, self.inputs
        dx = weight_product(dy, self._weights, x.shape.dims)
        return [dx, mtf.einsum([dy, x], output_shape=cast.shape)]


class CastAfter(mtf.Operation):
    """`x` cast to the dtype of `signal`, not before `signal` is computed. XLA chooses
    the time itself."""

    def __init__(self, x: mtf.Tensor, signal: mtf.Tensor):
        super().__init__([x, signal], name="cast_after")
        self._outputs = [mtf.Tensor(self, x.shape, signal.dtype)]

    def gradient(self, grad_ys):
        """The gradient of `x`, in x's dtype."""
        return [GradientCast(grad_ys[0], self.inputs[0].dtype).outputs[0], None]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x, signal = (lowering.tensors[t] for t in self.inputs)
        dtype = self.outputs[0].dtype

        def cast(x: Any, signal: tf.Tensor) -> tf.Tensor | RowPartitionedTensor:
            if isinstance(mesh_impl, PlacementMeshImpl):
                if mesh_impl.multiplies_in_float32:
                    # The product would cast the rounded weights back to float32.
                    return x
                x = _in_partitions(x)
            if isinstance(x, RowPartitionedTensor):
                # The product casts each partition when it needs it.
                return x.cast(dtype)
            if mesh_impl.supports_control_dependencies:
                x = identity_after(x, signal)
            return tf.cast(x, dtype)

        result = mesh_impl.slicewise(cast, x, signal)
        lowering.set_tensor_lowering(self.outputs[0], result)


def _in_partitions(
    x: tf.Tensor | RowPartitionedTensor,
) -> tf.Tensor | RowPartitionedTensor:
    """A large matrix as a `RowPartitionedTensor`; any other tensor as it is."""
    if isinstance(x, RowPartitionedTensor) or x.shape.rank != 2:
        return x
    if x.shape.num_elements() < 2 * _TILE:
        return x
    return partition_rows(x, _TILE // x.shape[1])


class GradientCast(mtf.Operation):
    """A weight's gradient in another dtype.

    In a loop over microbatches, each device's part is cast before the all-reduce:
    Mesh-TensorFlow adds up such parts over the loop and reduces the sum once. Elsewhere
    the all-reduce comes first, because it then moves the narrower dtype.
    """

    def __init__(self, gradient: mtf.Tensor, dtype: tf.DType):
        super().__init__([gradient], name="gradient_cast")
        self._outputs = [mtf.Tensor(self, gradient.shape, dtype)]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        gradient, dtype = lowering.tensors[self.inputs[0]], self.outputs[0].dtype
        # Operations of a loop's body are not listed in the graph.
        is_in_loop = self not in self.graph.operations
        if is_in_loop and isinstance(gradient, mtf.ops.LazyAllreduceSum):
            part = mesh_impl.slicewise(tf.cast, gradient.laid_out_input, dtype)
            cast = lazy_sum(mesh_impl, part, gradient.mesh_axes)
        else:
            cast = mesh_impl.slicewise(_unrounded, gradient, dtype)
        lowering.set_tensor_lowering(self.outputs[0], cast)


def _unrounded(gradient: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    # If the gradient was itself cast from this dtype, its value before that cast is not
    # rounded.
    return tf.cast(before_cast(gradient, dtype), dtype)
