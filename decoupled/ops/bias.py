"""Adding a vector to every row, and the gradient of that, a sum over all rows."""

from decoupled.core.compat import mtf
from decoupled.ops.shards import lazy_sum
from decoupled.ops.sums import sums_over_rows


def add_bias(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
    """x + bias.

    Args:
      x: float [..., d].
      bias: [d], of x's dtype.

    Returns:
      A tensor like `x`.
    """
    return _AddBias(x, bias).outputs[0]


def bias_gradient(dy: mtf.Tensor) -> mtf.Tensor:
    """The gradient of a bias, [d], from the gradient of what it was added to, [..., d];
    summed in float32."""
    return _BiasGradient(dy).outputs[0]


class _AddBias(mtf.Operation):
    def __init__(self, x, bias):
        super().__init__([x, bias], name="add_bias")
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def gradient(self, grad_ys):
        return [grad_ys[0], bias_gradient(grad_ys[0])]

    def lower(self, lowering):
        x, bias = (lowering.tensors[t] for t in self.inputs)
        y = lowering.mesh_impl(self).slicewise(lambda x, b: x + b, x, bias)
        lowering.set_tensor_lowering(self.outputs[0], y)


class _BiasGradient(mtf.Operation):
    def __init__(self, dy):
        super().__init__([dy], name="bias_gradient")
        self._outputs = [mtf.Tensor(self, mtf.Shape(dy.shape.dims[-1:]), dy.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        (dy,) = self.inputs
        part = sums_over_rows(mesh_impl, lowering.tensors[dy])
        rows = dy.shape.dims[:-1]
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(d) for d in rows]
        lowering.set_tensor_lowering(self.outputs[0], lazy_sum(mesh_impl, part, axes))
