"""The variables of a program on its devices: first values, restored, and saved.

Checkpoints have the names, shapes and dtypes that the Estimator's have, so that a run
moves between meshes, devices and TensorFlow's own kernels at any of them. A variable is
read once and cut into slices; only one is whole in the memory of a host. Slices are
saved as slices, which TensorFlow's readers put together, each by the process that has
it: no host needs the whole model, and no process waits for another's weights.
"""

from collections.abc import Callable, Mapping

import numpy as np

from decoupled.core.compat import tf
from decoupled.model.variables import GLOBAL_STEP
from decoupled.ops.meshes.replicas import StackLayout
from decoupled.training.checkpoint_files import CheckpointFile, CheckpointWriter
from decoupled.training.xla.adapter import Array, Client
from decoupled.training.xla.programs import ExportedProgram, SavedVariable

# name -> its value, as checkpoints have it.
Source = Callable[[str], np.ndarray]


def first_values(
    saved: Mapping[str, SavedVariable], init_checkpoint: str | None, restored: set[str]
) -> Source:
    """What a new run starts from: `restored` from a checkpoint, the rest drawn."""
    stored = CheckpointFile(init_checkpoint) if restored else {}

    def value(name: str) -> np.ndarray:
        if name == GLOBAL_STEP:
            return np.zeros([], np.int64)
        if name in restored:
            return stored[name]
        variable = saved[name]
        with tf.device("cpu:0"):
            drawn = variable.initializer(variable.shape, dtype=variable.dtype)
        return drawn.numpy()

    return value


def stored_values(prefix: str) -> Source:
    """What a run goes on from."""
    stored = CheckpointFile(prefix)

    def value(name: str) -> np.ndarray:
        if name == GLOBAL_STEP:
            return np.array(stored.global_step or 0, np.int64)
        return np.asarray(memoryview(stored.read_tensor(name)))

    return value


class State:
    """The variables of a program, on the devices of a client.

    Attributes:
      arrays: in the order of the program; a run of the program replaces them.
    """

    def __init__(self, client: Client, program: ExportedProgram, source: Source):
        self._client = client
        layouts = {layout.name: layout for layout in program.layouts}
        self._layouts = [layouts.get(a.name) for a in program.variables]
        self.arrays: list[Array] = []
        for argument, layout in zip(program.variables, self._layouts, strict=True):
            if layout is None:
                # The step, which is not split.
                parts = [source(argument.name)] * len(client.local)
            else:
                parts = self._slices(layout, source)
            self.arrays.append(client.put(parts))

    def _slices(self, layout: StackLayout, source: Source) -> list[np.ndarray]:
        """The stack of each device of this process; equal ones are one array."""
        begins = [layout.begins[replica] for replica in self._client.local]
        stacks = {begin: [] for begin in begins}
        for member in layout.members:
            whole = source(member)
            for begin, members in stacks.items():
                part = whole[_slice(begin, layout.slice_shape)]
                members.append(part.astype(layout.dtype.as_numpy_dtype))
        several = len(layout.members) > 1
        made = {b: np.stack(m) if several else m[0] for b, m in stacks.items()}
        return [made[begin] for begin in begins]

    def save(self, writer: CheckpointWriter) -> None:
        """Adds what this process saves; equal slices are saved by the first replica.

        The step is saved by the first process.
        """
        client = self._client
        for array, layout in zip(self.arrays, self._layouts, strict=True):
            parts = client.parts(array)
            if layout is None:
                if 0 in client.local:
                    writer.add(GLOBAL_STEP, np.asarray(parts[0]))
                continue
            for replica, part in zip(client.local, parts, strict=True):
                begin = layout.begins[replica]
                if layout.begins.index(begin) == replica:
                    self._save_stack(writer, layout, begin, np.asarray(part))

    def _save_stack(self, writer, layout, begin, stack):
        members = stack if len(layout.members) > 1 else [stack]
        dtype = layout.saved_dtype.as_numpy_dtype
        spec = _spec(layout, begin)
        for name, part in zip(layout.members, members, strict=True):
            writer.add(name, part.astype(dtype, copy=False), spec)


def _slice(begin, sizes):
    return tuple(slice(at, at + size) for at, size in zip(begin, sizes, strict=True))


def _spec(layout, begin):
    """TensorFlow's name of a slice, "rows columns first,rows:first,columns"; "" is the
    whole."""
    if layout.slice_shape == layout.shape:
        return ""
    sizes = layout.slice_shape
    pairs = [f"{at},{size}" for at, size in zip(begin, sizes, strict=True)]
    return f"{' '.join(map(str, layout.shape))} {':'.join(pairs)}"
