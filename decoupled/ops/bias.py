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
import operator
from collections.abc import Callable, Sequence
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.kernels import compiled_where_large, sums_over_rows
from decoupled.ops.local import Spec, integers, lazy_sum, local_op, mesh_op, reshape


def add_bias(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
    """x [..., d] + bias [d], of one dtype."""
    return local_op("add_bias", operator.add, [x, bias], x, _gradients_of_sum)


def _gradients_of_sum(operation: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
    del operation
    return [dy, bias_gradient(dy)]


def bias_gradient(dy: mtf.Tensor) -> mtf.Tensor:
    """The gradient of a bias, [d]: the sum, in float32, of the gradient `dy` [..., d]
    of the tensor that the bias was added to."""
    *rows, columns = dy.shape.dims

    def lower(mesh_impl: mtf.MeshImpl, dy: Any) -> list:
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(d) for d in rows]
        return [lazy_sum(mesh_impl, sums_over_rows(mesh_impl, dy), axes)]

    output = Spec(mtf.Shape([columns]), dy.dtype)
    return mesh_op("bias_gradient", lower, [dy], [output])[0]


def _activation(name: str, function: Callable, derivative: Callable) -> Callable:
    """An activation of x + bias, for float tensors of the mesh [..., d] and [d].

    `function` and `derivative` are of a float32 tensor.
    """

    @compiled_where_large
    def value(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return tf.cast(function(_sum(x, bias)), x.dtype)

    @compiled_where_large
    def gradient(x: tf.Tensor, bias: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        slope = derivative(_sum(x, bias))
        return tf.cast(tf.cast(dy, tf.float32) * slope, x.dtype)

    def backward(operation: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
        inputs = [*operation.inputs, dy]
        dx = local_op("activation_gradient", gradient, inputs, inputs[0])
        return [dx, bias_gradient(dx)]

    def activation(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
        return local_op(name, value, [x, bias], x, backward)

    return activation


def _sum(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32) + tf.cast(bias, tf.float32)


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
    share = tf.sigmoid(2.0 * _SCALE * x * (1.0 + _CUBIC * square))
    slope = 2.0 * _SCALE * (1.0 + 3.0 * _CUBIC * square)
    return share * (1.0 + x * (1.0 - share) * slope)


# z * Phi(z) with the error function (Hendrycks and Gimpel 2016), z = x + bias.
gelu = _activation("gelu", _gelu, _gelu_gradient)
# Its tanh approximation, as in the original BERT code.
gelu_tanh = _activation("gelu_tanh", _gelu_tanh, _gelu_tanh_gradient)


def split_heads(
    x: mtf.Tensor, bias: mtf.Tensor, heads: mtf.Dimension, head_size: mtf.Dimension
) -> mtf.Tensor:
    """x + bias, [batch, ..., columns], as [batch, heads, ..., head_size]."""
    # Columns are head index major; the layout must split them as it splits `heads`.
    return _split_heads([x, bias], heads, head_size)


def merge_heads(x: mtf.Tensor, columns: mtf.Dimension) -> mtf.Tensor:
    """[batch, heads, ..., head_size] to [batch, ..., columns], head index major."""
    batch, heads, *tokens, head_size = x.shape.dims
    last_axis = x.shape.ndims - 1

    def lower(mesh_impl: mtf.MeshImpl, x: Any) -> list:
        axis = mesh_impl.tensor_dimension_to_mesh_axis(head_size)
        if axis is not None:
            x = mesh_impl.allconcat(x.to_laid_out_tensor(), axis, last_axis)
        return [mesh_impl.slicewise(_merge, x)]

    def backward(operation: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
        del operation
        return [_split_heads([dy], heads, head_size)]

    output = Spec(mtf.Shape([batch, *tokens, columns]), x.dtype)
    return mesh_op("merge_heads", lower, [x], [output], backward)[0]


def _split_heads(
    inputs: Sequence[mtf.Tensor], heads: mtf.Dimension, head_size: mtf.Dimension
) -> mtf.Tensor:
    batch, *tokens, columns = inputs[0].shape.dims
    shape = mtf.Shape([batch, heads, *tokens, head_size])

    def lower(mesh_impl: mtf.MeshImpl, *slices: Any) -> list:
        function = _split if len(slices) == 1 else _split_with_bias
        y = mesh_impl.slicewise(function, *slices, head_size.size)
        # A device's columns are whole heads. Where the layout splits `head_size`, each
        # device keeps its part of every head.
        axis = mesh_impl.tensor_dimension_to_mesh_axis(head_size)
        return [y if axis is None else mesh_impl.allsplit(y, axis, shape.ndims - 1)]

    def backward(operation: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
        dx = merge_heads(dy, columns)
        return [dx, bias_gradient(dx)][: len(operation.inputs)]

    output = Spec(shape, inputs[0].dtype)
    return mesh_op("split_heads", lower, inputs, [output], backward)[0]


@compiled_where_large
def _split(x: tf.Tensor, head_size: int) -> tf.Tensor:
    batch, *tokens, columns = x.shape.as_list()
    y = reshape(x, [batch, *tokens, columns // head_size, head_size])
    axis = len(tokens) + 2
    return tf.transpose(y, integers([0, axis - 1, *range(1, axis - 1), axis]))


@compiled_where_large
def _split_with_bias(x: tf.Tensor, bias: tf.Tensor, head_size: int) -> tf.Tensor:
    return _split.python_function(x + bias, head_size)


def _merge(x: tf.Tensor) -> tf.Tensor:
    batch, heads, *tokens, head_size = x.shape.as_list()
    last_axis = len(tokens) + 2
    y = tf.transpose(x, integers([0, *range(2, last_axis), 1, last_axis]))
    return reshape(y, [batch, *tokens, heads * head_size])
