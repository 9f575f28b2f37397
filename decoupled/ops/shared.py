"""Nodes that the operations of a TensorFlow graph share.

The matrix products of a mesh graph reshape their factors to matrices. Reshapes and the
constants for their shapes were 58% of the nodes of a graph that fine-tuned a model of
12 layers. A node takes some 0.5 ms to build and some microseconds to
run. Therefore a graph contains equal reshapes and constants only once."""

import math
from collections.abc import Callable, Hashable, Sequence

from decoupled.core.compat import tf

# The attribute of a graph that holds its shared nodes.
_NODES = "_decoupled_shared_nodes"


def reshape(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """`x`, of static shape, itself where it has this shape; otherwise a shared node."""
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
    """A shared tensor of ones."""
    sizes = [int(size) for size in shape]
    return _shared(
        ("ones", dtype, *sizes),
        lambda: tf.fill(integers(sizes), tf.constant(1, dtype)),
    )


def _shared(key: Hashable, make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """The tensor that `make` returned when it was first called with this key.

    It is shared only where device, control-flow context and dependencies are the same.
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
