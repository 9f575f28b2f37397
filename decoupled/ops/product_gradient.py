"""Gradients that are products of two thin matrices, and are never made whole.

The gradient of an output embedding sums one outer product for each masked position:
[predictions, V]^T x [predictions, E_out]. Whole, it is as large as the table itself,
369 MB for 120,000 x 768, and is written once to be read twice, for its norm and for the
update. Its factors are all that these two need: the norm comes from products of
[predictions, predictions], and `decoupled.ops.adam` makes a block of rows at a time.
"""

from typing import NamedTuple

from decoupled.core.compat import mtf
from decoupled.ops.placement import PlacementMeshImpl
from decoupled.ops.weight_product import GradientCast

# Smaller gradients (numbers on one device) are not worth the trouble: 16 MB.
_SMALLEST = 4_000_000
# What the norm from the factors may cost, as a share of the product itself.
_NORM_SHARE = 0.25


class ProductGradient(NamedTuple):
    """A gradient [rows, columns] as left^T x right.

    left: float [..., rows]. right: float [..., columns]. Their first dimensions are
      the same, and none of these is split across the mesh.
    """

    left: mtf.Tensor
    right: mtf.Tensor

    @property
    def shape(self) -> mtf.Shape:
        """Of the product: rows and columns."""
        return mtf.Shape([self.left.shape.dims[-1], self.right.shape.dims[-1]])


def as_product(
    gradient: mtf.Tensor, mesh_impl: mtf.MeshImpl, smallest: int = _SMALLEST
) -> ProductGradient | None:
    """The factors of a gradient, where keeping them apart pays.

    Args:
      gradient: of a variable, as `mtf.gradients` gives it.
      mesh_impl: that the graph will run on. On a TPU the answer is None: XLA has no
        place to write a few rows of a variable to.
      smallest: numbers that a device's part of the gradient must have.

    Returns:
      The factors; None where the gradient is no product of two tensors (it is a sum in
      a model with coupled embeddings), is small, has too many inner rows for its norm
      to be cheap, or sums over processors.
    """
    product = _factors(gradient)
    if product is None or not isinstance(mesh_impl, PlacementMeshImpl):
        return None
    inner = product.left.shape.dims[:-1]
    if any(mesh_impl.tensor_dimension_to_mesh_axis(d) is not None for d in inner):
        return None
    rows, columns = mesh_impl.slice_shape(gradient.shape)
    affordable = _NORM_SHARE * rows * columns / (rows + columns)
    worth_while = rows * columns >= smallest and mtf.Shape(inner).size <= affordable
    return product if worth_while else None


def _factors(gradient):
    operation = gradient.operation
    if isinstance(operation, GradientCast):
        operation = operation.inputs[0].operation
    if not isinstance(operation, mtf.EinsumOperation) or len(operation.inputs) != 2:
        return None
    if gradient.shape.ndims != 2:
        return None
    rows, columns = gradient.shape.dims
    for left, right in (operation.inputs, operation.inputs[::-1]):
        inner = left.shape.dims[:-1]
        if left.shape.dims == [*inner, rows] and right.shape.dims == [*inner, columns]:
            return ProductGradient(left, right)
    return None
