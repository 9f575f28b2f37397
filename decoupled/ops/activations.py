"""Activations of a sum with a bias; GELU with gradients in closed form.

`mtf.cwise` differentiates through `tf.gradients`, which fails on a gradient whose
all-reduce is still pending (`GenericGradOperation` takes it for a plain tensor). That
happens as soon as a layout splits the hidden dimension.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.ops.bias import add_bias, bias_gradient
from decoupled.ops.compiled import compiled_where_large


def gelu(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
    """z * Phi(z) with the error function (Hendrycks and Gimpel 2016), z = x + bias.

    Args:
      x: float [..., d].
      bias: [d], of x's dtype.
    """
    return _Activation(x, bias, _GELU, "gelu").outputs[0]


def gelu_tanh(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
    """As `gelu`, the tanh approximation, as in the original BERT code."""
    return _Activation(x, bias, _GELU_TANH, "gelu_tanh").outputs[0]


def relu(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
    """max(x + bias, 0)."""
    return mtf.relu(add_bias(x, bias))


def _normal_cdf(x):
    return 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


def _gelu(x):
    return x * _normal_cdf(x)


def _gelu_gradient(x):
    density = tf.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
    return _normal_cdf(x) + x * density


_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def _gelu_tanh(x):
    return 0.5 * x * (1.0 + tf.tanh(_SCALE * (x + _CUBIC * x * x * x)))


def _gelu_tanh_gradient(x):
    square = x * x
    t = tf.tanh(_SCALE * x * (1.0 + _CUBIC * square))
    inner = _SCALE * (1.0 + 3.0 * _CUBIC * square)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner


class _Kernels(NamedTuple):
    """value(x, bias) and gradient(x, bias, dy), in float32 inside."""

    value: Callable
    gradient: Callable


def _kernels(function, derivative):
    def value(x, bias):
        return tf.cast(function(_sum(x, bias)), x.dtype)

    def gradient(x, bias, dy):
        slope = derivative(_sum(x, bias))
        return tf.cast(tf.cast(dy, tf.float32) * slope, x.dtype)

    return _Kernels(compiled_where_large(value), compiled_where_large(gradient))


def _sum(x, bias):
    return tf.cast(x, tf.float32) + tf.cast(bias, tf.float32)


_GELU = _kernels(_gelu, _gelu_gradient)
_GELU_TANH = _kernels(_gelu_tanh, _gelu_tanh_gradient)


class _Activation(mtf.Operation):
    def __init__(self, x, bias, kernels, name):
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
    def __init__(self, x, bias, dy, kernels):
        super().__init__([x, bias, dy], name="activation_gradient")
        self._kernels = kernels
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def lower(self, lowering):
        _lower_elementwise(self, lowering, self._kernels.gradient)


def _lower_elementwise(operation, lowering, function):
    inputs = [lowering.tensors[x] for x in operation.inputs]
    result = lowering.mesh_impl(operation).slicewise(function, *inputs)
    lowering.set_tensor_lowering(operation.outputs[0], result)
