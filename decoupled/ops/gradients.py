"""Gradients as the optimizer takes them: factored ones, and the global norm of all.

The gradient of an output embedding sums one outer product for each masked position:
[predictions, V]^T x [predictions, E_out]. The product is as large as the table, 369 MB
for 120,000 x 768. It would be written once and read twice, for its norm and for the
update. Both can be computed from the factors: the norm from products of
[predictions, predictions], and the update one partition at a time
(`decoupled.ops.adam`).
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.ops.local import Spec, lazy_sum, mesh_op, scalar
from decoupled.ops.meshes.placement import PlacementMeshImpl
from decoupled.ops.weight_product import GradientCast

# Elements on one device, 16 MB; smaller gradients are not kept as factors.
_SMALLEST = 4_000_000
# Most FLOPs of the norm, as a share of those of the product itself.
_NORM_SHARE = 0.25
# Elements of a bfloat16 factor that are cast to float32 at a time.
_CAST_ELEMENTS = 1_000_000


class FactoredGradient(NamedTuple):
    """A gradient [rows, columns] as left^T x right, [..., rows] and [..., columns].

    Their first dimensions are the same, and none of these is split across the mesh.
    """

    left: mtf.Tensor
    right: mtf.Tensor

    @property
    def shape(self) -> mtf.Shape:
        return mtf.Shape([self.left.shape.dims[-1], self.right.shape.dims[-1]])


def as_factored(
    gradient: mtf.Tensor, mesh_impl: mtf.MeshImpl, smallest: int = _SMALLEST
) -> FactoredGradient | None:
    """The factors of a gradient, where it pays not to multiply them; else None.

    It does not pay where the gradient is a sum (with coupled embeddings), is small (a
    device's part has fewer than `smallest` elements), has too many inner rows for its
    norm to be cheap, or is summed over devices; nor under XLA, which cannot write a few
    rows of a variable in place.
    """
    factors = _factors(gradient)
    if factors is None or not isinstance(mesh_impl, PlacementMeshImpl):
        return None
    inner_dims = factors.left.shape.dims[:-1]
    if any(mesh_impl.tensor_dimension_to_mesh_axis(d) is not None for d in inner_dims):
        return None
    rows, columns = mesh_impl.slice_shape(gradient.shape)
    max_inner = _NORM_SHARE * rows * columns / (rows + columns)
    pays = rows * columns >= smallest and mtf.Shape(inner_dims).size <= max_inner
    return factors if pays else None


def _factors(gradient: mtf.Tensor) -> FactoredGradient | None:
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
            return FactoredGradient(left, right)
    return None


# What the optimizer accepts as a gradient.
Gradient = mtf.Tensor | FactoredGradient


def global_norm(gradients: Sequence[Gradient]) -> mtf.Tensor:
    """sqrt of the sum of all squares, a float32 scalar; makes no squared copies."""
    parts = [list(g) if isinstance(g, FactoredGradient) else [g] for g in gradients]

    def lower(mesh_impl: mtf.MeshImpl, *slices: Any) -> list:
        on_host = isinstance(mesh_impl, PlacementMeshImpl)
        # Mesh axes that split gradients, over which their sum is added up -> the
        # squared norms of these gradients, or the gradients themselves.
        groups, remaining_slices = {}, iter(slices)
        for gradient, part in zip(gradients, parts, strict=True):
            axes = map(mesh_impl.tensor_dimension_to_mesh_axis, gradient.shape.dims)
            values = list(itertools.islice(remaining_slices, len(part)))
            if on_host:
                norm = _NORMS[len(part)]
                values = [mesh_impl.slicewise(norm, *values)]
            groups.setdefault(frozenset(axes) - {None}, []).extend(values)
        add_up = _sum if on_host else _squared_norm_of_all
        sums = [
            lazy_sum(mesh_impl, mesh_impl.slicewise(add_up, *members), axes)
            for axes, members in groups.items()
        ]
        return [functools.reduce(functools.partial(mesh_impl.slicewise, tf.add), sums)]

    output = Spec(mtf.Shape([]), tf.float32)
    inputs = list(itertools.chain.from_iterable(parts))
    return mtf.sqrt(mesh_op("squared_norm", lower, inputs, [output])[0])


def _sum(*x: tf.Tensor) -> tf.Tensor:
    return functools.reduce(tf.add, x)


def _squared_norm_of_all(*slices: tf.Tensor) -> tf.Tensor:
    """The squared norm of whole slices in few kernels of XLA: the squares of slices of
    one shape are added up first."""
    by_shape = {}
    for x in slices:
        squares = tf.square(tf.cast(x, tf.float32))
        by_shape.setdefault(tuple(x.shape), []).append(squares)
    return tf.add_n([tf.reduce_sum(tf.add_n(group)) for group in by_shape.values()])


def _squared_norm_of_slice(x: tf.Tensor) -> tf.Tensor:
    return scalar(2.0) * tf.nn.l2_loss(tf.cast(x, tf.float32))


def _squared_norm_of_factors(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """The squared norm of left^T x right: the sum of left left^T * right right^T."""
    # Rounding errors are relative to the largest term and can make the sum negative.
    return tf.maximum(tf.reduce_sum(_pairs(left) * _pairs(right)), 0.0)


def _pairs(x: tf.Tensor) -> tf.Tensor:
    """x x^T in float32, [inner, inner] for x of [..., size]; a product of bfloat16
    matrices would be rounded to 8 bits."""
    size = x.shape.as_list()[-1]
    x = tf.reshape(x, [-1, size])
    if x.dtype == tf.float32:
        return tf.matmul(x, x, transpose_b=True)
    inner = x.shape.as_list()[0]
    width = max(1, _CAST_ELEMENTS // inner)
    total = tf.zeros([inner, inner])
    for start in range(0, size, width):
        with tf.control_dependencies([total]):
            columns = tf.slice(x, [0, start], [inner, min(width, size - start)])
        columns = tf.cast(columns, tf.float32)
        total += tf.matmul(columns, columns, transpose_b=True)
    return total


# Number of slices of a gradient, which is whole or two factors -> its norm.
_NORMS = {1: _squared_norm_of_slice, 2: _squared_norm_of_factors}
