"""The global norm of a list of tensors without squared copies of them."""

from decoupled.compat import mtf, tf
from decoupled.ops.product_gradient import ProductGradient, SquaredNormOfProduct


def global_norm(tensors: list[mtf.Tensor | ProductGradient]) -> mtf.Tensor:
    """sqrt of the sum of all squares, a float32 scalar."""
    return mtf.sqrt(mtf.add_n([_squared_norm(t).outputs[0] for t in tensors]))


def _squared_norm(x):
    if isinstance(x, ProductGradient):
        return SquaredNormOfProduct(x)
    return _SquaredNorm(x)


class _SquaredNorm(mtf.Operation):
    def __init__(self, x):
        super().__init__([x], name="squared_norm")
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x = self.inputs[0]
        part = mesh_impl.slicewise(
            lambda t: 2.0 * tf.nn.l2_loss(tf.cast(t, tf.float32)), lowering.tensors[x]
        )
        axes = {mesh_impl.tensor_dimension_to_mesh_axis(d) for d in x.shape.dims}
        axes = sorted(axes - {None})
        if axes:
            part = mtf.ops.LazyAllreduceSum(mesh_impl, part, axes)
        lowering.set_tensor_lowering(self.outputs[0], part)
