"""FLOPs and collective operations of a core's program, from TensorFlow's graph."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from decoupled.core.compat import tf
from decoupled.planning.program import Program

_MATRIX_PRODUCTS = ("MatMul", "BatchMatMulV2")
_COLLECTIVES = ("CrossReplicaSum", "AllToAll", "CollectivePermute")


class Collective(NamedTuple):
    """Equal collective operations of a step.

    kind: TensorFlow's operation. cores: of core 0's group. bytes: of one operand on a
    core. count: a step. part: what of the model it belongs to.
    """

    kind: str
    group: tuple[tuple[int, ...], ...]
    bytes: int
    count: int


def flops_of(program: Program, microbatches: int) -> int:
    """FLOPs of matrix products, two for each multiplication with its addition."""
    return sum(
        times * _product_flops(operation)
        for operation, times in _operations(program.graph, microbatches)
    )


def collectives_of(program: Program, microbatches: int) -> list[Collective]:
    """The collective operations in which core 0 takes part."""
    found = {}
    for operation, times in _operations(program.graph, microbatches):
        if operation.type not in _COLLECTIVES:
            continue
        replicas = _group_of_first(operation)
        if len(replicas) < 2:
            continue
        group = tuple(program.mesh.group_of_core(replicas))
        key = (operation.type, group, _bytes(operation.inputs[0]))
        found[key] = found.get(key, 0) + times
    return [Collective(*key, count) for key, count in found.items()]


def _operations(graph, microbatches) -> Iterator[tuple[tf.Operation, int]]:
    """Operations and how often each runs: a loop goes once over every microbatch."""
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
    transposed = operation.get_attr(
        "transpose_a" if operation.type == "MatMul" else "adj_x"
    )
    inner = left[-2] if transposed else left[-1]
    return 2 * inner * operation.outputs[0].shape.num_elements()


def _einsum_flops(operation):
    equation = operation.get_attr("equation").decode()
    operands, output = equation.split("->")
    sizes = {}
    for letters, tensor in zip(operands.split(","), operation.inputs, strict=True):
        sizes.update(zip(letters, tensor.shape.as_list(), strict=True))
    # Without a sum it is a product of numbers, which no matrix unit sees.
    return 2 * math.prod(sizes.values()) if set(sizes) - set(output) else 0


def _bytes(tensor):
    return tensor.shape.num_elements() * tensor.dtype.size


def _group_of_first(operation):
    """Replicas that exchange data with replica 0."""
    groups = tf.make_ndarray(operation.inputs[1].op.get_attr("value"))
    if operation.type == "CollectivePermute":
        return [0, *(int(b) for a, b in groups if a == 0)]
    return next(list(map(int, group)) for group in groups if 0 in group)
