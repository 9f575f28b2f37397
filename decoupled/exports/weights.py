"""The weights of a checkpoint, held to the sizes of a model before any is used."""

import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from decoupled.configs import ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError

EMBEDDINGS = "bert/embeddings"
WORD_EMBEDDINGS = f"{EMBEDDINGS}/word_embeddings"
PROJECTION = "bert/encoder/embedding_hidden_mapping_in"
POOLER = "bert/pooler/dense"
TRANSFORM = "cls/predictions/transform"
OUTPUT_EMBEDDING = "cls/predictions/output_embedding"
OUTPUT_BIAS = "cls/predictions/output_bias"

Shapes = dict[str, tuple[int, ...]]

# What the reader raises: IndexError for a file that ends too early.
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, IndexError)
_OPTIMIZER_SLOT = re.compile(r"(/adam_[mv]|_slot_\w+)$")


def _dense(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def _layer_norm(name: str, width: int) -> Shapes:
    return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


def _layer_shapes(layer: str, config: ModelConfig) -> Shapes:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {}
    for part in ("query", "key", "value"):
        shapes |= _dense(f"{layer}/attention/self/{part}", hidden, hidden)
    shapes |= _dense(f"{layer}/attention/output/dense", hidden, hidden)
    shapes |= _layer_norm(f"{layer}/attention/output/LayerNorm", hidden)
    shapes |= _dense(f"{layer}/intermediate/dense", hidden, inner)
    shapes |= _dense(f"{layer}/output/dense", inner, hidden)
    return shapes | _layer_norm(f"{layer}/output/LayerNorm", hidden)


def encoder_shapes(config: ModelConfig) -> Shapes:
    """Names and shapes of the input embedding and the layers, without a pooler."""
    width = config.input_embedding_size
    shapes = {
        WORD_EMBEDDINGS: (config.vocab_size, width),
        f"{EMBEDDINGS}/position_embeddings": (config.max_positions, width),
        f"{EMBEDDINGS}/token_type_embeddings": (config.type_vocab_size, width),
    } | _layer_norm(f"{EMBEDDINGS}/LayerNorm", width)
    if config.projects_input:
        shapes |= _dense(PROJECTION, width, config.hidden_size)
    for index in range(config.num_layers):
        shapes |= _layer_shapes(f"bert/encoder/layer_{index}", config)
    return shapes


def pooler_shapes(config: ModelConfig) -> Shapes:
    """Names and shapes of the tanh layer on [CLS]; fine-tuned classifiers have it."""
    return _dense(POOLER, config.hidden_size, config.hidden_size)


def masked_lm_shapes(config: ModelConfig) -> Shapes:
    """Names and shapes of the MLM head; a coupled one has no table of its own."""
    hidden, width = config.hidden_size, config.output_embedding_size
    shapes = {OUTPUT_BIAS: (config.vocab_size,)}
    if config.mlm_transform == "dense_activation_norm":
        shapes |= _dense(f"{TRANSFORM}/dense", hidden, width)
        shapes |= _layer_norm(f"{TRANSFORM}/LayerNorm", width)
    elif hidden != width:
        shapes |= _dense(f"{TRANSFORM}/dense", hidden, width)
    if not config.coupled:
        shapes[OUTPUT_EMBEDDING] = (config.vocab_size, width)
    return shapes


def classifier_shapes(config: ModelConfig, num_labels: int) -> Shapes:
    """Names and shapes of a sequence classifier's pooler and output layer."""
    return pooler_shapes(config) | last_layer_shapes(config, num_labels)


def last_layer_shapes(config: ModelConfig, num_labels: int) -> Shapes:
    """Names and shapes of the layer that makes scores, of a text or of every token."""
    return {
        "output_weights": (num_labels, config.hidden_size),
        "output_bias": (num_labels,),
    }


class CheckpointWeights(Mapping):
    """The variables of a TF checkpoint as a mapping from name to float32 array.

    Arrays are read when they are asked for, so that a large model is in memory once.

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
            if not _OPTIMIZER_SLOT.search(name)
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
        return int(self["global_step"]) if "global_step" in self.shapes else None

    def check(self, expected: Shapes) -> None:
        """Holds the variables of the encoder, and all that are expected, to the sizes.

        Raises:
          UserError: one is missing, has another shape, or is an encoder variable that
            the model does not have (more layers, a projection it does without).
        """
        for name, shape in expected.items():
            found = self.shapes.get(name)
            if found is None:
                raise UserError(
                    f"{self.path}: no variable {name} {list(shape)}; this is not a "
                    "checkpoint of the model that config.json describes"
                )
            if found != shape:
                raise UserError(
                    f"{self.path}: {name} has shape {list(found)}, the model of "
                    f"config.json has {list(shape)}"
                )
        for name, shape in sorted(self.shapes.items()):
            known = name in expected or name.startswith(f"{POOLER}/")
            if name.startswith("bert/") and not known:
                raise UserError(
                    f"{self.path}: {name} {list(shape)} is not part of the model that "
                    "config.json describes"
                )
