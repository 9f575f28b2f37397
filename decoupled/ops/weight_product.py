"""Products with weights that are kept in float32 and multiplied in bfloat16.

A copy of all weights in bfloat16, made at the start of a step and kept to its end for
the backward pass, is a quarter of the weights' memory. Here each product casts what it
needs just before it runs, forward and backward: the copy is small, still in the
processor's cache when it is read, and gone after that. A large table, such as an output
embedding, is cast a few rows at a time.
"""

from collections.abc import Sequence
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.meshes.placement import PlacementMeshImpl
from decoupled.ops.recompute import After, identity_after
from decoupled.ops.row_partitions import RowPartitionedTensor, partition_rows
from decoupled.ops.shared import lazy_sum

# Elements of a table that are cast at a time, 16 MB in bfloat16. One with fewer than
# twice as many is cast whole.
_TILE = 8_000_000


def weight_product(
    x: mtf.Tensor, weights: mtf.Tensor, output_shape: Sequence[mtf.Dimension]
) -> mtf.Tensor:
    """The contraction of `x` and `weights`, in the dtype of `x`.

    Args:
      x: float [...].
      weights: float, of any dtype; what a variable reads as.
      output_shape: dimensions of the result; the others are summed over.
    """
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
        of_x = weight_product(dy, self._weights, x.shape.dims)
        return [of_x, mtf.einsum([dy, x], output_shape=cast.shape)]


class CastAfter(After):
    """`x` in the dtype of `signal`, cast once that is computed; XLA casts it at a time
    of its choice."""

    def __init__(self, x: mtf.Tensor, signal: mtf.Tensor):
        super().__init__(x, signal)
        self._outputs = [mtf.Tensor(self, x.shape, signal.dtype)]

    @property
    def has_gradient(self):
        return True

    def gradient(self, grad_ys):
        """Of `x`, in its dtype."""
        return [GradientCast(grad_ys[0], self.inputs[0].dtype).outputs[0], None]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x, signal = (lowering.tensors[t] for t in self.inputs)
        dtype = self.outputs[0].dtype

        def cast(x: Any, signal: tf.Tensor) -> tf.Tensor | RowPartitionedTensor:
            if isinstance(mesh_impl, PlacementMeshImpl):
                if mesh_impl.multiplies_in_float32:
                    # A cast would round it, only to be made float32 again.
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
    """A large matrix as `RowPartitionedTensor`; what is smaller, or is one already, as
    it is."""
    if isinstance(x, RowPartitionedTensor) or x.shape.rank != 2:
        return x
    if x.shape.num_elements() < 2 * _TILE:
        return x
    return partition_rows(x, _TILE // x.shape[1])


class GradientCast(mtf.Operation):
    """A weight's gradient in another dtype.

    In a loop over microbatches its parts are cast before the all-reduce:
    Mesh-TensorFlow adds such parts up over the loop and reduces them over the mesh
    once. Elsewhere what crosses the mesh is the narrower gradient.
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
        # A loop's operations are its own, no longer the graph's.
        in_loop = self not in self.graph.operations
        if in_loop and isinstance(gradient, mtf.ops.LazyAllreduceSum):
            part = mesh_impl.slicewise(tf.cast, gradient.laid_out_input, dtype)
            cast = lazy_sum(mesh_impl, part, gradient.mesh_axes)
        else:
            cast = mesh_impl.slicewise(_unrounded, gradient, dtype)
        lowering.set_tensor_lowering(self.outputs[0], cast)


def _unrounded(gradient: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """In another dtype; what was rounded from that one is taken as it was before."""
    source = gradient.op
    if source.type == "Cast" and source.inputs[0].dtype == dtype:
        return source.inputs[0]
    return tf.cast(gradient, dtype)
