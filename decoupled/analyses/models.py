"""Models opened for analysis, and all hidden states of the serving encoder."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from decoupled.core import gfile
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import FEATURES, Encoder
from decoupled.model import variables as names
from decoupled.runs.saved_run import Model, open_model

SIZES = ("input_embedding_size", "output_embedding_size", "hidden_size", "num_layers")


def describe(model: Model) -> dict[str, Any]:
    """The model's entries in results: its source and its sizes."""
    sizes = {size: getattr(model.config, size) for size in SIZES}
    return {
        "name": model.name,
        "folder": model.folder,
        "checkpoint": os.path.basename(model.weights.path),
        "global_step": model.weights.global_step,
        "vocabulary": model.vocabulary.fingerprint,
        "vocab_size": model.config.vocab_size,
        "coupled": model.config.coupled,
        **sizes,
    }


class LayerEncoder:
    """A frozen encoder that gives every layer's output, with dynamic sizes.

    Attributes:
      num_layers: of the network; `__call__` returns one output more.
      encoder: the network.
    """

    def __init__(self, model: Model):
        self.encoder = Encoder(model.config, model.weights)
        self.num_layers = model.config.num_layers
        specs = [tf.TensorSpec([None, None], tf.int32) for _ in FEATURES]
        self._function = tf.function(self._encode, specs, autograph=False)

    def __call__(self, batch: dict[str, np.ndarray]) -> tf.Tensor:
        """Runs the network without dropout.

        Args:
          batch: `input_word_ids`, `input_mask`, `input_type_ids`, int32
            [batch, length]; other entries are ignored.

        Returns:
          float32 [layers + 1, batch, length, H], see `Encoder.hidden_states`.
        """
        return self._function(*(tf.constant(batch[name]) for name in FEATURES))

    def _encode(self, *features: tf.Tensor) -> tf.Tensor:
        inputs = dict(zip(FEATURES, features, strict=True))
        return tf.stack(self.encoder.hidden_states(inputs))


def open_models(paths: Sequence[str], *, masked_lm: bool = False) -> list[Model]:
    """Opens runs of `pretrain` or `finetune`, with short names.

    Args:
      paths: prefixes of checkpoints, or folders. In a folder, the checkpoint that
        fine-tuning selected is taken, or else the newest one.
      masked_lm: whether the model must have the head of pre-training.

    Raises:
      UserError: a path is given twice, or cannot be opened; or a model's variables do
        not fit its config.json.
    """
    models = []
    for path, name in zip(paths, short_names(paths), strict=True):
        model = dataclasses.replace(open_model(path), name=name)
        has_head = names.OUTPUT_BIAS in model.weights
        if masked_lm and not has_head:
            raise UserError(
                f"{model.weights.path}: holds no MLM head (fine-tuning drops it); give "
                "a pre-training checkpoint"
            )
        model.weights.check(model.config, names.Head(masked_lm=has_head))
        models.append(model)
    return models


def batches(
    arrays: dict[str, np.ndarray], batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of rows of similar length, without columns of padding.

    Args:
      arrays: `input_mask` [rows, length] and others. Only arrays of its shape lose
        columns.
    """
    mask = arrays["input_mask"]
    lengths = mask.sum(1)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        longest = int(lengths[rows].max())
        yield {
            name: values[rows, :longest] if values.shape == mask.shape else values[rows]
            for name, values in arrays.items()
        }


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of paths that are unique; a checkpoint includes its folder.

    Raises:
      UserError: a path occurs twice.
    """
    parts = [[part for part in path.split("/") if part] for path in paths]
    more = [0 if gfile.isdir(path) else 1 for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        ends = zip(parts, more, strict=True)
        shortened = ["/".join(p[-length - extra :]) for p, extra in ends]
        if len(set(shortened)) == len(paths):
            return shortened
    twice = next(path for path in paths if list(paths).count(path) > 1)
    raise UserError(f"{twice}: is given twice")
