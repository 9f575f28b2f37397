"""Products with weights that are kept in float32 and multiplied in bfloat16.

A copy of all weights in bfloat16, made at the start of a step and kept to its end for
the backward pass, is a quarter of the weights' memory. Here each product casts what it
needs when it is its turn, forward and backward: the copy is small, still in the
processor's cache when it is read, and gone after that.
"""

from decoupled.compat import mtf, tf
from decoupled.ops.recompute import After, identity_after


def weight_product(
    x: mtf.Tensor, weights: mtf.Tensor, output_shape: list[mtf.Dimension]
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
    def __init__(self, x, weights, output_shape):
        super().__init__([x, _cast_for(weights, x)], output_shape, "weight_product")
        self._weights = weights

    def gradient(self, grad_ys):
        (dy,), (x, cast) = grad_ys, self.inputs
        of_x = mtf.einsum([dy, _cast_for(self._weights, dy)], output_shape=x.shape)
        return [of_x, mtf.einsum([dy, x], output_shape=cast.shape)]


def _cast_for(weights, other):
    return CastAfter(weights, other).outputs[0]


class CastAfter(After):
    """`x` in the dtype of `signal`, cast once that is computed; XLA casts it when it
    sees fit."""

    def __init__(self, x, signal):
        super().__init__(x, signal)
        self._outputs = [mtf.Tensor(self, x.shape, signal.dtype)]

    @property
    def has_gradient(self):
        return True

    def gradient(self, grad_ys):
        """Of `x`, in its dtype."""
        return [mtf.cast(grad_ys[0], self.inputs[0].dtype), None]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x, signal = (lowering.tensors[t] for t in self.inputs)
        if mesh_impl.supports_control_dependencies:
            x = mesh_impl.slicewise(identity_after, x, signal)
        cast = mesh_impl.slicewise(tf.cast, x, self.outputs[0].dtype)
        lowering.set_tensor_lowering(self.outputs[0], cast)
