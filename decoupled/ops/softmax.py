"""Softmax in one kernel, also over a dimension that is split across the mesh."""

from decoupled.compat import mtf, tf


def softmax(x: mtf.Tensor) -> mtf.Tensor:
    """Softmax over the last dimension, computed in float32, returned in x's dtype."""
    return _Softmax(x).outputs[0]


class _Softmax(mtf.Operation):
    def __init__(self, x):
        super().__init__([x], name="softmax")
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def gradient(self, grad_ys):
        return [_SoftmaxGradient(self.outputs[0], grad_ys[0]).outputs[0]]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x = self.inputs[0]
        axis = mesh_impl.tensor_dimension_to_mesh_axis(x.shape.dims[-1])
        value = lowering.tensors[x]
        if axis is None:
            result = mesh_impl.slicewise(
                lambda x: tf.cast(tf.nn.softmax(tf.cast(x, tf.float32)), x.dtype), value
            )
        else:
            result = _split_softmax(mesh_impl, value, axis)
        lowering.set_tensor_lowering(self.outputs[0], result)


def _split_softmax(mesh_impl, value, axis):
    maximum = mesh_impl.slicewise(
        lambda x: tf.reduce_max(tf.cast(x, tf.float32), axis=-1, keepdims=True), value
    )
    maximum = mesh_impl.allreduce(maximum, [axis], "MAX")
    exponentials = mesh_impl.slicewise(
        lambda x, m: tf.exp(tf.cast(x, tf.float32) - m), value, maximum
    )
    sums = mesh_impl.slicewise(
        lambda e: tf.reduce_sum(e, axis=-1, keepdims=True), exponentials
    )
    sums = mesh_impl.allreduce(sums, [axis], "SUM")
    return mesh_impl.slicewise(
        lambda x, e, s: tf.cast(e / s, x.dtype), value, exponentials, sums
    )


class _SoftmaxGradient(mtf.Operation):
    def __init__(self, y, dy):
        super().__init__([y, dy], name="softmax_gradient")
        self._outputs = [mtf.Tensor(self, y.shape, y.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        y, dy = self.inputs
        axis = mesh_impl.tensor_dimension_to_mesh_axis(y.shape.dims[-1])
        y, dy = lowering.tensors[y], lowering.tensors[dy]

        def inner_product(y, dy):
            product = tf.cast(y, tf.float32) * tf.cast(dy, tf.float32)
            return tf.reduce_sum(product, axis=-1, keepdims=True)

        inner = mesh_impl.slicewise(inner_product, y, dy)
        if axis is not None:
            inner = mesh_impl.allreduce(inner, [axis], "SUM")
        result = mesh_impl.slicewise(
            lambda y, dy, i: y * tf.cast(tf.cast(dy, tf.float32) - i, y.dtype),
            y, dy, inner,
        )  # fmt: skip
        lowering.set_tensor_lowering(self.outputs[0], result)
