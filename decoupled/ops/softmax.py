"""Softmax in few passes, also over a dimension that is split across the mesh."""

from decoupled.core.compat import mtf, tf
from decoupled.ops.compiled import compiled_where_large, row_sums


def softmax(
    x: mtf.Tensor, bias: mtf.Tensor | None = None, scale: float = 1.0
) -> mtf.Tensor:
    """softmax(x * scale + bias) over the last dimension, computed in float32.

    Args:
      x: float [..., d].
      bias: float32, of some of x's dimensions in their order; no gradient is given for
        it.
      scale: a constant.

    Returns:
      A tensor like `x`.
    """
    return _Softmax(x, bias, scale).outputs[0]


class _Softmax(mtf.Operation):
    def __init__(self, x, bias, scale):
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

    def _lowered_bias(self, lowering):
        """Its slices, with dimensions of 1 for those of x that it lacks."""
        if len(self.inputs) == 1:
            return 0.0
        mesh_impl = lowering.mesh_impl(self)
        x, bias = self.inputs
        sizes = zip(x.shape.dims, mesh_impl.slice_shape(x.shape), strict=True)
        shape = [size if dim in bias.shape.dims else 1 for dim, size in sizes]
        return mesh_impl.slicewise(
            lambda b: tf.reshape(b, shape), lowering.tensors[bias]
        )


@compiled_where_large
def _scaled(x, scale, bias):
    return tf.cast(x, tf.float32) * scale + bias


def _split_softmax(mesh_impl, value, axis):
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
    def __init__(self, y, dy, scale):
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


def _inner_product(y, dy):
    return row_sums(tf.cast(y, tf.float32) * tf.cast(dy, tf.float32))


def _gradient_given(y, dy, scale, inner):
    dx = tf.cast(y, tf.float32) * (tf.cast(dy, tf.float32) - inner) * scale
    return tf.cast(dx, y.dtype)


@compiled_where_large
def _gradient(y, dy, scale):
    return _gradient_given(y, dy, scale, _inner_product(y, dy))
