"""A bias, added in the same pass as what follows it: an activation, attention's heads.

`mtf.cwise` differentiates an activation through `tf.gradients`, which fails on a
gradient whose all-reduce is still pending (`GenericGradOperation` takes it for a plain
tensor). That happens as soon as a layout splits the hidden dimension. Here the
activations have gradients in closed form.

The columns of a projection are split into heads, and heads are joined into columns. The
dimension of heads comes before that of tokens, so that attention's products and their
gradients are matrix products that need no transposition in memory.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.ops.kernels import compiled_where_large, sums_over_rows
from decoupled.ops.shared import integers, lazy_sum, reshape


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
    """The gradient of a bias, [d]: the sum, in float32, of the gradient `dy` [..., d]
    of the tensor that the bias was added to."""
    return _BiasGradient(dy).outputs[0]


class _AddBias(mtf.Operation):
    def __init__(self, x: mtf.Tensor, bias: mtf.Tensor):
        super().__init__([x, bias], name="add_bias")
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def gradient(self, grad_ys):
        return [grad_ys[0], bias_gradient(grad_ys[0])]

    def lower(self, lowering):
        x, bias = (lowering.tensors[t] for t in self.inputs)
        y = lowering.mesh_impl(self).slicewise(lambda x, b: x + b, x, bias)
        lowering.set_tensor_lowering(self.outputs[0], y)


class _BiasGradient(mtf.Operation):
    def __init__(self, dy: mtf.Tensor):
        super().__init__([dy], name="bias_gradient")
        self._outputs = [mtf.Tensor(self, mtf.Shape(dy.shape.dims[-1:]), dy.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        (dy,) = self.inputs
        part = sums_over_rows(mesh_impl, lowering.tensors[dy])
        rows = dy.shape.dims[:-1]
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(d) for d in rows]
        lowering.set_tensor_lowering(self.outputs[0], lazy_sum(mesh_impl, part, axes))


def gelu(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
    """z * Phi(z) with the error function (Hendrycks and Gimpel 2016), z = x + bias.

    Args:
      x: float [..., d].
      bias: [d], of x's dtype.
    """
    return _Activation(x, bias, _GELU, "gelu").outputs[0]


def gelu_tanh(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
    """The tanh approximation of `gelu`, as in the original BERT code."""
    return _Activation(x, bias, _GELU_TANH, "gelu_tanh").outputs[0]


def relu(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
    """max(x + bias, 0)."""
    return mtf.relu(add_bias(x, bias))


def _normal_cdf(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


def _gelu(x: tf.Tensor) -> tf.Tensor:
    return x * _normal_cdf(x)


def _gelu_gradient(x: tf.Tensor) -> tf.Tensor:
    density = tf.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
    return _normal_cdf(x) + x * density


_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def _gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1.0 + tf.tanh(_SCALE * (x + _CUBIC * x * x * x)))


def _gelu_tanh_gradient(x: tf.Tensor) -> tf.Tensor:
    square = x * x
    t = tf.tanh(_SCALE * x * (1.0 + _CUBIC * square))
    inner = _SCALE * (1.0 + 3.0 * _CUBIC * square)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner


class _Kernels(NamedTuple):
    """value(x, bias) and gradient(x, bias, dy), both computed in float32."""

    value: Callable
    gradient: Callable


def _kernels(function: Callable, derivative: Callable) -> _Kernels:
    def value(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return tf.cast(function(_sum(x, bias)), x.dtype)

    def gradient(x: tf.Tensor, bias: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        slope = derivative(_sum(x, bias))
        return tf.cast(tf.cast(dy, tf.float32) * slope, x.dtype)

    return _Kernels(compiled_where_large(value), compiled_where_large(gradient))


def _sum(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32) + tf.cast(bias, tf.float32)


_GELU = _kernels(_gelu, _gelu_gradient)
_GELU_TANH = _kernels(_gelu_tanh, _gelu_tanh_gradient)


class _Activation(mtf.Operation):
    def __init__(self, x: mtf.Tensor, bias: mtf.Tensor, kernels: _Kernels, name: str):
        super().__init__([x, bias], name=name)
        self._kernels = kernels
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def gradient(self, grad_ys):
        operation = _ActivationGradient(*self.inputs, grad_ys[0], self._kernels)
        dx = operation.outputs[0]
        return [dx, bias_gradient(dx)]

    def lower(self, lowering):
        _lower_elementwise(self, lowering, self._kernels.value)


class _ActivationGradient(mtf.Operation):
    def __init__(
        self, x: mtf.Tensor, bias: mtf.Tensor, dy: mtf.Tensor, kernels: _Kernels
    ):
        super().__init__([x, bias, dy], name="activation_gradient")
        self._kernels = kernels
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def lower(self, lowering):
        _lower_elementwise(self, lowering, self._kernels.gradient)


def _lower_elementwise(
    operation: mtf.Operation, lowering: mtf.Lowering, function: Callable
) -> None:
    inputs = [lowering.tensors[x] for x in operation.inputs]
    result = lowering.mesh_impl(operation).slicewise(function, *inputs)
    lowering.set_tensor_lowering(operation.outputs[0], result)


def split_heads(
    x: mtf.Tensor, bias: mtf.Tensor, heads: mtf.Dimension, head_size: mtf.Dimension
) -> mtf.Tensor:
    """x + bias, with its columns split into heads.

    Args:
      x: float [batch, ..., columns], head index major; the layout must split the
        columns as it splits `heads`.
      bias: [columns], of x's dtype.
      heads, head_size: dimensions whose sizes multiply to that of the columns.

    Returns:
      [batch, heads, ..., head_size].
    """
    return _SplitHeads([x, bias], heads, head_size).outputs[0]


def merge_heads(x: mtf.Tensor, columns: mtf.Dimension) -> mtf.Tensor:
    """[batch, heads, ..., head_size] to [batch, ..., columns], head index major."""
    return _MergeHeads(x, columns).outputs[0]


class _SplitHeads(mtf.Operation):
    def __init__(
        self,
        inputs: Sequence[mtf.Tensor],
        heads: mtf.Dimension,
        head_size: mtf.Dimension,
    ):
        super().__init__(inputs, name="split_heads")
        self._head_size = head_size.size
        batch, *tokens, _ = inputs[0].shape.dims
        shape = mtf.Shape([batch, heads, *tokens, head_size])
        self._outputs = [mtf.Tensor(self, shape, inputs[0].dtype)]

    def gradient(self, grad_ys):
        dx = merge_heads(grad_ys[0], self.inputs[0].shape.dims[-1])
        return [dx, bias_gradient(dx)][: len(self.inputs)]

    def lower(self, lowering):
        inputs = [lowering.tensors[t] for t in self.inputs]
        function = _split if len(inputs) == 1 else _split_with_bias
        mesh_impl, shape = lowering.mesh_impl(self), self.outputs[0].shape
        y = mesh_impl.slicewise(function, *inputs, self._head_size)
        # A device's columns are whole heads. Where the layout splits `head_size`, each
        # device keeps its part of every head.
        axis = mesh_impl.tensor_dimension_to_mesh_axis(shape.dims[-1])
        if axis is not None:
            y = mesh_impl.allsplit(y, axis, shape.ndims - 1)
        lowering.set_tensor_lowering(self.outputs[0], y)


class _MergeHeads(mtf.Operation):
    def __init__(self, x: mtf.Tensor, columns: mtf.Dimension):
        super().__init__([x], name="merge_heads")
        batch, _, *tokens, _ = x.shape.dims
        shape = mtf.Shape([batch, *tokens, columns])
        self._outputs = [mtf.Tensor(self, shape, x.dtype)]

    def gradient(self, grad_ys):
        _, heads, *_, head_size = self.inputs[0].shape.dims
        return _SplitHeads(grad_ys, heads, head_size).outputs

    def lower(self, lowering):
        mesh_impl, shape = lowering.mesh_impl(self), self.inputs[0].shape
        x = lowering.tensors[self.inputs[0]]
        axis = mesh_impl.tensor_dimension_to_mesh_axis(shape.dims[-1])
        if axis is not None:
            x = mesh_impl.allconcat(x.to_laid_out_tensor(), axis, shape.ndims - 1)
        y = mesh_impl.slicewise(_merged, x)
        lowering.set_tensor_lowering(self.outputs[0], y)


@compiled_where_large
def _split(x: tf.Tensor, head_size: int) -> tf.Tensor:
    batch, *tokens, columns = x.shape.as_list()
    y = reshape(x, [batch, *tokens, columns // head_size, head_size])
    last = len(tokens) + 2
    return tf.transpose(y, integers([0, last - 1, *range(1, last - 1), last]))


@compiled_where_large
def _split_with_bias(x: tf.Tensor, bias: tf.Tensor, head_size: int) -> tf.Tensor:
    return _split.python_function(x + bias, head_size)


def _merged(x: tf.Tensor) -> tf.Tensor:
    batch, heads, *tokens, head_size = x.shape.as_list()
    last = len(tokens) + 2
    y = tf.transpose(x, integers([0, *range(2, last), 1, last]))
    return reshape(y, [batch, *tokens, heads * head_size])
