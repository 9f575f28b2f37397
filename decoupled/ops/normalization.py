"""Layer normalisation and softmax in few passes, also over a split dimension."""

from collections.abc import Callable
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.kernels import (
    compiled_where_large,
    row_sums,
    sums_along_rows,
    sums_over_rows,
)
from decoupled.ops.shared import lazy_sum, reshape


def layer_norm(
    x: mtf.Tensor, gamma: mtf.Tensor, beta: mtf.Tensor, epsilon: float
) -> mtf.Tensor:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last dimension.

    Args:
      x: float [..., d], of any dtype; the arithmetic is float32.
      gamma, beta: float32 [d].
      epsilon: added to the (biased) variance.

    Returns:
      A tensor like `x`.
    """
    return _LayerNorm(x, gamma, beta, epsilon).outputs[0]


class _LayerNorm(mtf.Operation):
    def __init__(
        self, x: mtf.Tensor, gamma: mtf.Tensor, beta: mtf.Tensor, epsilon: float
    ):
        super().__init__([x, gamma, beta], name="layer_norm")
        self._epsilon = epsilon
        rows = mtf.Shape(x.shape.dims[:-1] + [mtf.Dimension("moment", 1)])
        # Mean and reciprocal deviation are kept for the gradient.
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=0),
            mtf.Tensor(self, rows, tf.float32, index=1),
            mtf.Tensor(self, rows, tf.float32, index=2),
        ]

    def gradient(self, grad_ys):
        x, gamma, _ = self.inputs
        _, mean, reciprocal = self.outputs
        return _LayerNormGradient(x, gamma, mean, reciprocal, grad_ys[0]).outputs

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x, gamma, beta = (lowering.tensors[t] for t in self.inputs)
        dimension = self.inputs[0].shape.dims[-1]
        axis = mesh_impl.tensor_dimension_to_mesh_axis(dimension)
        if axis is None:
            outputs = mesh_impl.slicewise(_normalize, x, gamma, beta, self._epsilon)
        else:
            mean, reciprocal = self._moments(mesh_impl, x, axis, dimension.size)
            y = mesh_impl.slicewise(_normalized, x, mean, reciprocal, gamma, beta)
            outputs = [y, mean, reciprocal]
        for tensor, value in zip(self.outputs, outputs, strict=True):
            lowering.set_tensor_lowering(tensor, value)

    def _moments(
        self, mesh_impl: mtf.MeshImpl, x: Any, axis: int, size: int
    ) -> tuple[Any, Any]:
        """Mean and reciprocal deviation over a dimension that is split."""

        def mean_of(function: Callable, *inputs: Any) -> Any:
            sums = mesh_impl.slicewise(
                lambda *xs: tf.reduce_sum(function(*xs), axis=-1, keepdims=True) / size,
                *inputs,
            )
            return mesh_impl.allreduce(sums, [axis], "SUM")

        mean = mean_of(lambda x: tf.cast(x, tf.float32), x)
        variance = mean_of(lambda x, m: tf.square(tf.cast(x, tf.float32) - m), x, mean)
        reciprocal = mesh_impl.slicewise(
            lambda v: tf.math.rsqrt(v + self._epsilon), variance
        )
        return mean, reciprocal


@compiled_where_large
def _normalize(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    wide, size = tf.cast(x, tf.float32), x.shape[-1]
    mean = row_sums(wide) / size
    # Not tf.math.squared_difference: with it, TF 2.15's graph rewriter takes some
    # graphs for an instance norm and crashes the process (grappler's FindInstanceNorm
    # reads an attribute that a node does not have).
    variance = row_sums(tf.square(wide - mean)) / size
    reciprocal = tf.math.rsqrt(variance + epsilon)
    return _normalized(x, mean, reciprocal, gamma, beta), mean, reciprocal


def _normalized(
    x: tf.Tensor,
    mean: tf.Tensor,
    reciprocal: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
) -> tf.Tensor:
    y = (tf.cast(x, tf.float32) - mean) * reciprocal * gamma + beta
    return tf.cast(y, x.dtype)


class _LayerNormGradient(mtf.Operation):
    def __init__(
        self,
        x: mtf.Tensor,
        gamma: mtf.Tensor,
        mean: mtf.Tensor,
        reciprocal: mtf.Tensor,
        dy: mtf.Tensor,
    ):
        super().__init__([x, gamma, mean, reciprocal, dy], name="layer_norm_gradient")
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=0),
            mtf.Tensor(self, gamma.shape, tf.float32, index=1),
            mtf.Tensor(self, gamma.shape, tf.float32, index=2),
        ]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x, gamma, mean, reciprocal, dy = (lowering.tensors[t] for t in self.inputs)
        columns = self.inputs[0].shape.dims[-1]
        axis = mesh_impl.tensor_dimension_to_mesh_axis(columns)
        product = mesh_impl.slicewise(_times_normal, x, mean, reciprocal, dy)
        dy = mesh_impl.slicewise(tf.cast, dy, tf.float32)
        weights = mesh_impl.slicewise(lambda g: g / columns.size, gamma)

        def mean_times_gamma(values: Any) -> Any:
            sums = sums_along_rows(mesh_impl, values, weights)
            return sums if axis is None else mesh_impl.allreduce(sums, [axis], "SUM")

        dx = mesh_impl.slicewise(
            _input_gradient, x, mean, reciprocal, gamma, dy,
            mean_times_gamma(dy), mean_times_gamma(product),
        )  # fmt: skip
        row_dims = self.inputs[0].shape.dims[:-1]
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(d) for d in row_dims]
        d_gamma, d_beta = (
            lazy_sum(mesh_impl, sums_over_rows(mesh_impl, values), axes)
            for values in (product, dy)
        )
        for tensor, value in zip(self.outputs, [dx, d_gamma, d_beta], strict=True):
            lowering.set_tensor_lowering(tensor, value)


@compiled_where_large
def _times_normal(
    x: tf.Tensor, mean: tf.Tensor, reciprocal: tf.Tensor, dy: tf.Tensor
) -> tf.Tensor:
    normal = (tf.cast(x, tf.float32) - mean) * reciprocal
    return normal * tf.cast(dy, tf.float32)


@compiled_where_large
def _input_gradient(
    x: tf.Tensor,
    mean: tf.Tensor,
    reciprocal: tf.Tensor,
    gamma: tf.Tensor,
    dy: tf.Tensor,
    mean_dy: tf.Tensor,
    mean_product: tf.Tensor,
) -> tf.Tensor:
    """The gradient of x.

    mean_dy, mean_product: [..., 1], means over the columns of dy * gamma, and of dy
    times the normalised x times gamma.
    """
    normal = (tf.cast(x, tf.float32) - mean) * reciprocal
    dx = (dy * gamma - mean_dy - normal * mean_product) * reciprocal
    return tf.cast(dx, x.dtype)


def softmax(
    x: mtf.Tensor, bias: mtf.Tensor | None = None, scale: float = 1.0
) -> mtf.Tensor:
    """softmax(x * scale + bias) over the last dimension, computed in float32.

    Args:
      x: float [..., d].
      bias: float32, whose dimensions are some of x's in their order. It gets no
        gradient.
      scale: a constant.

    Returns:
      A tensor like `x`.
    """
    return _Softmax(x, bias, scale).outputs[0]


class _Softmax(mtf.Operation):
    def __init__(self, x: mtf.Tensor, bias: mtf.Tensor | None, scale: float):
        super().__init__([x] if bias is None else [x, bias], name="softmax")
        self._scale = scale
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def gradient(self, grad_ys):
        dx = _SoftmaxGradient(self.outputs[0], grad_ys[0], self._scale).outputs[0]
        return [dx, None][: len(self.inputs)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x = self.inputs[0]
        scaled = mesh_impl.slicewise(
            _scaled, lowering.tensors[x], self._scale, self._lowered_bias(lowering)
        )
        axis = mesh_impl.tensor_dimension_to_mesh_axis(x.shape.dims[-1])
        if axis is None:
            y = mesh_impl.slicewise(tf.nn.softmax, scaled)
        else:
            y = _split_softmax(mesh_impl, scaled, axis)
        y = mesh_impl.slicewise(tf.cast, y, x.dtype)
        lowering.set_tensor_lowering(self.outputs[0], y)

    def _lowered_bias(self, lowering: mtf.Lowering) -> Any:
        """The bias's slices, with size 1 for each dimension of x that it lacks."""
        if len(self.inputs) == 1:
            return 0.0
        mesh_impl = lowering.mesh_impl(self)
        x, bias = self.inputs
        sizes = zip(x.shape.dims, mesh_impl.slice_shape(x.shape), strict=True)
        shape = [size if dim in bias.shape.dims else 1 for dim, size in sizes]
        return mesh_impl.slicewise(lambda b: reshape(b, shape), lowering.tensors[bias])


@compiled_where_large
def _scaled(x: tf.Tensor, scale: float, bias: tf.Tensor | float) -> tf.Tensor:
    return tf.cast(x, tf.float32) * scale + bias


def _split_softmax(mesh_impl: mtf.MeshImpl, value: Any, axis: int) -> Any:
    maximum = mesh_impl.slicewise(
        lambda x: tf.reduce_max(x, axis=-1, keepdims=True), value
    )
    maximum = mesh_impl.allreduce(maximum, [axis], "MAX")
    exponentials = mesh_impl.slicewise(lambda x, m: tf.exp(x - m), value, maximum)
    sums = mesh_impl.slicewise(
        lambda e: tf.reduce_sum(e, axis=-1, keepdims=True), exponentials
    )
    sums = mesh_impl.allreduce(sums, [axis], "SUM")
    return mesh_impl.slicewise(lambda e, s: e / s, exponentials, sums)


class _SoftmaxGradient(mtf.Operation):
    def __init__(self, y: mtf.Tensor, dy: mtf.Tensor, scale: float):
        super().__init__([y, dy], name="softmax_gradient")
        self._scale = scale
        self._outputs = [mtf.Tensor(self, y.shape, y.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        axis = mesh_impl.tensor_dimension_to_mesh_axis(self.outputs[0].shape.dims[-1])
        y, dy = (lowering.tensors[t] for t in self.inputs)
        if axis is None:
            dx = mesh_impl.slicewise(_gradient, y, dy, self._scale)
        else:
            inner = mesh_impl.slicewise(_inner_product, y, dy)
            inner = mesh_impl.allreduce(inner, [axis], "SUM")
            dx = mesh_impl.slicewise(_gradient_given, y, dy, self._scale, inner)
        lowering.set_tensor_lowering(self.outputs[0], dx)


def _inner_product(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return row_sums(tf.cast(y, tf.float32) * tf.cast(dy, tf.float32))


def _gradient_given(
    y: tf.Tensor, dy: tf.Tensor, scale: float, inner: tf.Tensor
) -> tf.Tensor:
    dx = tf.cast(y, tf.float32) * (tf.cast(dy, tf.float32) - inner) * scale
    return tf.cast(dx, y.dtype)


@compiled_where_large
def _gradient(y: tf.Tensor, dy: tf.Tensor, scale: float) -> tf.Tensor:
    return _gradient_given(y, dy, scale, _inner_product(y, dy))
