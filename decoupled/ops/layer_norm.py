"""Layer normalisation in a few kernels, also over a dimension that is split."""

from decoupled.compat import mtf, tf


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


def _mean_over_last(mesh_impl, dimension, function, *inputs):
    """Mean over the last dimension of `function` of the slices, kept as size 1."""
    axis = mesh_impl.tensor_dimension_to_mesh_axis(dimension)
    if axis is None:
        return mesh_impl.slicewise(
            lambda *xs: tf.reduce_mean(function(*xs), axis=-1, keepdims=True), *inputs
        )
    sums = mesh_impl.slicewise(
        lambda *xs: tf.reduce_sum(function(*xs), axis=-1, keepdims=True), *inputs
    )
    sums = mesh_impl.allreduce(sums, [axis], "SUM")
    return mesh_impl.slicewise(lambda s: s / dimension.size, sums)


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
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_all_dimensions_as_splittable()
        )

    def gradient(self, grad_ys):
        x, gamma, _ = self.inputs
        _, mean, reciprocal = self.outputs
        return _LayerNormGradient(x, gamma, mean, reciprocal, grad_ys[0]).outputs

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x, gamma, beta = (lowering.tensors[t] for t in self.inputs)
        dimension = self.inputs[0].shape.dims[-1]
        mean = _mean_over_last(
            mesh_impl, dimension, lambda x: tf.cast(x, tf.float32), x
        )
        # Not tf.math.squared_difference: TF 2.15's graph rewriter takes some graphs
        # with it for an instance norm, and the process dies (grappler's
        # FindInstanceNorm asks a node for an attribute that it does not have).
        variance = _mean_over_last(
            mesh_impl, dimension,
            lambda x, m: tf.square(tf.cast(x, tf.float32) - m),
            x, mean,
        )  # fmt: skip
        reciprocal = mesh_impl.slicewise(
            lambda v: tf.math.rsqrt(v + self._epsilon), variance
        )
        y = mesh_impl.slicewise(
            lambda x, m, r, g, b: tf.cast(
                (tf.cast(x, tf.float32) - m) * r * g + b, x.dtype
            ),
            x, mean, reciprocal, gamma, beta,
        )  # fmt: skip
        for tensor, value in zip(self.outputs, [y, mean, reciprocal], strict=True):
            lowering.set_tensor_lowering(tensor, value)


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
        dimension = self.inputs[0].shape.dims[-1]
        normal = mesh_impl.slicewise(
            lambda x, m, r: (tf.cast(x, tf.float32) - m) * r, x, mean, reciprocal
        )
        dy = mesh_impl.slicewise(lambda t: tf.cast(t, tf.float32), dy)
        scaled = mesh_impl.slicewise(lambda dy, g: dy * g, dy, gamma)
        mean_scaled = _mean_over_last(mesh_impl, dimension, lambda s: s, scaled)
        mean_product = _mean_over_last(
            mesh_impl, dimension, lambda s, n: s * n, scaled, normal
        )
        dx = mesh_impl.slicewise(
            lambda x, s, n, a, b, r: tf.cast((s - a - n * b) * r, x.dtype),
            x, scaled, normal, mean_scaled, mean_product, reciprocal,
        )  # fmt: skip

        def over_rows(values):
            return tf.reduce_sum(values, axis=list(range(len(values.shape) - 1)))

        d_gamma = mesh_impl.slicewise(lambda dy, n: over_rows(dy * n), dy, normal)
        d_beta = mesh_impl.slicewise(over_rows, dy)
        row_dims = self.inputs[0].shape.dims[:-1]
        axes = {mesh_impl.tensor_dimension_to_mesh_axis(d) for d in row_dims}
        axes = sorted(axes - {None})
        if axes:
            d_gamma = mtf.ops.LazyAllreduceSum(mesh_impl, d_gamma, axes)
            d_beta = mtf.ops.LazyAllreduceSum(mesh_impl, d_beta, axes)
        for tensor, value in zip(self.outputs, [dx, d_gamma, d_beta], strict=True):
            lowering.set_tensor_lowering(tensor, value)
