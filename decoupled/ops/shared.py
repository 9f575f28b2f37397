"""Helpers of lowerings: a device's part of a dimension, and shared nodes of a graph.

The matrix products of a mesh graph reshape their factors to matrices. Reshapes and the
constants for their shapes were 58% of the nodes of a graph that fine-tunes a model of
12 layers with seven lengths. A node takes some 0.5 ms to build and some microseconds to
run. Therefore a graph contains equal reshapes and constants only once."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError


class Shard(NamedTuple):
    """A device's part of a dimension.

    axis: mesh axis that splits the dimension, or None if it is not split.
    size: of the part.
    coordinate: laid-out mesh coordinate along the axis, which is the index of the part;
      0 if the dimension is not split.
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
    """Indices of `ids` within one part of a dimension.

    Args:
      ids: int32 of any shape, indices in the whole dimension.
      coordinate, size: index and size of the part. total: size of the dimension.

    Returns:
      index: int32 like `ids`, the index within the part; 0 for an id of another part.
        An id outside the whole dimension is returned unchanged, so that a gather on a
        CPU fails with an error that shows it.
      own: bool like `ids`, whether the id lies in this part.
    """
    local = ids - coordinate * size
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
    """The all-reduce of `part` over mesh axes, done when its result is needed.

    Args:
      mesh_impl: of `part`, which is laid out. axes: of the mesh; None is ignored.
    """
    axes = sorted(set(axes) - {None})
    return mtf.ops.LazyAllreduceSum(mesh_impl, part, axes) if axes else part


def check_separate(
    mesh_impl: mtf.MeshImpl, dimension: mtf.Dimension, others: list[mtf.Dimension]
) -> None:
    """Checks that a table and the ids that look it up can both be split.

    Mesh-TensorFlow checks the dimensions of single tensors only. If both were split
    over the same axis, no device would see all ids that look up its rows.

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


# The attribute of a graph that holds its shared nodes.
_NODES = "_decoupled_shared_nodes"


def reshape(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """`x` itself where it has this shape; otherwise a shared node.

    Args:
      x: of static shape.
      shape: its new dimensions, of which one may be -1.
    """
    sizes = [int(size) for size in shape]
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape.num_elements() // -math.prod(sizes)
    if x.shape.as_list() == sizes:
        return x
    key = ("reshape", x.ref(), *sizes)
    return _shared(key, lambda: tf.reshape(x, integers(sizes)))


def before_cast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The tensor of `dtype` that `x` was cast from, or `x` itself if there is none."""
    cast = x.op
    is_cast = cast.type == "Cast" and cast.inputs[0].dtype == dtype
    return cast.inputs[0] if is_cast else x


def integers(values: Sequence[int]) -> tf.Tensor:
    """A shared int32 constant [n]: a shape, or a permutation."""
    return _shared(("integers", *values), lambda: tf.constant(values, tf.int32))


def scalar(value: float) -> tf.Tensor:
    """A shared float32 constant."""
    return _shared(("scalar", value), lambda: tf.constant(value, tf.float32))


def ones(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """A shared tensor of ones.

    Args:
      shape: static. dtype: of floating-point numbers.
    """
    sizes = [int(size) for size in shape]
    return _shared(
        ("ones", dtype, *sizes),
        lambda: tf.fill(integers(sizes), tf.constant(1, dtype)),
    )


def _shared(key: Hashable, make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """The tensor that `make` returned when it was first called with this key.

    A node has a device, a control-flow context and control dependencies. It is shared
    only where all three are the same.
    """
    if tf.executing_eagerly():
        return make()
    graph = tf.get_default_graph()
    if not hasattr(graph, _NODES):
        setattr(graph, _NODES, {})
    nodes = getattr(graph, _NODES)
    devices = graph._snapshot_device_function_stack_metadata()
    place = (
        graph._get_control_flow_context(),
        frozenset(graph._current_control_dependencies()),
        tuple(device.obj for device in devices),
    )
    if (key, place) not in nodes:
        nodes[key, place] = make()
    return nodes[key, place]
