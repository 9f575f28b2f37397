"""Sums over the rows of a slice and along them.

TensorFlow's reductions take two to five times as long on a CPU as a product with ones
does. A TPU would round the factors of such a product to bfloat16; it reduces well.
"""

from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.placement import PlacementMeshImpl


def sums_over_rows(mesh_impl: mtf.MeshImpl, x: Any) -> Any:
    """[..., columns] to [columns], within each slice; of x's dtype, sums float32.

    Args:
      mesh_impl: of the slices. x: laid-out tensor.
    """
    own = isinstance(mesh_impl, PlacementMeshImpl)
    return mesh_impl.slicewise(_ones_times if own else _reduced_over_rows, x)


def sums_along_rows(mesh_impl: mtf.MeshImpl, x: Any, weights: Any) -> Any:
    """[..., columns] times [columns] to [..., 1], within each slice; float32.

    Args:
      mesh_impl: of the slices. x, weights: laid-out tensors, float32.
    """
    own = isinstance(mesh_impl, PlacementMeshImpl)
    return mesh_impl.slicewise(_times if own else _reduced_along_rows, x, weights)


def _ones_times(x):
    columns = x.shape[-1]
    matrix = tf.reshape(x, [-1, columns])
    return tf.reshape(tf.matmul(tf.ones([1, matrix.shape[0]], x.dtype), matrix), [-1])


def _reduced_over_rows(x):
    sums = tf.reduce_sum(tf.cast(x, tf.float32), axis=list(range(len(x.shape) - 1)))
    return tf.cast(sums, x.dtype)


def _times(x, weights):
    y = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), tf.expand_dims(weights, 1))
    return tf.reshape(y, [*x.shape[:-1], 1])


def _reduced_along_rows(x, weights):
    return tf.reduce_sum(x * weights, axis=-1, keepdims=True)
