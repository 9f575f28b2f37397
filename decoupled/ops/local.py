"""Operations of a mesh graph that each device computes from its own slices.

Mesh-TensorFlow wants a class for each operation. `local_op` makes one from two
functions: forward, of TensorFlow's slices, and backward, of tensors of the mesh.
`mesh_op` is for an operation that also adds up between devices.

Neither fits what is no function of tensors: an update of variables, which has no
result (`decoupled.ops.adam`, `rounding`, `meshes.simd`), the lookup in a table, which
reads a variable in the dtype that it is stored in (`decoupled.ops.gather`), and what
other modules recognise by its class (`weight_product`, `recompute`).

Matrix products reshape their factors to matrices. Reshapes and the constants for their
shapes were 58% of the nodes of a graph that fine-tuned 12 layers, and a node takes some
0.5 ms to build. Therefore a graph contains equal reshapes and constants only once.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError

# The attribute of a graph that holds its shared nodes.
_NODES = "_decoupled_shared_nodes"


class Spec(NamedTuple):
    """Shape and dtype of a result; a tensor stands for its own."""

    shape: mtf.Shape
    dtype: tf.DType


def local_op(
    name: str,
    forward: Callable[..., tf.Tensor],
    inputs: Sequence[mtf.Tensor],
    output: mtf.Tensor | Spec,
    backward: Callable[..., list] | None = None,
) -> mtf.Tensor:
    """A tensor like `output` whose slices are `forward` of the inputs' slices.

    `backward` is from the operation and the gradient of each output to a gradient, or
    None, of each input. It must read tensors from the operation (`inputs`, `outputs`):
    gradient checkpointing copies operations. None: it has no gradient.
    """

    def lower(mesh_impl: mtf.MeshImpl, *slices: Any) -> list:
        return [mesh_impl.slicewise(forward, *slices)]

    return mesh_op(name, lower, inputs, [output], backward)[0]


def mesh_op(
    name: str,
    lower: Callable[..., Sequence],
    inputs: Sequence[mtf.Tensor],
    outputs: Sequence[mtf.Tensor | Spec],
    backward: Callable[..., list] | None = None,
    check_layout: Callable[[mtf.MeshImpl], None] | None = None,
) -> list[mtf.Tensor]:
    """Tensors like `outputs`, whose slices may depend on those of other devices.

    `lower` is from the implementation of the mesh and the laid-out inputs to the
    laid-out outputs; `backward` as for `local_op`. `check_layout` raises UserError
    where a layout is impossible for this operation.
    """
    return _Operation(name, lower, inputs, outputs, backward, check_layout).outputs


class _Operation(mtf.Operation):
    def __init__(self, name, lower, inputs, outputs, backward, check_layout):
        super().__init__(list(inputs), name=name)
        self._lower, self._backward, self._check = lower, backward, check_layout
        self._outputs = [
            mtf.Tensor(self, output.shape, output.dtype, index=index)
            for index, output in enumerate(outputs)
        ]

    def gradient(self, grad_ys):
        if self._backward is None:
            raise NotImplementedError(f"{self.name} has no gradient")
        return self._backward(self, *grad_ys)

    def check_layout(self, mesh_impl):
        """Also called before anything is lowered (`training.mesh.check_tensors`)."""
        if self._check is not None:
            self._check(mesh_impl)

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        self.check_layout(mesh_impl)
        values = self._lower(mesh_impl, *(lowering.tensors[x] for x in self.inputs))
        for tensor, value in zip(self.outputs, values, strict=True):
            lowering.set_tensor_lowering(tensor, value)


class DevicePart(NamedTuple):
    """A device's part of a dimension.

    axis: of the mesh, which splits the dimension, or None. coordinate: laid out, along
    the axis: the index of the part; 0 if the dimension is not split.
    """

    axis: int | None
    size: int
    coordinate: Any


def shard_of(mesh_impl: mtf.MeshImpl, dimension: mtf.Dimension) -> DevicePart:
    """The part of a dimension on each device."""
    axis = mesh_impl.tensor_dimension_to_mesh_axis(dimension)
    if axis is None:
        return DevicePart(None, dimension.size, 0)
    size = dimension.size // mesh_impl.shape[axis].size
    return DevicePart(axis, size, mesh_impl.laid_out_pcoord(axis))


def local_index(
    ids: tf.Tensor, coordinate: tf.Tensor | int, size: int, total: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Indices within one part of a dimension, and whether an id lies in this part.

    The index of another part's id is 0. `size` is of the part, `total` of the whole.
    """
    # An id outside the whole dimension is returned unchanged, so that a gather on a CPU
    # fails with an error that shows it.
    index = ids - coordinate * size
    is_here = tf.logical_and(index >= 0, index < size)
    is_id = tf.logical_and(ids >= 0, ids < total)
    other_index = tf.where_v2(is_id, tf.zeros_like(ids), ids)
    return tf.where_v2(is_here, index, other_index), is_here


def zero_unless(mask: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """`values` [mask's dimensions, ...], 0 where `mask` is false."""
    rank = len(values.shape) - len(mask.shape)
    mask = tf.reshape(mask, mask.shape.as_list() + [1] * rank)
    return tf.where_v2(mask, values, tf.zeros_like(values))


def lazy_sum(mesh_impl: mtf.MeshImpl, part: Any, axes: Iterable[int | None]) -> Any:
    """The all-reduce of laid-out slices over mesh axes (None is ignored), done when its
    result is needed."""
    axes = sorted(set(axes) - {None})
    return mtf.ops.LazyAllreduceSum(mesh_impl, part, axes) if axes else part


def check_separate(
    mesh_impl: mtf.MeshImpl, dimension: mtf.Dimension, id_dims: list[mtf.Dimension]
) -> None:
    """Checks that a table and the ids that look it up are not split over one axis.

    Mesh-TensorFlow checks single tensors only. No device would see all ids that look up
    its rows.
    """
    axis = mesh_impl.tensor_dimension_to_mesh_axis(dimension)
    for id_dim in id_dims:
        if axis is not None and mesh_impl.tensor_dimension_to_mesh_axis(id_dim) == axis:
            name = mesh_impl.shape[axis].name
            raise UserError(
                f"MeshConfig.layout_rules: rules {dimension.name}:{name} and "
                f"{id_dim.name}:{name} split rows and the ids that look them up over "
                "the same mesh axis; give one of them another axis"
            )


def reshape(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """`x`, of static shape, itself where it has this shape; otherwise a shared node."""
    sizes = [int(size) for size in shape]
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape.num_elements() // -math.prod(sizes)
    if x.shape.as_list() == sizes:
        return x
    key = ("reshape", x.ref(), *sizes)
    return _shared_node(key, lambda: tf.reshape(x, integers(sizes)))


def before_cast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The tensor of `dtype` that `x` was cast from, or `x` itself if there is none."""
    cast = x.op
    is_cast = cast.type == "Cast" and cast.inputs[0].dtype == dtype
    return cast.inputs[0] if is_cast else x


def integers(values: Sequence[int]) -> tf.Tensor:
    """A shared int32 constant [n]: a shape, or a permutation."""
    return _shared_node(("integers", *values), lambda: tf.constant(values, tf.int32))


def scalar(value: float) -> tf.Tensor:
    """A shared float32 constant."""
    return _shared_node(("scalar", value), lambda: tf.constant(value, tf.float32))


def ones(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """A shared tensor of ones."""
    sizes = [int(size) for size in shape]
    return _shared_node(
        ("ones", dtype, *sizes),
        lambda: tf.fill(integers(sizes), tf.constant(1, dtype)),
    )


def _shared_node(key: Hashable, make: Callable[[], tf.Tensor]) -> tf.Tensor:
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
    context = (
        graph._get_control_flow_context(),
        frozenset(graph._current_control_dependencies()),
        tuple(device.obj for device in devices),
    )
    if (key, context) not in nodes:
        nodes[key, context] = make()
    return nodes[key, context]
