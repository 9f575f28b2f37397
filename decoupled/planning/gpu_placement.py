"""Where TensorFlow would place a run's graph on a host with GPUs, without a GPU.

TensorFlow silently runs an operation without a GPU kernel on the CPU. If the operation
uses a variable, the variable and all operations on it are placed on the CPU too. The
registry of kernels says which operations have a GPU kernel. The package `tensorflow`
for Linux lists its GPU kernels even on hosts without a GPU.
"""

import functools
from collections import Counter
from typing import NamedTuple

from decoupled.configs import PretrainConfig
from decoupled.core import console
from decoupled.core.compat import kernels, tf
from decoupled.core.errors import UserError
from decoupled.core.machine import readable_bytes
from decoupled.ops.meshes.placement import PlacementMeshImpl
from decoupled.planning.program import feature_specs
from decoupled.training.graph import build_step, pretraining_graph
from decoupled.training.mesh import Placement, mesh_size, shape_and_layout

# A kernel for every device, e.g. of control flow.
_DEVICES = ("GPU", "DEFAULT")


class Landing(NamedTuple):
    """The placement of a graph.

    gpu, cpu: number of operations on each. moved: type and dtype of operations -> how
    many of them are meant for a GPU but have no kernel there. slice_bytes: of the
    variables on the GPUs. master_bytes: of the variables on the CPU, from which
    checkpoints are written.
    """

    gpu: int
    cpu: int
    moved: Counter
    slice_bytes: int
    master_bytes: int


def landing_of_run(run: PretrainConfig, gpus: int) -> Landing:
    """Builds the training graph of a run for a host with GPUs, and reads it.

    Raises:
      UserError: mesh, model, batch and GPUs do not fit each other.
    """
    if mesh_size(run.mesh) != gpus:
        raise UserError(
            f"MeshConfig.mesh_shape: {run.mesh.mesh_shape} has {mesh_size(run.mesh)} "
            f"processors, --gpus has {gpus}; make them equal"
        )
    shape, layout = shape_and_layout(run.mesh)
    devices = [f"gpu:{index}" for index in range(gpus)]
    mesh = PlacementMeshImpl(shape, layout, devices)
    with tf.Graph().as_default() as graph:
        tf.train.get_or_create_global_step()
        features = {
            name: tf.placeholder(spec.dtype, spec.shape)
            for name, spec in feature_specs(
                run.masking, run.training.batch_size
            ).items()
        }
        lowered = build_step(pretraining_graph(run), features, Placement(mesh, None))
        lowered.lowering.copy_masters_to_slices()
        lowered.lowering.copy_slices_to_masters()
    return landing(graph)


def print_landing(placed: Landing, gpus: int) -> None:
    """Prints the placement, and each type of operation without a GPU kernel."""
    on_each = placed.slice_bytes // gpus
    rows = [
        ["operations on GPUs", f"{placed.gpu:,}", ""],
        ["operations on the CPU", f"{placed.cpu:,}", "input, saving, and those below"],
        ["weights and slots", readable_bytes(on_each), "on each GPU"],
        ["saved variables", readable_bytes(placed.master_bytes), "on the host"],
    ]
    console.table(f"Where the training graph lands on {gpus} GPUs", ["", "", ""], rows)
    if not placed.moved:
        console.say("all of the training step stays on the GPUs")
        return
    console.table(
        "Meant for GPUs, without a kernel there: TensorFlow runs these on the CPU",
        ["operation", "type", "count"],
        [[kind, dtype, count] for (kind, dtype), count in placed.moved.most_common()],
    )


def landing(graph: tf.Graph) -> Landing:
    """Reads the devices and the kernels of all operations outside of functions.

    Raises:
      UserError: this TensorFlow was built without kernels for GPUs.
    """
    if not _kernels("MatMul"):
        raise UserError(
            "this TensorFlow has no kernels for GPUs (tensorflow-cpu?); the report "
            "needs the package tensorflow"
        )
    gpu, cpu, moved, slices, masters = 0, 0, Counter(), 0, 0
    for operation in graph.get_operations():
        meant_for_gpu = "GPU" in operation.device.upper()
        size = _bytes(operation) if operation.type == "VarHandleOp" else 0
        if meant_for_gpu:
            slices += size
        else:
            masters += size
        if meant_for_gpu and has_kernel(operation):
            gpu += 1
            continue
        cpu += 1
        if meant_for_gpu:
            moved[operation.type, _dtype(operation)] += 1
    return Landing(gpu, cpu, moved, slices, masters)


def has_kernel(operation: tf.Operation) -> bool:
    """Whether GPUs have a kernel for an operation and its types."""
    values = [operation.get_attr(name) for name in _constrained(operation.type)]
    return _is_registered(operation.type, tuple(map(_types, values)))


@functools.cache
def _kernels(operation_type):
    registered = kernels.get_registered_kernels_for_op(operation_type).kernel
    return [kernel for kernel in registered if kernel.device_type in _DEVICES]


@functools.cache
def _constrained(operation_type):
    """The attributes of an operation on which the choice of a kernel depends."""
    kernels_there = _kernels(operation_type)
    return sorted({c.name for kernel in kernels_there for c in kernel.constraint})


@functools.cache
def _is_registered(operation_type, types):
    types = dict(zip(_constrained(operation_type), types, strict=True))
    return any(_fits(kernel, types) for kernel in _kernels(operation_type))


def _types(values):
    values = values if isinstance(values, list) else [values]
    return tuple(v.as_datatype_enum for v in values if isinstance(v, tf.DType))


def _fits(kernel, types):
    for constraint in kernel.constraint:
        allowed = constraint.allowed_values.list.type
        if allowed and not set(types[constraint.name]) <= set(allowed):
            return False
    return True


def _dtype(operation):
    tensors = [*operation.outputs, *operation.inputs]
    known = [t.dtype.base_dtype.name for t in tensors if t.dtype != tf.resource]
    return known[0] if known else ""


def _bytes(operation):
    shape = tf.TensorShape(operation.get_attr("shape"))
    return shape.num_elements() * operation.get_attr("dtype").size
