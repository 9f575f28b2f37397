"""Layer normalisation in a few kernels, also over a dimension that is split."""

from decoupled.core.compat import mtf, tf
from decoupled.ops.compiled import compiled_where_large, row_sums
from decoupled.ops.shards import lazy_sum
from decoupled.ops.sums import sums_along_rows, sums_over_rows


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
    def __init__(self, x, gamma, beta, epsilon):
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

    def _moments(self, mesh_impl, x, axis, size):
        """Mean and reciprocal deviation over a dimension that is split."""

        def mean_of(function, *inputs):
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
def _normalize(x, gamma, beta, epsilon):
    wide, size = tf.cast(x, tf.float32), x.shape[-1]
    mean = row_sums(wide) / size
    # Not tf.math.squared_difference: TF 2.15's graph rewriter takes some graphs with it
    # for an instance norm, and the process dies (grappler's FindInstanceNorm asks a
    # node for an attribute that it does not have).
    variance = row_sums(tf.square(wide - mean)) / size
    reciprocal = tf.math.rsqrt(variance + epsilon)
    return _normalized(x, mean, reciprocal, gamma, beta), mean, reciprocal


def _normalized(x, mean, reciprocal, gamma, beta):
    y = (tf.cast(x, tf.float32) - mean) * reciprocal * gamma + beta
    return tf.cast(y, x.dtype)


class _LayerNormGradient(mtf.Operation):
    def __init__(self, x, gamma, mean, reciprocal, dy):
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

        def mean_times_gamma(values):
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
def _times_normal(x, mean, reciprocal, dy):
    normal = (tf.cast(x, tf.float32) - mean) * reciprocal
    return normal * tf.cast(dy, tf.float32)


@compiled_where_large
def _input_gradient(x, mean, reciprocal, gamma, dy, mean_dy, mean_product):
    """`mean_dy`, `mean_product`: over the columns, of dy and of dy times the normalised
    x, each times gamma; [..., 1]."""
    normal = (tf.cast(x, tf.float32) - mean) * reciprocal
    dx = (dy * gamma - mean_dy - normal * mean_product) * reciprocal
    return tf.cast(dx, x.dtype)
