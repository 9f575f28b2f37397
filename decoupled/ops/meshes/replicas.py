"""A mesh of XLA's replicas: one program for all of them, built without their devices.

A program knows its replica by XLA's own number. So it is built once, with the slices of
replica 0, and is exported (`decoupled.training.xla.programs`). Whoever runs it knows
from `stack_layouts` which part of which saved variable each replica holds.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from decoupled.core.compat import gen_xla_ops, mtf, tf
from decoupled.ops.meshes.simd import SimdMeshImpl


class StackLayout(NamedTuple):
    """What a variable of the program holds.

    name: of the variable. members: names of the saved variables in it, in order.
    shape: of each of them. slice_shape: of their slices. begins: for each replica,
    where its slices begin. dtype, saved_dtype: of the slices, and in checkpoints.
    """

    name: str
    members: list[str]
    shape: list[int]
    slice_shape: list[int]
    begins: list[tuple[int, ...]]
    dtype: tf.DType
    saved_dtype: tf.DType


class ReplicaMesh(SimdMeshImpl):
    """The whole mesh, but only with the slices of replica 0.

    Replica n is processor n of the mesh; `device_order` gives it its device.
    `names_attention`: see `decoupled.ops.attention`.
    """

    def __init__(
        self,
        shape: mtf.Shape,
        layout: mtf.LayoutRules,
        stack_bytes: int,
        names_attention: bool = False,
    ):
        super().__init__(shape, layout, None, list(range(shape.size)), stack_bytes)
        self.names_attention = names_attention

    class Stack(SimdMeshImpl.Stack):
        """Slices without copies, because nothing runs."""

        copies = False

    def replicas(self) -> list[int]:
        return [0]

    def slice_device(self, replica):
        return ""

    @property
    def pnum_tensor(self):
        """The place of the replica in the mesh."""
        if self._pnum_tensor is None:
            # A session, which may run a single core, has no replica number.
            with mtf.utils.outside_all_rewrites():
                self._pnum_tensor = (
                    gen_xla_ops.xla_replica_id() if self.size > 1 else tf.constant(0)
                )
        return self._pnum_tensor

    def stack_layouts(self) -> list[StackLayout]:
        """The layout of each stack, after the graph has been lowered."""
        layouts = []
        for stack in dict.fromkeys(self._stacks.values()):
            member = stack.members[0]
            begins = [
                tuple(self.slice_begin(member.shape, replica))
                for replica in range(self.size)
            ]
            layouts.append(
                StackLayout(
                    stack.slices.handles[0].op.name,
                    [member.name for member in stack.members],
                    member.shape.to_integer_list,
                    list(self.slice_shape(member.shape)),
                    begins,
                    member.slice_dtype,
                    member.master_dtype,
                )
            )
        return layouts


@contextlib.contextmanager
def collectives_of_xla() -> Iterator[None]:
    """The sums over cores as XLA's own operation. TensorFlow leaves the translation of
    a TPU's operation to the runtime of TPUs."""

    def all_reduce(x: tf.Tensor, groups: list[list[int]], name: str | None = None):
        del name
        if len(groups[0]) == 1:
            return x
        return gen_xla_ops.xla_all_reduce(
            input=x, group_assignment=groups, reduce_op="Add", mode="CrossReplica"
        )

    operations = mtf.simd_mesh_impl.tpu_ops
    tpu_sum, operations.cross_replica_sum = operations.cross_replica_sum, all_reduce
    try:
        yield
    finally:
        operations.cross_replica_sum = tpu_sum
