"""TensorFlow checkpoints, read and written a few tensors at a time.

A Saver holds all variables in memory. Here only one variable is in memory, without a
copy: reading returns an array over TensorFlow's memory, and writing uses the memory of
the array.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from types import TracebackType

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core import files, gfile, hosts
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.model.variables import (
    GLOBAL_STEP,
    Head,
    Shape,
    foreign,
    is_slot,
    shapes,
)

# TensorFlow uses memory that starts at a multiple of this without a copy.
ALIGNMENT = 64

# Errors of the reader; IndexError is for a file that ends too early.
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, IndexError)
# Commands other than convert have read the whole checkpoint before.
_ADVICE = "restore it, or name an earlier one (convert: with --checkpoint)"
# A file of a checkpoint, and the prefix.
_FILE = re.compile(r"(.+)\.(?:index|data-\d{5}-of-\d{5})", re.DOTALL)
# Smaller tensors are written together, so that a checkpoint has few files.
_SHARD_BYTES = 1 << 28


def check_prefix(path: str) -> None:
    """Refuses what is no prefix of a checkpoint, such as one of its files."""
    files.check_checkpoint_path(path)
    if match := _FILE.fullmatch(path):
        raise UserError(f"{path}: is a file of a checkpoint; give {match[1]}")


class CheckpointFile(Mapping):
    """A checkpoint as a mapping from the name of a weight to its float32 array.

    The weights are all variables but optimizer slots and the global step. An array is
    read on access and lies over the tensor's memory; it must not be written to. `path`
    is the prefix, e.g. `DIR/model.ckpt-1000`; `shapes` and `dtypes` have all variables,
    `shapes` sorted.
    """

    def __init__(self, path: str):
        check_prefix(path)
        self.path = path
        try:
            reader = tf.train.load_checkpoint(path)
            self.dtypes = reader.get_variable_to_dtype_map()
            shapes = reader.get_variable_to_shape_map()
        except _UNREADABLE as error:
            raise UserError(
                f"{path}: cannot read a checkpoint ({files.reason(error)}); {_ADVICE}"
            ) from error
        self.shapes: dict[str, Shape] = {
            name: tuple(shape) for name, shape in sorted(shapes.items())
        }
        self._weights = {
            name: shape
            for name, shape in self.shapes.items()
            if name != GLOBAL_STEP and not is_slot(name)
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(memoryview(self.read_tensor(name)))

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    @property
    def global_step(self) -> int | None:
        return int(self._restore(GLOBAL_STEP)) if GLOBAL_STEP in self.shapes else None

    def read_tensor(self, name: str, spec: str = "") -> tf.Tensor | np.ndarray:
        """A float32 variable, a weight or a slot; an array while a graph is built.

        `spec` says which slice of it, as RestoreV2 has it; "" is the whole. Of a
        variable that was saved in slices, no other slices are read.
        """
        if self.dtypes[name] != tf.float32:
            dtype = self.dtypes[name].name
            raise UserError(f"{self.path}: {name} is {dtype}, weights are float32")
        tensor = self._restore(name, spec)
        values = np.asarray(memoryview(tensor)).reshape(-1)
        for start in range(0, values.size, _SHARD_BYTES // 16):
            if not np.all(np.isfinite(values[start : start + _SHARD_BYTES // 16])):
                raise UserError(
                    f"{self.path}: {name} holds values that are not finite; the "
                    "training diverged, choose an earlier checkpoint"
                )
        return tensor

    def check(self, config: ModelConfig, head: Head) -> None:
        """Compares the variables of encoder and head with a model's sizes."""
        for name, expected_shape in shapes(config, head).items():
            shape = self._weights.get(name)
            if shape is None:
                raise UserError(
                    f"{self.path}: no variable {name} {list(expected_shape)}; this is "
                    "not a checkpoint of the model that config.json describes"
                )
            if shape != expected_shape:
                raise UserError(
                    f"{self.path}: {name} has shape {list(shape)}, the model of "
                    f"config.json has {list(expected_shape)}"
                )
        for name in foreign(config, self):
            raise UserError(
                f"{self.path}: {name} {list(self.shapes[name])} is not part of the "
                "model that config.json describes"
            )

    def _restore(self, name: str, spec: str = "") -> tf.Tensor | np.ndarray:
        try:
            if not tf.executing_eagerly():
                # The operation would become a part of the graph that the caller builds.
                return tf.train.load_checkpoint(self.path).get_tensor(name)
            with tf.device("cpu:0"):
                return tf.raw_ops.RestoreV2(
                    prefix=self.path,
                    tensor_names=[name],
                    shape_and_slices=[spec],
                    dtypes=[self.dtypes[name]],
                )[0]
        except _UNREADABLE as error:
            raise UserError(
                f"{self.path}: cannot read {name} ({files.reason(error)}); {_ADVICE}"
            ) from error


class CheckpointWriter:
    """Writes a checkpoint; it is complete when the `with` block ends.

    TensorFlow refuses a name that is added twice. If the block raises, the parts
    written so far stay in the folder of the prefix, which the caller should remove.
    Several processes write parts side by side, and the first puts them together.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._parts: list[str] = []
        self._pending_tensors: list[tuple[str, str, tf.Tensor]] = []
        self._bytes = 0

    def add(self, name: str, value: np.ndarray | tf.Tensor, spec: str = "") -> None:
        """Adds a tensor. Small tensors are collected and written together.

        `spec` says which slice of a variable it is, as SaveV2 has it; "" is the whole.
        """
        tensor = value if tf.is_tensor(value) else _as_tensor(value)
        size = tensor.shape.num_elements() * tensor.dtype.size
        if self._bytes + size > _SHARD_BYTES:
            self._flush()
        self._pending_tensors.append((name, spec, tensor))
        self._bytes += size

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._flush()
            except gfile.OpError as write_error:
                error = write_error
        # If one process could not write, all processes hear of it.
        if error is None or isinstance(error, gfile.OpError):
            problem = error and f"{hosts.name()}: {files.reason(error)}"
            outcomes = hosts.gather("save", [problem, self._parts])
            problems = [text for text, _ in outcomes if text is not None]
            if problems and error is None:
                raise OSError(0, problems[0])
            if not problems:
                self._merge([part for _, parts in outcomes for part in parts])
        if error is not None and kind is None:
            raise error

    @hosts.by_first
    def _merge(self, parts):
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=parts,
            destination_prefix=self._prefix,
            delete_old_dirs=True,
        )

    def _flush(self):
        if not self._pending_tensors:
            return
        # `checkpoints.remove_unfinished` removes what a killed process leaves.
        part = f"part-{hosts.index()}-{len(self._parts)}"
        part = os.path.join(f"{self._prefix}_temp", part)
        names, specs, tensors = zip(*self._pending_tensors, strict=True)
        tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=list(names),
            shape_and_slices=list(specs),
            tensors=list(tensors),
        )
        self._parts.append(part)
        self._pending_tensors, self._bytes = [], 0


def aligned_empty(shape: Shape) -> np.ndarray:
    """A float32 array whose memory TensorFlow can use without a copy."""
    size = 4 * math.prod(shape)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(np.float32).reshape(shape)


def _as_tensor(value: np.ndarray) -> tf.Tensor:
    """A tensor over the array's own memory if that is possible."""
    if value.dtype != np.float32 or not value.ndim or not value.size:
        return tf.convert_to_tensor(value)
    is_aligned = value.flags.c_contiguous and not value.ctypes.data % ALIGNMENT
    if not (is_aligned and value.flags.writeable):
        copy = aligned_empty(value.shape)
        copy[...] = value
        value = copy
    return tf.experimental.dlpack.from_dlpack(value.__dlpack__())
