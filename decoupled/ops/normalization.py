"""Layer normalisation and softmax in few passes, also over a split dimension."""

from collections.abc import Callable, Sequence
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.kernels import (
    compiled_where_large,
    row_sums,
    sums_along_rows,
    sums_over_rows,
)
from decoupled.ops.local import Spec, lazy_sum, mesh_op, reshape
from decoupled.ops.meshes.placement import PlacementMeshImpl


def layer_norm(
    x: mtf.Tensor, gamma: mtf.Tensor, beta: mtf.Tensor, epsilon: float
) -> mtf.Tensor:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last dimension.

    The variance is the biased one, and the arithmetic is float32.
    """
    *rows, columns = x.shape.dims

    def lower(mesh_impl: mtf.MeshImpl, x: Any, gamma: Any, beta: Any) -> Sequence:
        axis = mesh_impl.tensor_dimension_to_mesh_axis(columns)
        on_host = isinstance(mesh_impl, PlacementMeshImpl)
        if axis is not None:
            moments = _split_moments(mesh_impl, x, axis, columns.size, epsilon)
        elif on_host or inputs[0].dtype == tf.float32:
            return mesh_impl.slicewise(_normalize, x, gamma, beta, epsilon)
        else:
            moments = mesh_impl.slicewise(_moments, x, epsilon)
        return [mesh_impl.slicewise(_normalized, x, *moments, gamma, beta), *moments]

    # Mean and reciprocal deviation are kept for the gradient.
    moment = Spec(mtf.Shape([*rows, mtf.Dimension("moment", 1)]), tf.float32)
    inputs, outputs = [x, gamma, beta], [x, moment, moment]
    return mesh_op("layer_norm", lower, inputs, outputs, _layer_norm_gradient)[0]


def _split_moments(
    mesh_impl: mtf.MeshImpl, x: Any, axis: int, size: int, epsilon: float
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
    return mean, mesh_impl.slicewise(lambda v: tf.math.rsqrt(v + epsilon), variance)


def _moments(x: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and reciprocal deviation by sums that XLA makes in the pass that writes x.

    Only of bfloat16: where its mean is so large that the squares' mean less the squared
    mean has no digits, x has none either.
    """
    x = tf.cast(x, tf.float32)
    mean, mean_of_squares = (
        tf.reduce_mean(values, axis=-1, keepdims=True) for values in (x, tf.square(x))
    )
    variance = tf.maximum(mean_of_squares - tf.square(mean), 0.0)
    return mean, tf.math.rsqrt(variance + epsilon)


@compiled_where_large
def _normalize(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    values, size = tf.cast(x, tf.float32), x.shape[-1]
    mean = row_sums(values) / size
    # Not tf.math.squared_difference: with it, TF 2.15's graph rewriter takes some
    # graphs for an instance norm and crashes the process (grappler's FindInstanceNorm
    # reads an attribute that a node does not have).
    variance = row_sums(tf.square(values - mean)) / size
    reciprocal = tf.math.rsqrt(variance + epsilon)
    return _normalized(x, mean, reciprocal, gamma, beta), mean, reciprocal


def _normalized(
    x: tf.Tensor,
    mean: tf.Tensor,
    reciprocal: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
) -> tf.Tensor:
    return tf.cast(_normal(x, mean, reciprocal) * gamma + beta, x.dtype)


def _normal(x: tf.Tensor, mean: tf.Tensor, reciprocal: tf.Tensor) -> tf.Tensor:
    if x.dtype == tf.float32:
        # Exact where the mean is much larger than the deviation.
        return (x - mean) * reciprocal
    # XLA's compiler for GPUs would write `x - mean` in float32.
    return tf.cast(x, tf.float32) * reciprocal - mean * reciprocal


def _layer_norm_gradient(
    operation: mtf.Operation, dy: mtf.Tensor, *_: Any
) -> list[mtf.Tensor]:
    x, gamma, beta = operation.inputs
    _, mean, reciprocal = operation.outputs
    *rows, columns = x.shape.dims

    def lower(
        mesh_impl: mtf.MeshImpl, x: Any, gamma: Any, mean: Any, reciprocal: Any, dy: Any
    ) -> list:
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
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(d) for d in rows]
        sums = [sums_over_rows(mesh_impl, values) for values in (product, dy)]
        return [dx, *(lazy_sum(mesh_impl, x, axes) for x in sums)]

    inputs, outputs = [x, gamma, mean, reciprocal, dy], [x, gamma, beta]
    return mesh_op("layer_norm_gradient", lower, inputs, outputs)


@compiled_where_large
def _times_normal(
    x: tf.Tensor, mean: tf.Tensor, reciprocal: tf.Tensor, dy: tf.Tensor
) -> tf.Tensor:
    return _normal(x, mean, reciprocal) * tf.cast(dy, tf.float32)


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
    """The gradient of x, from means over the columns, [..., 1]."""
    # `mean_dy` is that of dy * gamma, `mean_product` that of the latter times `normal`.
    normal = _normal(x, mean, reciprocal)
    dx = (dy * gamma - mean_dy - normal * mean_product) * reciprocal
    return tf.cast(dx, x.dtype)


def softmax(
    x: mtf.Tensor, bias: mtf.Tensor | None = None, scale: float = 1.0
) -> mtf.Tensor:
    """softmax(x * scale + bias) over the last dimension, computed in float32.

    The bias is float32, and its dimensions are some of x's in their order. It gets no
    gradient.
    """

    def with_ones(mesh_impl: mtf.MeshImpl, slices: Any) -> Any:
        """The bias's slices, with size 1 for each dimension of x that it lacks."""
        sizes = zip(x.shape.dims, mesh_impl.slice_shape(x.shape), strict=True)
        shape = [size if dim in bias.shape.dims else 1 for dim, size in sizes]
        return mesh_impl.slicewise(lambda b: reshape(b, shape), slices)

    def lower(mesh_impl: mtf.MeshImpl, value: Any, *biases: Any) -> list:
        bias_slices = with_ones(mesh_impl, *biases) if biases else 0.0
        scores = mesh_impl.slicewise(_scaled, value, scale, bias_slices)
        axis = mesh_impl.tensor_dimension_to_mesh_axis(x.shape.dims[-1])
        if axis is None:
            y = mesh_impl.slicewise(tf.nn.softmax, scores)
        else:
            y = _split_softmax(mesh_impl, scores, axis)
        return [mesh_impl.slicewise(tf.cast, y, x.dtype)]

    def backward(operation: mtf.Operation, dy: mtf.Tensor) -> list:
        dx = _softmax_gradient(operation.outputs[0], dy, scale)
        return [dx, None][: len(operation.inputs)]

    inputs = [x] if bias is None else [x, bias]
    return mesh_op("softmax", lower, inputs, [x], backward)[0]


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


def _softmax_gradient(y: mtf.Tensor, dy: mtf.Tensor, scale: float) -> mtf.Tensor:
    def lower(mesh_impl: mtf.MeshImpl, y_slices: Any, dy: Any) -> list:
        axis = mesh_impl.tensor_dimension_to_mesh_axis(y.shape.dims[-1])
        if axis is None:
            return [mesh_impl.slicewise(_gradient, y_slices, dy, scale)]
        product = mesh_impl.slicewise(_inner_product, y_slices, dy)
        product = mesh_impl.allreduce(product, [axis], "SUM")
        return [mesh_impl.slicewise(_gradient_given, y_slices, dy, scale, product)]

    return mesh_op("softmax_gradient", lower, [y, dy], [y])[0]


def _inner_product(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return row_sums(tf.cast(y, tf.float32) * tf.cast(dy, tf.float32))


def _gradient_given(
    y: tf.Tensor, dy: tf.Tensor, scale: float, product: tf.Tensor
) -> tf.Tensor:
    dx = tf.cast(y, tf.float32) * (tf.cast(dy, tf.float32) - product) * scale
    return tf.cast(dx, y.dtype)


@compiled_where_large
def _gradient(y: tf.Tensor, dy: tf.Tensor, scale: float) -> tf.Tensor:
    return _gradient_given(y, dy, scale, _inner_product(y, dy))
