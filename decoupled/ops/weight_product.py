"""Products with weights that are kept in float32 and multiplied in bfloat16.

A copy of all weights in bfloat16, made at the start of a step and kept to its end for
the backward pass, is a quarter of the weights' memory. Here each product casts what it
needs when it is its turn, forward and backward: the copy is small, still in the
processor's cache when it is read, and gone after that. Of a large table, as an output
embedding is, a few rows are cast at a time.
"""

from collections.abc import Sequence

from decoupled.compat import mtf, tf
from decoupled.ops.placement import PlacementMeshImpl
from decoupled.ops.recompute import After, identity_after
from decoupled.ops.shards import lazy_sum
from decoupled.ops.tiles import columns_of, in_two_lanes, row_tiles, rows_of

# Numbers of a table that are cast at a time, 16 MB in bfloat16. One with fewer than
# twice as many is cast whole.
_TILE = 8_000_000


def weight_product(
    x: mtf.Tensor, weights: mtf.Tensor, output_shape: Sequence[mtf.Dimension]
) -> mtf.Tensor:
    """The contraction of `x` and `weights`, in the dtype of `x`.

    Args:
      x: float [...].
      weights: float, of any dtype; what a variable reads as.
      output_shape: dimensions of the result; the others are summed over.
    """
    if weights.dtype == x.dtype:
        return mtf.einsum([x, weights], output_shape=output_shape)
    return _WeightProduct(x, weights, mtf.Shape(output_shape)).outputs[0]


class _WeightProduct(mtf.EinsumOperation):
    """An einsum whose gradient casts the weights anew."""

    def __init__(self, x, weights, output_shape):
        cast = CastAfter(weights, x).outputs[0]
        super().__init__([x, cast], output_shape, "weight_product")
        self._weights = weights

    def gradient(self, grad_ys):
        (dy,), (x, cast) = grad_ys, self.inputs
        of_x = weight_product(dy, self._weights, x.shape.dims)
        return [of_x, mtf.einsum([dy, x], output_shape=cast.shape)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x, weights = self.inputs[0], self._weights
        function = _tiled_function(mesh_impl, x, weights, self.outputs[0])
        if function is None:
            super().lower(lowering)
            return
        y = mesh_impl.slicewise(
            function, lowering.tensors[x], lowering.tensors[weights]
        )
        axes = {
            mesh_impl.tensor_dimension_to_mesh_axis(dimension)
            for dimension in x.shape.dims
            if dimension not in self.outputs[0].shape.dims
        }
        lowering.set_tensor_lowering(self.outputs[0], lazy_sum(mesh_impl, y, axes))


def _tiled_function(mesh_impl, x, weights, y):
    """What makes a device's part of `y` a few rows of the weights at a time, or None
    where that is not [..., columns] x [rows, columns] or [..., rows] x [rows, columns],
    or not worth while."""
    if not isinstance(mesh_impl, PlacementMeshImpl) or weights.shape.ndims != 2:
        return None
    if mesh_impl.slice_size(weights.shape) < 2 * _TILE:
        return None
    rows, columns = weights.shape.dims
    if x.shape.dims[:-1] != y.shape.dims[:-1]:
        return None
    if (x.shape.dims[-1], y.shape.dims[-1]) == (columns, rows):
        return _times_transposed
    if (x.shape.dims[-1], y.shape.dims[-1]) == (rows, columns):
        return _times
    return None


def _times_transposed(x, weights):
    """x [..., columns] times the transpose of the weights: [..., rows]."""
    matrix = _as_matrix(x)

    def part(tile):
        (some,) = _cast_rows(weights, tile, matrix)
        return [tf.matmul(matrix, some, transpose_b=True)]

    parts = in_two_lanes(part, _tiles(weights))
    y = tf.concat([y for (y,) in parts], axis=1)
    return tf.reshape(y, [*x.shape[:-1], weights.shape[0]])


def _times(x, weights):
    """x [..., rows] times the weights: [..., columns]; sums in float32."""
    matrix = _as_matrix(x)
    total = None

    def part(tile):
        nonlocal total
        (some,) = _cast_rows(weights, tile, matrix)
        y = tf.cast(tf.matmul(columns_of(matrix, tile), some), tf.float32)
        total = y if total is None else total + y
        return [total]

    in_two_lanes(part, _tiles(weights))
    y = tf.cast(total, x.dtype)
    return tf.reshape(y, [*x.shape[:-1], weights.shape[1]])


def _tiles(weights):
    rows, columns = weights.shape.as_list()
    return row_tiles(rows, _TILE // columns)


def _cast_rows(weights, tile, like):
    with tf.control_dependencies([like]):
        return [tf.cast(x, like.dtype) for x in rows_of([weights], tile)]


def _as_matrix(x):
    return tf.reshape(x, [-1, x.shape[-1]])


class CastAfter(After):
    """`x` in the dtype of `signal`, cast once that is computed; XLA casts it when it
    sees fit."""

    def __init__(self, x, signal):
        super().__init__(x, signal)
        self._outputs = [mtf.Tensor(self, x.shape, signal.dtype)]

    @property
    def has_gradient(self):
        return True

    def gradient(self, grad_ys):
        """Of `x`, in its dtype."""
        return [GradientCast(grad_ys[0], self.inputs[0].dtype).outputs[0], None]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x, signal = (lowering.tensors[t] for t in self.inputs)
        if mesh_impl.supports_control_dependencies:
            x = mesh_impl.slicewise(identity_after, x, signal)
        cast = mesh_impl.slicewise(tf.cast, x, self.outputs[0].dtype)
        lowering.set_tensor_lowering(self.outputs[0], cast)


class GradientCast(mtf.Operation):
    """A weight's gradient in another dtype.

    In a loop over microbatches its parts are cast, and their sum over processors is
    left to be done: Mesh-TensorFlow adds such parts up over the loop and sums them over
    the mesh once. Elsewhere what crosses the mesh is the narrower gradient.
    """

    def __init__(self, gradient, dtype):
        super().__init__([gradient], name="gradient_cast")
        self._outputs = [mtf.Tensor(self, gradient.shape, dtype)]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_all_dimensions_as_splittable()
        )

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        gradient, dtype = lowering.tensors[self.inputs[0]], self.outputs[0].dtype
        # A loop's operations are its own, no longer the graph's.
        in_loop = self not in self.graph.operations
        if in_loop and isinstance(gradient, mtf.ops.LazyAllreduceSum):
            part = mesh_impl.slicewise(tf.cast, gradient.laid_out_input, dtype)
            cast = lazy_sum(mesh_impl, part, gradient.mesh_axes)
        else:
            cast = mesh_impl.slicewise(tf.cast, gradient, dtype)
        lowering.set_tensor_lowering(self.outputs[0], cast)
