"""TensorFlow checkpoints, read and written a few tensors at a time.

The Saver holds all variables at once. Here one is in memory, and only once: reading
hands out the memory that the file was read into, writing takes the array's.
"""

import os
from collections.abc import Mapping
from types import TracebackType

import numpy as np

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.files import CHECKPOINT_LIST
from decoupled.core.release import tf
from decoupled.exports.interop.safetensors_files import ALIGNMENT, aligned_empty
from decoupled.model.variables import GLOBAL_STEP
from decoupled.runs.selection import counting_folder

Shape = tuple[int, ...]

# What the reader raises: IndexError for a file that ends too early.
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, IndexError)
# Smaller tensors are written together, so that a checkpoint has few files.
_SHARD_BYTES = 1 << 28


class CheckpointFile:
    """The variables of a checkpoint, optimizer slots included.

    Attributes:
      path: its prefix.
      shapes: name -> shape.

    Raises:
      UserError: there is no readable checkpoint at `path`.
    """

    def __init__(self, path: str):
        self.path = path
        try:
            reader = tf.train.load_checkpoint(path)
            self._dtypes = reader.get_variable_to_dtype_map()
            shapes = reader.get_variable_to_shape_map()
        except _UNREADABLE as error:
            raise UserError(
                f"{path}: cannot read a checkpoint ({files.reason(error)})"
            ) from error
        self.shapes: Mapping[str, Shape] = {
            name: tuple(shape) for name, shape in sorted(shapes.items())
        }

    def read(self, name: str) -> np.ndarray:
        """As `read_tensor`, an array over the tensor's memory, not to be written to."""
        return np.asarray(memoryview(self.read_tensor(name)))

    def read_tensor(self, name: str) -> tf.Tensor:
        """A float32 variable.

        Raises:
          UserError: it is damaged, not float32, or holds values that are not finite.
        """
        if self._dtypes[name] != tf.float32:
            kind = self._dtypes[name].name
            raise UserError(f"{self.path}: {name} is {kind}, weights are float32")
        tensor = self._restore(name)
        flat = np.asarray(memoryview(tensor)).reshape(-1)
        for start in range(0, flat.size, _SHARD_BYTES // 16):
            if not np.all(np.isfinite(flat[start : start + _SHARD_BYTES // 16])):
                raise UserError(
                    f"{self.path}: {name} holds values that are not finite; the "
                    "training diverged, choose an earlier checkpoint"
                )
        return tensor

    def global_step(self) -> int:
        """The training step; 0 where the checkpoint does not say."""
        return int(self._restore(GLOBAL_STEP)) if GLOBAL_STEP in self.shapes else 0

    def _restore(self, name):
        try:
            with tf.device("cpu:0"):
                return tf.raw_ops.RestoreV2(
                    prefix=self.path,
                    tensor_names=[name],
                    shape_and_slices=[""],
                    dtypes=[self._dtypes[name]],
                )[0]
        except _UNREADABLE as error:
            raise UserError(
                f"{self.path}: cannot read {name} ({files.reason(error)})"
            ) from error


class CheckpointWriter:
    """Writes a checkpoint; it is complete when the `with` block ends.

      with CheckpointWriter("DIR/model.ckpt-0") as writer:
          writer.add("bert/embeddings/word_embeddings", array)

    A name added twice is refused by TensorFlow. Where the block raises, the parts
    written so far stay in the folder of the prefix, which is to be removed.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._parts: list[str] = []
        self._waiting: dict[str, tf.Tensor] = {}
        self._bytes = 0

    def add(self, name: str, value: np.ndarray | tf.Tensor) -> None:
        """Writes a tensor now, or with those that follow while they are small."""
        tensor = value if tf.is_tensor(value) else _as_tensor(value)
        size = tensor.shape.num_elements() * tensor.dtype.size
        if self._bytes + size > _SHARD_BYTES:
            self._flush()
        self._waiting[name] = tensor
        self._bytes += size

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            return
        self._flush()
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=self._parts,
            destination_prefix=self._prefix,
            delete_old_dirs=True,
        )

    def _flush(self):
        if not self._waiting:
            return
        part = os.path.join(f"{self._prefix}.parts", f"part-{len(self._parts)}")
        tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=list(self._waiting),
            shape_and_slices=[""] * len(self._waiting),
            tensors=list(self._waiting.values()),
        )
        self._parts.append(part)
        self._waiting, self._bytes = {}, 0


def chosen_prefix(model_dir: str, checkpoint: str | None) -> str:
    """The checkpoint asked for, or else the one that counts (`training.selection`).

    Unlike there, nothing of it is read: who converts it reads all of it once.

    Args:
      model_dir: the run's folder.
      checkpoint: a prefix, or the name of one in `model_dir`.

    Raises:
      UserError: the folder has no readable list of checkpoints.
    """
    if checkpoint:
        inside = os.path.join(model_dir, checkpoint)
        return checkpoint if "/" in checkpoint else inside
    folder = counting_folder(model_dir)
    try:
        state = tf.train.get_checkpoint_state(folder)
    except (tf.errors.OpError, ValueError):
        state = None
    if state is None:
        raise UserError(
            f"{folder}: no readable list of checkpoints ({CHECKPOINT_LIST}); name one "
            "with --checkpoint=PREFIX"
        )
    return state.model_checkpoint_path


def _as_tensor(value: np.ndarray) -> tf.Tensor:
    """A tensor over the array's own memory where that is possible."""
    if value.dtype != np.float32 or not value.ndim or not value.size:
        return tf.convert_to_tensor(value)
    aligned = value.flags.c_contiguous and not value.ctypes.data % ALIGNMENT
    if not (aligned and value.flags.writeable):
        copy = aligned_empty(value.shape)
        copy[...] = value
        value = copy
    return tf.experimental.dlpack.from_dlpack(value.__dlpack__())
