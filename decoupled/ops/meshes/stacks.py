"""Stacks: variables of equal shape, stored as one variable on each core of a TPU.

RemBERT with AdamW has 1,575 variables. Most have one of a few shapes, as its 32 layers
are equal. A TPU's session knows every slice on every core by name. The number of slices
rather than their size therefore makes its graph large and its start slow. Hence slices
of equal shape are stacked, [members, ...slice]. Reading a member reads its part of the
stack.

An update writes all members at once and elementwise, so that XLA writes the stack in
place. If single members were updated, their new values would be joined in a second
buffer and copied back. An update needs a stack of the members' gradients in addition to
the gradients themselves. `most_bytes` limits its size: larger stacks are divided.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from decoupled.core.compat import mtf, tf

# A gradient is float32 when it is applied.
_GRADIENT_BYTES = 4


def stacks_of(
    variables: Sequence[mtf.Variable], mesh_impl: mtf.MeshImpl, most_bytes: int
) -> list[list[mtf.Variable]]:
    """The members of each stack: all variables, each in one list, in their order.

    Two variables share a stack if their whole shapes, layouts and dtypes are equal, and
    if both or neither are trained. The slots of an optimizer are stacked like their
    weights: the first moments of a stack's members are a stack in the same order.

    `most_bytes` is the largest float32 gradient of a stack on one core. A larger slice
    is a stack of one member. 0 stacks nothing.
    """
    names = {v.name for v in variables if v.trainable}
    owners = {v: _owner(v.name, names) for v in variables if not v.trainable}
    weights = [v for v in variables if owners.get(v) is None]
    stacks = list(_cut(_equal(weights, mesh_impl), mesh_impl, most_bytes))
    stack_of_name = {v.name: index for index, vs in enumerate(stacks) for v in vs}
    slots = {}
    for variable, owner in owners.items():
        if owner is not None:
            role = variable.name.removeprefix(owner)
            slots.setdefault((stack_of_name[owner], role), []).append(variable)
    for members in slots.values():
        stacks += _equal(members, mesh_impl)
    return stacks


def _owner(name: str, names: Collection[str]) -> str | None:
    """The longest of `names` that a slot's name begins with; None where none does."""
    parts = (name[:end] for end in range(len(name) - 1, 0, -1) if name[end] in "/_")
    return next((part for part in parts if part in names), None)


def _equal(
    variables: Sequence[mtf.Variable], mesh_impl: mtf.MeshImpl
) -> list[list[mtf.Variable]]:
    groups = {}
    for v in variables:
        layout = tuple(map(mesh_impl.tensor_dimension_to_mesh_axis, v.shape.dims))
        sizes = tuple(v.shape.to_integer_list)
        key = (sizes, layout, v.slice_dtype, v.master_dtype, v.trainable)
        groups.setdefault(key, []).append(v)
    return list(groups.values())


def _cut(
    groups: Sequence[list[mtf.Variable]], mesh_impl: mtf.MeshImpl, most_bytes: int
) -> Iterator[list[mtf.Variable]]:
    """Divides groups into stacks of nearly equal length and at most `most_bytes`."""
    for members in groups:
        each = mesh_impl.slice_size(members[0].shape) * _GRADIENT_BYTES
        most = max(1, most_bytes // each)
        count = -(-len(members) // most)
        ends = [len(members) * index // count for index in range(count + 1)]
        yield from (members[a:b] for a, b in itertools.pairwise(ends))


def slices_of(lowering: mtf.Lowering, variables: Sequence[mtf.Variable]) -> Any:
    """The laid-out slices of one variable, or the stack of several in this order."""
    if len(variables) == 1:
        return lowering.variables[variables[0]].laid_out_tensor
    return lowering.variables[variables[0]].stack_of(variables)


def stacked(*tensors: tf.Tensor) -> tf.Tensor:
    """One tensor as it is; several as [count, ...]."""
    return tensors[0] if len(tensors) == 1 else tf.stack(tensors)


class StackedAssign(mtf.Operation):
    """One assignment to all members of a stack.

    It takes the place of `assigns`, which have one `assign_fn`, in the graph.
    """

    def __init__(self, assigns: Sequence[mtf.Operation]):
        super().__init__([a.inputs[0] for a in assigns], name="stacked_assign")
        self._variables = [a.variables[0] for a in assigns]
        self._assign_fn: Callable = assigns[0].assign_fn
        self.stacked = self.inputs
        self._outputs = []
        for assign in assigns:
            assign.graph.operations.remove(assign)

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        values = mesh_impl.slicewise(
            stacked, *(lowering.tensors[x] for x in self.inputs)
        )
        (stack,) = slices_of(lowering, self._variables).all_slices
        lowering.operations[self] = self._assign_fn(
            self._variables[0], stack, values.all_slices[0]
        )
