"""The part of a dimension that one device of the mesh has, where it is split."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError


class Shard(NamedTuple):
    """A device's part of a dimension.

    axis: mesh axis that splits the dimension, or None where it is whole.
    size: of the part.
    coordinate: laid-out mesh coordinate along the axis, which is the index of the part;
      0 where the dimension is whole.
    """

    axis: int | None
    size: int
    coordinate: Any


def shard_of(mesh_impl: mtf.MeshImpl, dimension: mtf.Dimension) -> Shard:
    """The part of `dimension` on each device."""
    axis = mesh_impl.tensor_dimension_to_mesh_axis(dimension)
    if axis is None:
        return Shard(None, dimension.size, 0)
    size = dimension.size // mesh_impl.shape[axis].size
    return Shard(axis, size, mesh_impl.laid_out_pcoord(axis))


def own_index(
    ids: tf.Tensor, coordinate: tf.Tensor | int, size: int, total: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Places of `ids` within one part of a dimension.

    Args:
      ids: int32 of any shape, places in the whole dimension.
      coordinate, size: index and size of the part. total: size of the dimension.

    Returns:
      index: int32 like `ids`: the place within the part; 0 where another part owns it.
        An id outside the dimension goes in unchanged, so that a gather on a CPU
        refuses it itself, and shows it.
      own: bool like `ids`, whether this part owns it.
    """
    return own_in_range(ids, coordinate * size, size, total)


def own_in_range(
    ids: tf.Tensor, first: tf.Tensor | int, size: int, total: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """As `own_index`, of the part of a dimension that begins at `first`."""
    local = ids - first
    own = tf.logical_and(local >= 0, local < size)
    known = tf.logical_and(ids >= 0, ids < total)
    elsewhere = tf.where_v2(known, tf.zeros_like(ids), ids)
    return tf.where_v2(own, local, elsewhere), own


def zero_unless(own: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """`values` [own's dimensions, ...], 0 where `own` is false."""
    rank = len(values.shape) - len(own.shape)
    mask = tf.reshape(own, own.shape.as_list() + [1] * rank)
    return tf.where_v2(mask, values, tf.zeros_like(values))


def lazy_sum(mesh_impl: mtf.MeshImpl, part: Any, axes: Iterable[int | None]) -> Any:
    """The all-reduce of `part` over mesh axes (None is no axis), done when needed."""
    axes = sorted(set(axes) - {None})
    return mtf.ops.LazyAllreduceSum(mesh_impl, part, axes) if axes else part


def check_separate(
    mesh_impl: mtf.MeshImpl, dimension: mtf.Dimension, others: list[mtf.Dimension]
) -> None:
    """Checks that a table and the ids that look it up can both be split.

    Mesh-TensorFlow checks the dimensions of single tensors only. Were both split over
    one axis, no device would see all ids that look up its rows.

    Raises:
      UserError: `dimension` and one of `others` are split over one mesh axis.
    """
    axis = mesh_impl.tensor_dimension_to_mesh_axis(dimension)
    for other in others:
        if axis is not None and mesh_impl.tensor_dimension_to_mesh_axis(other) == axis:
            name = mesh_impl.shape[axis].name
            raise UserError(
                f"MeshConfig.layout_rules: rules {dimension.name}:{name} and "
                f"{other.name}:{name} split rows and the ids that look them up over "
                "the same mesh axis; give one of them another axis"
            )
