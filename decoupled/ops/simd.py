"""A mesh of TPU cores: one program for all of them, one slice of a variable on each.

Mesh-TensorFlow's own SIMD mesh with three changes:

1. What is compiled for CPUs (`decoupled.ops.compiled`) goes in as it is: the whole
   program is compiled anyway.
2. A slice of a variable takes two nodes of the graph instead of nine. RemBERT with its
   slots has 1,575 variables: on 512 cores 806 thousand slices, whose nine nodes each
   would take some 20 minutes to make and exceed the 2 GB that a graph may have.
3. Which cores reduce with each other is worked out once for each set of mesh axes, not
   for each of a thousand reductions.
"""

from decoupled.core.compat import mtf, tf

_outside = mtf.utils.outside_all_rewrites


class SimdMeshImpl(mtf.simd_mesh_impl.SimdMeshImpl):
    """Mesh implementation for the cores of a TPU slice (see the module's docstring).

    Args:
      shape: mtf.Shape of the mesh. layout: mtf.LayoutRules.
      device_assignment: of one core per replica.
      logical_to_physical: number of the replica that each processor of the mesh is.
    """

    on_gpus = False

    def __init__(self, shape, layout, device_assignment, logical_to_physical):
        super().__init__(
            shape,
            layout,
            device_assignment=device_assignment,
            logical_to_physical=logical_to_physical,
        )
        self._groups = {}
        # A loop's body that asked for it first would make it in the body's own graph.
        _ = self.pnum_tensor

    def slicewise(self, fn, *inputs):
        """As in the parent; a compiled function as it was before (change 1)."""
        return super().slicewise(getattr(fn, "python_function", fn), *inputs)

    def _create_group_assignment(self, mesh_axes):
        axes = tuple(mesh_axes)
        if axes not in self._groups:
            self._groups[axes] = super()._create_group_assignment(mesh_axes)
        return self._groups[axes]

    def slice_device(self, replica: int) -> str:
        """Where a core's slices live."""
        return self.device_assignment.tpu_device(replica)

    def replicas(self) -> list[int]:
        """Numbers of the cores that slices are made for."""
        return list(range(self.size))

    class LaidOutVariable:
        """A variable's slices and the operations that copy from and to the whole."""

        def __init__(self, variable, mesh_impl):
            self._variable, self._mesh_impl = variable, mesh_impl
            self._shape = variable.shape
            self._slice_shape = mesh_impl.slice_shape(self._shape)
            with _outside():
                handles = [self._make_slice(r) for r in mesh_impl.replicas()]
            slices = Slices(
                variable.name, handles, variable.slice_dtype, self._slice_shape
            )
            self.laid_out_tensor = mesh_impl.LaidOutTensor([slices])
            with tf.device(variable.master_device), _outside():
                self.copy_master_to_slices = self._master_to_slices(handles)
                self.copy_slices_to_master = self._slices_to_master(handles)

        def _make_slice(self, replica):
            name = f"{self._variable.name}_slice_{replica}"
            with tf.device(self._mesh_impl.slice_device(replica)):
                return tf.raw_ops.VarHandleOp(
                    dtype=self._variable.slice_dtype,
                    shape=self._slice_shape,
                    shared_name=name,
                    name=name,
                )

        def _begin(self, replica):
            return tuple(
                self._mesh_impl.slice_begin(self._shape, self._mesh_impl.p2l(replica))
            )

        def _master_to_slices(self, handles):
            master = tf.cast(self._variable.get_master(), self._variable.slice_dtype)
            parts, copies = {}, []
            for replica, handle in zip(
                self._mesh_impl.replicas(), handles, strict=True
            ):
                begin = self._begin(replica)
                if begin not in parts:
                    parts[begin] = tf.slice(master, begin, self._slice_shape)
                copies.append(
                    tf.raw_ops.AssignVariableOp(resource=handle, value=parts[begin])
                )
            return tf.group(copies)

        def _slices_to_master(self, handles):
            """Reads each part of the whole from the first core that has it."""
            mesh_impl, variable, parts = self._mesh_impl, self._variable, {}
            for replica, handle in zip(mesh_impl.replicas(), handles, strict=True):
                begin = self._begin(replica)
                if begin not in parts:
                    part = tf.raw_ops.ReadVariableOp(
                        resource=handle, dtype=variable.slice_dtype
                    )
                    parts[begin] = tf.cast(part, variable.master_dtype)
            if len(parts) == 1:
                return variable.assign_to_master(next(iter(parts.values())))
            slices = [
                parts[tuple(mesh_impl.slice_begin(self._shape, processor))]
                for processor in range(mesh_impl.size)
            ]
            return variable.assign_to_master(
                mesh_impl.combine_slices(
                    slices, self._shape, device=variable.master_device
                )
            )

        def assign_to_slices(self, assign_fn, values, assign_to_tensor_list=None):
            """Assigns to the slices; see the parent's."""
            slices = assign_to_tensor_list or self.laid_out_tensor.all_slices
            return assign_fn(self._variable, slices[0], values[0])


class Slices(mtf.tpu_variables.ReplicatedVariable):
    """A variable's slices; inside the program, the one of the core that runs it.

    Args:
      name: of the variable. handles: resource of each core's slice.
      dtype, shape: of a slice.
    """

    def __init__(self, name, handles, dtype, shape):
        super().__init__(name, handles)
        self._slice_dtype, self._slice_shape = dtype, tf.TensorShape(shape)
        self.handles = handles

    @property
    def handle(self):
        """The resource, as the program sees it."""
        context = mtf.tpu_variables._enclosing_tpu_context()
        # Outside a program, or in one of a single core, for a CPU.
        if not hasattr(context, "get_replicated_var_handle"):
            return self._vars[0]
        return context.get_replicated_var_handle(
            name=self._name, handle_id=self._name, vars_=self._vars
        )

    @property
    def dtype(self):
        """Of a slice."""
        return self._slice_dtype

    @property
    def shape(self):
        """Of a slice."""
        return self._slice_shape

    def _read_variable_op(self):
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    def _dense_var_to_tensor(self, dtype=None, name=None, as_ref=False):
        del name, as_ref
        if dtype is not None and dtype != self.dtype:
            return NotImplemented
        return self._read_variable_op()
