"""A mesh of TPU cores: one program for all of them, one slice of a variable on each.

Mesh-TensorFlow's own SIMD mesh with four changes:

1. Functions that are compiled for CPUs (`decoupled.ops.kernels`) are used uncompiled,
   because the whole program is compiled anyway.
2. Slices of equal shape share a variable, [members, ...slice], a stack. A TPU's session
   knows every slice on every core by name, so that their number makes its graph large
   and its start slow: RemBERT with its slots has 1,575 variables, but 70 stacks.
3. A core's stack takes two nodes of the graph instead of nine. Its initial value is
   sent to a host once for all of the host's cores.
4. The groups of cores that reduce with each other are computed once for each set of
   mesh axes, not for each of a thousand reductions.

An update writes all members of a stack at once and elementwise, so that XLA writes the
stack in place; new values of single members would be joined in a second buffer. It
needs a stack of the members' gradients in addition to the gradients themselves, whose
size is limited: larger stacks are divided.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from decoupled.core.compat import mtf, tf

_outside_rewrites = mtf.utils.outside_all_rewrites
# A gradient is float32 when it is applied.
_GRADIENT_BYTES = 4


class SimdMeshImpl(mtf.simd_mesh_impl.SimdMeshImpl):
    """The mesh implementation (see the module's docstring).

    `device_assignment` is of one core per replica, and `logical_to_physical` the index
    of the replica of each processor. `stack_bytes`: most bytes of the gradient of a
    stack on a core; 0 stacks nothing.
    """

    def __init__(
        self,
        shape: mtf.Shape,
        layout: mtf.LayoutRules,
        device_assignment: Any,
        logical_to_physical: Sequence[int],
        stack_bytes: int,
    ):
        super().__init__(
            shape,
            layout,
            device_assignment=device_assignment,
            logical_to_physical=logical_to_physical,
        )
        self._groups, self._stacks = {}, {}
        self._stack_bytes = stack_bytes
        # Made here, because a loop's body that used it first would make it in the
        # body's own graph.
        _ = self.pnum_tensor

    def slicewise(self, fn, *inputs):
        """As in the parent, with compiled functions uncompiled (change 1)."""
        return super().slicewise(getattr(fn, "python_function", fn), *inputs)

    def _create_group_assignment(self, mesh_axes: Sequence[int]) -> list[list[int]]:
        axes = tuple(mesh_axes)
        if axes not in self._groups:
            self._groups[axes] = super()._create_group_assignment(mesh_axes)
        return self._groups[axes]

    def slice_device(self, replica: int) -> str:
        return self.device_assignment.tpu_device(replica)

    def replicas(self) -> list[int]:
        return list(range(self.size))

    def stacks(self, variables: Sequence[mtf.Variable]) -> list[list[mtf.Variable]]:
        return stacks_of(variables, self, self._stack_bytes)

    def stack_with(self, variable: mtf.Variable) -> "Stack":
        """The stack that a variable is in; the first call makes all stacks."""
        if variable not in self._stacks:
            for members in self.stacks(variable.graph.all_variables):
                stack = self.Stack(members, self)
                self._stacks.update(dict.fromkeys(members, stack))
        return self._stacks[variable]

    class LaidOutVariable:
        """A variable's place in its stack, and the copies from and to the variable that
        is saved."""

        def __init__(self, variable: mtf.Variable, mesh_impl: "SimdMeshImpl"):
            self._variable, self._mesh_impl = variable, mesh_impl
            self._stack = mesh_impl.stack_with(variable)
            index = self._stack.members.index(variable)
            is_alone = len(self._stack.members) == 1
            slices = self._stack.slices
            self.laid_out_tensor = mesh_impl.LaidOutTensor(
                [slices if is_alone else Member(slices, index)]
            )
            self.copy_master_to_slices = self._stack.copy_masters_to_slices
            self.copy_slices_to_master = self._stack.copy_slices_to_masters

        def stack_of(self, variables: Sequence[mtf.Variable]) -> Any:
            """The laid-out stack of these variables, of which this one is the first."""
            if list(variables) != self._stack.members:
                names = ", ".join(v.name for v in variables)
                raise ValueError(f"no stack has these members: {names}")
            return self._mesh_impl.LaidOutTensor([self._stack.slices])

        def assign_to_slices(self, assign_fn, values, assign_to_tensor_list=None):
            slices = assign_to_tensor_list or self.laid_out_tensor.all_slices
            return assign_fn(self._variable, slices[0], values[0])

    class Stack:
        """The slices of some variables on all cores, and their copies.

        members: mtf.Variable, of one shape, layout and dtype. slices: `Slices`, [...],
        or [members, ...] if there are several members. copy_masters_to_slices,
        copy_slices_to_masters: operations, or None if `copies` is false.
        """

        copies = True

        def __init__(self, members: Sequence[mtf.Variable], mesh_impl: "SimdMeshImpl"):
            self.members, self._mesh_impl = members, mesh_impl
            self._first = members[0]
            self._stack_dims = [len(members)] if len(members) > 1 else []
            self._slice_shape = mesh_impl.slice_shape(self._first.shape)
            self.copy_masters_to_slices = self.copy_slices_to_masters = None
            name, dtype = self._first.name, self._first.slice_dtype
            if self._stack_dims:
                name = f"{name}_and_{len(members) - 1}"
            # Without scopes, whose names would be repeated in every node.
            with _outside_rewrites(), tf.name_scope(None):
                handles = [self._make(f"{name}_slice_", r) for r in self._replicas()]
                shape = self._stack_dims + self._slice_shape
                self.slices = Slices(name, handles, dtype, shape)
                if self.copies:
                    self.copy_masters_to_slices = self._masters_to_slices(handles)
                    self.copy_slices_to_masters = self._slices_to_masters(handles)

        def _replicas(self) -> list[int]:
            return self._mesh_impl.replicas()

        def _make(self, name: str, replica: int) -> tf.Tensor:
            name = f"{name}{replica}"
            with tf.device(self._mesh_impl.slice_device(replica)):
                return tf.raw_ops.VarHandleOp(
                    dtype=self._first.slice_dtype,
                    shape=self._stack_dims + self._slice_shape,
                    shared_name=name,
                    name=name,
                )

        def _begin(self, device: int) -> tuple[int, ...]:
            begin = self._mesh_impl.slice_begin(self._first.shape, device)
            return tuple([0] * len(self._stack_dims) + list(begin))

        def _masters_to_slices(self, handles: Sequence[tf.Tensor]) -> tf.Operation:
            dtype, masters = self._first.slice_dtype, []
            for member in self.members:
                with tf.device(member.master_device):
                    # Read here: `tf.cast` returns a variable of this dtype unread, and
                    # another device would read it.
                    master = tf.convert_to_tensor(member.get_master())
                    masters.append(tf.cast(master, dtype))
            with tf.device(self._first.master_device):
                whole = tf.stack(masters) if self._stack_dims else masters[0]
            shape = self._stack_dims + self._slice_shape
            parts, host_copies, assignments = {}, {}, []
            for replica, handle in zip(self._replicas(), handles, strict=True):
                begin = self._begin(self._mesh_impl.p2l(replica))
                if begin not in parts:
                    with tf.device(self._first.master_device):
                        parts[begin] = tf.slice(whole, begin, shape)
                key = (begin, _host(handle.device))
                if key not in host_copies:
                    with tf.device(_host(handle.device)):
                        host_copies[key] = tf.identity(parts[begin])
                with tf.device(handle.device):
                    assignments.append(
                        tf.raw_ops.AssignVariableOp(
                            resource=handle, value=host_copies[key]
                        )
                    )
            # `tf.group` would make a node for each core.
            with tf.control_dependencies(assignments):
                return tf.no_op()

        def _slices_to_masters(self, handles: Sequence[tf.Tensor]) -> tf.Operation:
            """Reads each part of the wholes from the first core that has it."""
            mesh_impl, parts = self._mesh_impl, {}
            for replica, handle in zip(self._replicas(), handles, strict=True):
                begin = self._begin(mesh_impl.p2l(replica))
                if begin not in parts:
                    with tf.device(handle.device):
                        parts[begin] = tf.raw_ops.ReadVariableOp(
                            resource=handle, dtype=self._first.slice_dtype
                        )
            shape, device = self._first.shape, self._first.master_device
            with tf.device(device):
                parts = {
                    b: tf.cast(x, self._first.master_dtype) for b, x in parts.items()
                }
                if len(parts) == 1:
                    whole = next(iter(parts.values()))
                else:
                    slices = [
                        parts[self._begin(index)] for index in range(mesh_impl.size)
                    ]
                    if self._stack_dims:
                        members = mtf.Dimension("stacked", len(self.members))
                        shape = mtf.Shape([members, *shape.dims])
                    whole = mesh_impl.combine_slices(slices, shape, device=device)
                values = tf.unstack(whole) if self._stack_dims else [whole]
            assignments = []
            for member, value in zip(self.members, values, strict=True):
                with tf.device(member.master_device):
                    assignments.append(member.assign_to_master(value))
            return tf.group(assignments)


def _host(device: str) -> str:
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_type="CPU", device_index=0).to_string()


class Slices(mtf.tpu_variables.ReplicatedVariable):
    """The slices of a variable on all cores; in the program, that of its core."""

    def __init__(
        self,
        name: str,
        handles: Sequence[tf.Tensor],
        dtype: tf.DType,
        shape: Sequence[int],
    ):
        super().__init__(name, handles)
        self._slice_dtype, self._slice_shape = dtype, tf.TensorShape(shape)
        self.handles = handles
        self._members = {}

    @property
    def handle(self):
        context = mtf.tpu_variables._enclosing_tpu_context()
        # Outside of a program, or in a program of one core that is built for a CPU.
        if not hasattr(context, "get_replicated_var_handle"):
            return self._vars[0]
        return context.get_replicated_var_handle(
            name=self._name, handle_id=self._name, vars_=self._vars
        )

    @property
    def dtype(self):
        return self._slice_dtype

    @property
    def shape(self):
        return self._slice_shape

    def members(self) -> list[tf.Tensor]:
        """The values of a stack's members, all from one read."""
        place = _place()
        if place not in self._members:
            self._members[place] = tf.unstack(self._read_variable_op())
        return self._members[place]

    def _assign_dependencies(self):
        # Without this, a pending read of the members could run after the update.
        return tf.control_dependencies(self._members.get(_place(), []))

    def _read_variable_op(self):
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    def _dense_var_to_tensor(self, dtype=None, name=None, as_ref=False):
        del name, as_ref
        if dtype is not None and dtype != self.dtype:
            return NotImplemented
        return self._read_variable_op()


def _place() -> tuple[tf.Graph, Any]:
    """The current place in the graph: the body of a loop needs its own reads."""
    graph = tf.get_default_graph()
    return graph, graph._get_control_flow_context()


class Member(Slices):
    """A member of a stack. It can only be read; updates write the whole stack."""

    def __init__(self, stack: Slices, index: int):
        super().__init__(stack.name, stack.handles, stack.dtype, stack.shape[1:])
        self._stack, self._index = stack, index

    @property
    def handle(self):
        raise NotImplementedError(f"a member of {self._name} has no variable alone")

    def _read_variable_op(self):
        return self._stack.members()[self._index]


def stacks_of(
    variables: Sequence[mtf.Variable], mesh_impl: mtf.MeshImpl, most_bytes: int
) -> list[list[mtf.Variable]]:
    """The members of each stack: all variables, each in one list, in their order.

    Variables share a stack if their whole shapes, layouts and dtypes are equal, and if
    all or none are trained. The slots of an optimizer are stacked like their weights.
    `most_bytes` limits the float32 gradient of a stack on one core. A larger slice is a
    stack of one member. 0 stacks nothing.
    """
    names = {v.name for v in variables if v.trainable}
    owners = {v: _owner(v.name, names) for v in variables if not v.trainable}
    weights = [v for v in variables if owners.get(v) is None]
    stacks = list(_divide(_equal_groups(weights, mesh_impl), mesh_impl, most_bytes))
    stack_of_name = {v.name: index for index, vs in enumerate(stacks) for v in vs}
    slots = {}
    for variable, owner in owners.items():
        if owner is not None:
            role = variable.name.removeprefix(owner)
            slots.setdefault((stack_of_name[owner], role), []).append(variable)
    for members in slots.values():
        stacks += _equal_groups(members, mesh_impl)
    return stacks


def _owner(name: str, names: Collection[str]) -> str | None:
    """The longest of `names` that a slot's name begins with; None where none does."""
    parts = (name[:end] for end in range(len(name) - 1, 0, -1) if name[end] in "/_")
    return next((part for part in parts if part in names), None)


def _equal_groups(
    variables: Sequence[mtf.Variable], mesh_impl: mtf.MeshImpl
) -> list[list[mtf.Variable]]:
    groups = {}
    for v in variables:
        layout = tuple(map(mesh_impl.tensor_dimension_to_mesh_axis, v.shape.dims))
        sizes = tuple(v.shape.to_integer_list)
        key = (sizes, layout, v.slice_dtype, v.master_dtype, v.trainable)
        groups.setdefault(key, []).append(v)
    return list(groups.values())


def _divide(
    groups: Sequence[list[mtf.Variable]], mesh_impl: mtf.MeshImpl, most_bytes: int
) -> Iterator[list[mtf.Variable]]:
    """Divides groups into stacks of nearly equal length and at most `most_bytes`."""
    for members in groups:
        slice_bytes = mesh_impl.slice_size(members[0].shape) * _GRADIENT_BYTES
        max_members = max(1, most_bytes // slice_bytes)
        count = -(-len(members) // max_members)
        ends = [len(members) * index // count for index in range(count + 1)]
        yield from (members[a:b] for a, b in itertools.pairwise(ends))


def slices_of(lowering: mtf.Lowering, variables: Sequence[mtf.Variable]) -> Any:
    """The laid-out slices of one variable, or the stack of several in this order."""
    if len(variables) == 1:
        return lowering.variables[variables[0]].laid_out_tensor
    return lowering.variables[variables[0]].stack_of(variables)


def stack_tensors(*tensors: tf.Tensor) -> tf.Tensor:
    """One tensor as it is; several as [count, ...]."""
    return tensors[0] if len(tensors) == 1 else tf.stack(tensors)
