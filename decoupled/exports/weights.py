"""The weights of a checkpoint, held to the sizes of a model before any is used."""

from collections.abc import Mapping

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.model.variables import GLOBAL_STEP, Head, foreign, is_slot, shapes

# What the reader raises: IndexError for a file that ends too early.
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, IndexError)


class CheckpointWeights(Mapping):
    """The variables of a TF checkpoint as a mapping from name to float32 array.

    Arrays are read on access, so that a large model is in memory once.

    Attributes:
      path: the checkpoint's prefix, e.g. `DIR/model.ckpt-1000`.
      shapes: of all variables, optimizer slots left out.

    Raises:
      UserError: there is no readable checkpoint at `path`.
    """

    def __init__(self, path: str):
        self.path = path
        try:
            self._reader = tf.train.load_checkpoint(path)
        except _UNREADABLE as error:
            raise UserError(
                f"{path}: cannot read a checkpoint ({files.reason(error)})"
            ) from error
        self.shapes = {
            name: tuple(shape)
            for name, shape in self._reader.get_variable_to_shape_map().items()
            if not is_slot(name)
        }

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            value = self._reader.get_tensor(name)
        except _UNREADABLE as error:
            raise UserError(
                f"{self.path}: cannot read {name} ({files.reason(error)})"
            ) from error
        if not np.all(np.isfinite(value)):
            raise UserError(
                f"{self.path}: {name} holds values that are not finite; the training "
                "diverged, choose an earlier checkpoint"
            )
        return value

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def global_step(self) -> int | None:
        """The training step, None where the checkpoint does not say."""
        return int(self[GLOBAL_STEP]) if GLOBAL_STEP in self.shapes else None

    def check(self, config: ModelConfig, head: Head) -> None:
        """Holds the variables of the encoder, and those of a head, to a model's sizes.

        Raises:
          UserError: one is missing, has another shape, or is an encoder variable that
            the model does not have (more layers, a projection it does without).
        """
        for name, wanted in shapes(config, head).items():
            found = self.shapes.get(name)
            if found is None:
                raise UserError(
                    f"{self.path}: no variable {name} {list(wanted)}; this is not a "
                    "checkpoint of the model that config.json describes"
                )
            if found != wanted:
                raise UserError(
                    f"{self.path}: {name} has shape {list(found)}, the model of "
                    f"config.json has {list(wanted)}"
                )
        for name in foreign(config, self.shapes):
            raise UserError(
                f"{self.path}: {name} {list(self.shapes[name])} is not part of the "
                "model that config.json describes"
            )
