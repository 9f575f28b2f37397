"""The variables of a program on its devices: first values, restored, and saved.

Checkpoints have the names, shapes and dtypes that the Estimator's have, so that a run
moves between meshes, devices and TensorFlow's own kernels at any of them. Slices are
saved as slices, which TensorFlow's readers put together, each by the process that has
it, and a process reads the slices that it needs: no host needs the whole model, and no
process waits for another's weights.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core.compat import tf
from decoupled.model.variables import GLOBAL_STEP
from decoupled.ops.meshes.replicas import StackLayout
from decoupled.training.checkpoint_files import CheckpointFile, CheckpointWriter
from decoupled.training.xla.adapter import Array, Client
from decoupled.training.xla.programs import ExportedProgram, SavedVariable


class Slice(NamedTuple):
    """A part of a saved variable: the variable's shape, the part's place and sizes."""

    shape: Sequence[int]
    begin: Sequence[int]
    sizes: Sequence[int]

    @property
    def spec(self) -> str:
        """TensorFlow's name of a slice, "rows columns first,rows:first,columns"; "" is
        the whole."""
        if self.sizes == self.shape:
            return ""
        pairs = zip(self.begin, self.sizes, strict=True)
        places = ":".join(f"{start},{size}" for start, size in pairs)
        return f"{' '.join(map(str, self.shape))} {places}"

    def part_of(self, whole: np.ndarray) -> np.ndarray:
        pairs = zip(self.begin, self.sizes, strict=True)
        return whole[tuple(slice(start, start + size) for start, size in pairs)]


# (name of a saved variable, different slices of it) -> their values.
Source = Callable[[str, Sequence[Slice]], Iterable[np.ndarray]]


def first_values(
    variables: Mapping[str, SavedVariable],
    init_checkpoint: str | None,
    restored_names: set[str],
) -> Source:
    """What a new run starts from: some values from a checkpoint, the others drawn."""
    checkpoint_values = stored_values(init_checkpoint) if restored_names else None

    def values(name: str, slices: Sequence[Slice]) -> Iterable[np.ndarray]:
        if name in restored_names:
            return checkpoint_values(name, slices)
        variable = variables[name]
        with tf.device("cpu:0"):
            value = variable.initializer(variable.shape, dtype=variable.dtype).numpy()
        return (each.part_of(value) for each in slices)

    return values


def stored_values(prefix: str) -> Source:
    """What a run goes on from. A variable is read once, or only its slices."""
    checkpoint = CheckpointFile(prefix)

    def values(name: str, slices: Sequence[Slice]) -> Iterable[np.ndarray]:
        if sum(math.prod(s.sizes) for s in slices) < math.prod(slices[0].shape):
            parts = (checkpoint.read_tensor(name, each.spec) for each in slices)
            return (np.asarray(memoryview(part)) for part in parts)
        whole = checkpoint[name]
        return (each.part_of(whole) for each in slices)

    return values


class State:
    """The variables of a program, on the devices of a client.

    `source` has seen `step` updates. `arrays` are in the order of the program; a run of
    the program replaces them.
    """

    def __init__(
        self, client: Client, program: ExportedProgram, source: Source, step: int = 0
    ):
        self._client = client
        layouts = {layout.name: layout for layout in program.layouts}
        self._layouts = [layouts.get(a.name) for a in program.variables]
        # The step has no layout.
        self.arrays: list[Array] = [
            client.put_everywhere(np.array(step, np.int64))
            if layout is None
            else client.put(self._stacks(layout, source))
            for layout in self._layouts
        ]

    def _stacks(self, layout: StackLayout, source: Source) -> list[np.ndarray]:
        """The stack of each device of this process; equal ones are one array."""
        begins = [layout.begins[replica] for replica in self._client.local]
        stacks = {begin: [] for begin in begins}
        slices = [_slice(layout, begin) for begin in stacks]
        for member in layout.members:
            parts = source(member, slices)
            for members, part in zip(stacks.values(), parts, strict=True):
                members.append(part.astype(layout.dtype.as_numpy_dtype))
        is_stack = len(layout.members) > 1
        arrays = {b: np.stack(m) if is_stack else m[0] for b, m in stacks.items()}
        return [arrays[begin] for begin in begins]

    def save(self, writer: CheckpointWriter) -> None:
        """Adds what this process saves; equal slices are saved by the first replica,
        and the step by the first process."""
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
        spec = _slice(layout, begin).spec
        for name, part in zip(layout.members, members, strict=True):
            writer.add(name, part.astype(dtype, copy=False), spec)


def _slice(layout, begin):
    return Slice(layout.shape, begin, layout.slice_shape)
