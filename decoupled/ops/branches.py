"""Parts of a mesh graph of which only one runs in each step.

TensorFlow skips an operation if one of its inputs, or an operation that it waits for,
was skipped. If only the inputs of a part come through a switch (`tf.raw_ops.Switch`),
TensorFlow skips most of its operations, but still runs those without inputs: constants,
dropout masks and zeros to which gradients are added. Here every operation of a part
waits for its switch.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.local import lazy_sum


@contextlib.contextmanager
def only_with(signal: tf.Tensor, mesh: mtf.Mesh) -> Iterator[None]:
    """The scope in which a part is built; its operations run only if `signal` does.

    Variables that are created in the scope do not belong to the part, because other
    parts share them.

    Args:
      signal: an output of a switch. mesh: of the part.
    """
    operations = mesh.graph.operations
    before = len(operations)
    yield
    added = operations[before:]
    operations[before:] = [op for op in added if isinstance(op, mtf.Variable)]
    scope = contextlib.ExitStack()
    _Mark(mesh, lambda: scope.enter_context(tf.control_dependencies([signal])))
    operations += [op for op in added if not isinstance(op, mtf.Variable)]
    _Mark(mesh, scope.close)


class _Mark(mtf.Operation):
    """A call between the lowering of two operations."""

    def __init__(self, mesh: mtf.Mesh, call: Callable[[], object]):
        super().__init__([], mesh, name="mark")
        self._call = call

    def lower(self, lowering):
        self._call()


def merge(tensors: Sequence[mtf.Tensor]) -> mtf.Tensor:
    """The tensor whose part runs.

    Args:
      tensors: one from each part, of equal shape and dtype. A single tensor is returned
        as it is.
    """
    return _Merge(tensors).outputs[0] if len(tensors) > 1 else tensors[0]


class _Merge(mtf.Operation):
    def __init__(self, tensors: Sequence[mtf.Tensor]):
        super().__init__(tensors, name="merge")
        self._outputs = [mtf.Tensor(self, tensors[0].shape, tensors[0].dtype)]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        values = [lowering.tensors[tensor] for tensor in self.inputs]
        pending = [getattr(value, "mesh_axes", []) for value in values]
        if all(axes == pending[0] for axes in pending) and pending[0]:
            # One all-reduce after the parts, instead of one in each.
            parts = [value.laid_out_input for value in values]
            merged = lazy_sum(mesh_impl, _merged(mesh_impl, parts), pending[0])
        else:
            merged = _merged(mesh_impl, values)
        lowering.set_tensor_lowering(self.outputs[0], merged)


def _merged(mesh_impl: mtf.MeshImpl, values: Sequence[Any]) -> Any:
    def merge_slices(*slices: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.Merge(inputs=slices).output

    return mesh_impl.slicewise(merge_slices, *values)
