"""The global norm of a list of tensors without squared copies of them."""

from decoupled.core.compat import mtf, tf
from decoupled.ops.product_gradient import ProductGradient

# Elements of a factor that are float32 at a time.
_BLOCK = 1_000_000


def global_norm(tensors: list[mtf.Tensor | ProductGradient]) -> mtf.Tensor:
    """sqrt of the sum of all squares, a float32 scalar."""
    return mtf.sqrt(mtf.add_n([_squared_norm(t).outputs[0] for t in tensors]))


def _squared_norm(x):
    if isinstance(x, ProductGradient):
        return _SumOfParts([*x], x.shape, _squared_norm_of_product)
    return _SumOfParts([x], x.shape, _squared_norm_of_slice)


class _SumOfParts(mtf.Operation):
    """A number of each slice of a tensor, summed over the processors that split it.

    Args:
      inputs: what the number is computed from. shape: of the tensor.
      part: from slices of the inputs to a float32 scalar.
    """

    def __init__(self, inputs, shape, part):
        super().__init__(inputs, name="squared_norm")
        self._shape, self._part = shape, part
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        inputs = [lowering.tensors[x] for x in self.inputs]
        part = mesh_impl.slicewise(self._part, *inputs)
        axes = map(mesh_impl.tensor_dimension_to_mesh_axis, self._shape.dims)
        axes = sorted(set(axes) - {None})
        if axes:
            part = mtf.ops.LazyAllreduceSum(mesh_impl, part, axes)
        lowering.set_tensor_lowering(self.outputs[0], part)


def _squared_norm_of_slice(x):
    return 2.0 * tf.nn.l2_loss(tf.cast(x, tf.float32))


def _squared_norm_of_product(left, right):
    """Of left^T x right, without the product: the sum over all pairs of inner rows of
    (left left^T) * (right right^T). Rounding errors are relative to the largest of its
    terms, and one that leaves a negative sum counts as 0."""
    return tf.maximum(tf.reduce_sum(_pairs(left) * _pairs(right)), 0.0)


def _pairs(x):
    """x x^T in float32, [inner, inner] for [..., size]; casts a few columns at a time,
    as a sum of bfloat16 products would be rounded to 8 bits."""
    size = x.shape.as_list()[-1]
    x = tf.reshape(x, [-1, size])
    if x.dtype == tf.float32:
        return tf.matmul(x, x, transpose_b=True)
    inner = x.shape.as_list()[0]
    width = max(1, _BLOCK // inner)
    total = tf.zeros([inner, inner])
    for first in range(0, size, width):
        with tf.control_dependencies([total]):
            block = tf.slice(x, [0, first], [inner, min(width, size - first)])
        block = tf.cast(block, tf.float32)
        total += tf.matmul(block, block, transpose_b=True)
    return total
