"""Parts of a mesh graph of which one runs in a step: what keeps the others from it.

TensorFlow skips an operation if one of its inputs, or an operation that it waits for,
was skipped. A part whose inputs come through a switch (`tf.raw_ops.Switch`) would so
skip most of its operations, but not those that need no input, such as constants,
dropout masks or zeros to add gradients to. Here every operation of a part waits for its
switch.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from decoupled.core.compat import mtf, tf
from decoupled.ops.shared import lazy_sum


@contextlib.contextmanager
def only_with(signal: tf.Tensor, mesh: mtf.Mesh) -> Iterator[None]:
    """The scope in which a part is built; lowered, it runs only if `signal` is there.

    Variables that are first used in the part are not of it: others share them.

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
    """The one of some tensors of equal shape and dtype whose part runs.

    Args:
      tensors: one of each part; a single tensor is returned itself.
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
            # One all-reduce behind the parts, instead of one in each.
            parts = [value.laid_out_input for value in values]
            merged = lazy_sum(mesh_impl, _merged(mesh_impl, parts), pending[0])
        else:
            merged = _merged(mesh_impl, values)
        lowering.set_tensor_lowering(self.outputs[0], merged)


def _merged(mesh_impl, values):
    def merge_slices(*slices: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.Merge(inputs=slices).output

    return mesh_impl.slicewise(merge_slices, *values)
