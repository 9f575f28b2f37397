"""The cost of a step on a core: bytes of memory, FLOPs and collective operations.

Weights and slots are always in memory. Every other tensor is in memory from the
operation that computes it to the last operation that reads it, in the order of the
graph. The peak is the largest sum. Casts, broadcasts, constants and reshapes need no
memory, because XLA computes them where they are read. Further fusions by XLA are not
known here, nor its padding to tiles of 8 x 128 elements.

Gradients are float32, as clipping and the optimizer use them, even if weights are
bfloat16. An update of AdamW writes weights and moments in place; with bfloat16 weights
it computes in float32 inside one kernel (`decoupled.ops.rounding`). With stacked slices
it needs the stack of the members' gradients in addition to the gradients themselves.
Reading a member needs no memory, like a cast.

Memory is computed from the mesh graph, FLOPs and collective operations from
TensorFlow's graph."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.model.variables import is_slot
from decoupled.ops.meshes.device_order import Place
from decoupled.ops.recompute import After
from decoupled.ops.weight_product import CastAfter
from decoupled.training.xla.programs import Program


class Tensors(NamedTuple):
    """Tensors of one slice shape that are in memory at the same time.

    shape: e.g. "[batch 16, hidden 1152] bfloat16", of a core's slice.
    """

    shape: str
    count: int
    bytes: int


class MemoryUse(NamedTuple):
    """Bytes of one core.

    gradients, activations: at the peak. all_gradients: of all weights, as the update
    uses them. tensors: the largest activations.
    """

    weights: int
    slots: int
    gradients: int
    activations: int
    all_gradients: int
    tensors: list[Tensors]

    @property
    def total(self) -> int:
        """The peak."""
        return self.weights + self.slots + self.gradients + self.activations


_FREE_OPERATIONS = (
    mtf.ops.Variable,
    mtf.ops.ReadVariable,
    mtf.ops.ReshapeOperation,
    mtf.ops.BroadcastOperation,
    mtf.ops.Constant,
    mtf.ops.RangeOperation,
    mtf.ops.StopGradient,
    mtf.ops.CustomGradientOperation,
    CastAfter,
)


def memory_of(program: Program) -> MemoryUse:
    """The memory of a core."""
    graph = program.lowered.lowering.graph
    weights, slots = 0, 0
    for variable in graph.all_variables:
        size = program.mesh.slice_size(variable.shape) * variable.slice_dtype.size
        if is_slot(variable.name):
            slots += size
        else:
            weights += size
    sizes = _Sizes(program)
    tensors = _peak(graph.operations, sizes)
    gradients = [tensor for tensor in tensors if tensor in sizes.gradients]
    activations = [tensor for tensor in tensors if tensor not in sizes.gradients]
    return MemoryUse(
        weights,
        slots,
        sum(map(sizes, gradients)),
        sum(map(sizes, activations)),
        sum(map(sizes, sizes.gradients)),
        _by_size(activations, sizes),
    )


class _Sizes:
    """Bytes of a tensor's slice."""

    def __init__(self, program):
        self._mesh = program.mesh
        # Gradients are in memory in this dtype, as it is reduced and clipped, even
        # where they are the result of a cast.
        self.gradients = set(program.lowered.gradients)

    def __call__(self, tensor):
        return self._mesh.slice_size(tensor.shape) * tensor.dtype.size

    def shape(self, tensor):
        """The slice, in words."""
        names = tensor.shape.dimension_names
        sizes = self._mesh.slice_shape(tensor.shape)
        parts = [f"{n} {size}" for n, size in zip(names, sizes, strict=True)]
        return f"[{', '.join(parts)}] {tensor.dtype.name}"


def _peak(operations, sizes):
    owners = _owners(operations, sizes)
    last_reads = {}
    for index, operation in enumerate(operations):
        for tensor in _reads(operation):
            for holder in owners.get(tensor, [tensor]):
                last_reads[holder] = index
    ends = {}
    for tensor, index in last_reads.items():
        ends.setdefault(index, []).append(tensor)
    live_sizes, size, peak_tensors, peak_size = {}, 0, [], -1
    for index, operation in enumerate(operations):
        for tensor in operation.outputs:
            # XLA does not compute tensors that nothing reads.
            if owners[tensor] == [tensor] and last_reads.get(tensor, -1) > index:
                live_sizes[tensor] = sizes(tensor)
                size += live_sizes[tensor]
        inner_tensors = _peak_inside(operation, sizes)
        total = size + sum(map(sizes, inner_tensors))
        if total > peak_size:
            peak_size, peak_tensors = total, [*live_sizes, *inner_tensors]
        for tensor in ends.get(index, []):
            size -= live_sizes.pop(tensor, 0)
    return peak_tensors


def _peak_inside(operation, sizes):
    if isinstance(operation, mtf.ops.WhileLoopOperation):
        return _peak(operation._body_ops, sizes)
    # An update needs the stack of its gradients beside the gradients.
    return getattr(operation, "stacked_gradients", [])


def _reads(operation):
    """The tensors that an operation reads, inside a loop's body too."""
    if isinstance(operation, mtf.ops.WhileLoopOperation):
        body_inputs = [t for op in operation._body_ops for t in op.inputs]
        return [*operation.inputs, *body_inputs]
    return operation.inputs


def _owners(operations, sizes):
    """Tensor -> the tensors whose memory it needs: itself, or those of its operation's
    inputs if XLA computes it where it is read."""
    owners = {}
    for operation in operations:
        inputs = [holder for t in operation.inputs for holder in owners.get(t, [])]
        for tensor in operation.outputs:
            is_free = _is_free(operation) and tensor not in sizes.gradients
            owners[tensor] = inputs if is_free else [tensor]
        if isinstance(operation, After):
            for source, output in zip(operation.inputs, operation.outputs, strict=True):
                owners[output] = owners.get(source, [])
    return owners


def _is_free(operation):
    if isinstance(operation, mtf.ops.SlicewiseOperation):
        return operation.name.rpartition("/")[2].startswith(("cast", "identity"))
    return isinstance(operation, _FREE_OPERATIONS)


def _by_size(tensors, sizes):
    counts, total_bytes = Counter(), Counter()
    for tensor in tensors:
        shape = sizes.shape(tensor)
        counts[shape] += 1
        total_bytes[shape] += sizes(tensor)
    return [Tensors(s, counts[s], b) for s, b in total_bytes.most_common()]


_MATRIX_PRODUCTS = ("MatMul", "BatchMatMulV2")
# Operation of the program -> that of a TPU's program, by which it is reported.
_COLLECTIVES = {
    "XlaAllReduce": "CrossReplicaSum",
    "AllToAll": "AllToAll",
    "CollectivePermute": "CollectivePermute",
}


class Collective(NamedTuple):
    """Equal collective operations of a step.

    kind: TensorFlow's operation. group: coordinates of the cores of core 0's group.
    bytes: of one operand on a core. count: per step.
    """

    kind: str
    group: tuple[Place, ...]
    bytes: int
    count: int


def flops_of(program: Program, microbatches: int) -> dict[str, int]:
    """FLOPs of matrix products, two for each multiplication with its addition, by the
    dtype of what is multiplied."""
    flops = Counter()
    for operation, times in _operations(program.graph, microbatches):
        if products := _product_flops(operation):
            flops[operation.inputs[0].dtype.base_dtype.name] += times * products
    return dict(flops)


def collectives_of(
    program: Program, microbatches: int, places: Sequence[Place], is_gpu: bool
) -> list[Collective]:
    """The collective operations of core 0; `places` are all cores' coordinates."""
    counts = {}
    for operation, times in _operations(program.graph, microbatches):
        if operation.type not in _COLLECTIVES:
            continue
        replicas = _group_of_first(operation)
        if len(replicas) < 2:
            continue
        group = tuple(places[replica] for replica in replicas)
        size = operation.inputs[0].shape.num_elements()
        # XLA's compiler for GPUs turns sums of bfloat16 into sums of float32.
        is_widened = is_gpu and operation.type == "XlaAllReduce"
        size *= 4 if is_widened else operation.inputs[0].dtype.size
        key = (_COLLECTIVES[operation.type], group, size)
        counts[key] = counts.get(key, 0) + times
    return [Collective(*key, count) for key, count in counts.items()]


def _operations(graph, microbatches) -> Iterator[tuple[tf.Operation, int]]:
    """Operations, and how often each runs: a loop runs once for each microbatch."""
    for operation in graph.get_operations():
        yield operation, 1
        if operation.type in ("While", "StatelessWhile"):
            body = graph._get_function(operation.get_attr("body").name).graph
            for inner, times in _operations(body, microbatches):
                yield inner, times * microbatches


def _product_flops(operation):
    if operation.type == "Einsum":
        return _einsum_flops(operation)
    if operation.type not in _MATRIX_PRODUCTS:
        return 0
    left = operation.inputs[0].shape.as_list()
    is_transposed = operation.get_attr(
        "transpose_a" if operation.type == "MatMul" else "adj_x"
    )
    inner = left[-2] if is_transposed else left[-1]
    return 2 * inner * operation.outputs[0].shape.num_elements()


def _einsum_flops(operation):
    equation = operation.get_attr("equation").decode()
    operands, output = equation.split("->")
    sizes = {}
    for letters, tensor in zip(operands.split(","), operation.inputs, strict=True):
        sizes.update(zip(letters, tensor.shape.as_list(), strict=True))
    # Without a sum it is an elementwise product, which no matrix unit computes.
    return 2 * math.prod(sizes.values()) if set(sizes) - set(output) else 0


def _group_of_first(operation):
    """Replicas that exchange data with replica 0."""
    groups = tf.make_ndarray(operation.inputs[1].op.get_attr("value"))
    if operation.type == "CollectivePermute":
        return [0, *(int(b) for a, b in groups if a == 0)]
    return next(list(map(int, group)) for group in groups if 0 in group)
