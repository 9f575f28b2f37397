"""A vector for each text from chosen layers, for retrieval and analyses.

`PooledLayers` is the graph; it only predicts and is not trained. `batch_input_fn` gives
it any number of sentences with length bucketing; batches are made while they are used.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core.compat import mtf, tf
from decoupled.data.array_input_fn import generated_dataset
from decoupled.data.vocabulary import Vocabulary
from decoupled.model.dims import Dims
from decoupled.model.embeddings import InputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.heads import Forward
from decoupled.model.layers import Builder
from decoupled.model.variables import NO_HEAD
from decoupled.tasks.task import Task

_SPECIAL = 2
_TEXTS_AT_ONCE = 10_000


class PooledLayers(Task):
    """The mean over the tokens of a text, in each chosen layer.

    Layer 0 is the output of the embeddings, which is the input of the first Transformer
    layer; layers 1 to L are the outputs of the Transformer layers. Layers above the
    highest chosen one are not built.

    Features beside the encoder's: `pooled_tokens`, int32 [batch, sequence], 1 for the
    tokens in the mean.

    Predictions: `layer_name(l)`, float32 [batch, hidden], for every chosen layer l;
    zeros if no token is in the mean.

    Args:
      layers: indices of layers, none of them twice.
      sequence_length: tokens of every input.
    """

    name = "pooled_layers"
    head = NO_HEAD
    metrics = {}

    def __init__(self, layers: Sequence[int], sequence_length: int):
        self._layers = layers
        self.sequence_length = sequence_length

    def extra_dims(self) -> list[mtf.Dimension]:
        """None."""
        return []

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The encoder's inputs, and the share of every token in the mean."""
        return {**self.encoder_dims(dims), "token_shares": [dims.batch, dims.sequence]}

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Turns `pooled_tokens` into shares that add up to 1."""
        features = dict(features)
        counted = tf.cast(features.pop("pooled_tokens"), tf.float32)
        total = tf.reduce_sum(counted, axis=1, keepdims=True)
        return {**features, "token_shares": counted / tf.maximum(total, 1.0)}

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        """Means in float32, even if activations are bfloat16."""
        features = dict(features)
        shares = features.pop("token_shares")
        outputs = self._outputs(build, features)
        shape = [build.dims.batch, build.dims.hidden]
        return Forward(
            loss=mtf.zeros(build.mesh, mtf.Shape([]), tf.float32),
            sums={},
            predictions={
                layer_name(layer): mtf.einsum(
                    [mtf.cast(outputs[layer], tf.float32), shares], output_shape=shape
                )
                for layer in self._layers
            },
        )

    def _outputs(
        self, build: Builder, features: dict[str, mtf.Tensor]
    ) -> list[mtf.Tensor]:
        """The outputs of layers 0, 1, ... as far as they are needed."""
        highest = max(self._layers)
        if highest == 0:
            ids, types = features["input_word_ids"], features["input_type_ids"]
            return [InputEmbedding(build).hidden(ids, types)]
        config = dataclasses.replace(build.config, num_layers=highest)
        encoded = encode(dataclasses.replace(build, config=config), features)
        return [encoded.embedded, *encoded.layers]


def layer_name(layer: int) -> str:
    """The prediction that holds the vectors of a layer."""
    return f"layer_{layer:02d}"


class Tokens(NamedTuple):
    """The pieces of all sentences one after the other.

    ids: int32 [pieces]. ends: int64 [sentences], index in `ids` after each sentence.
    """

    ids: np.ndarray
    ends: np.ndarray

    def lengths(self, longest: int) -> np.ndarray:
        """Tokens of each sentence with [CLS] and [SEP], none above `longest`."""
        return np.minimum(np.diff(self.ends, prepend=0) + _SPECIAL, longest)

    def windows(self, longest: int) -> tuple["Tokens", np.ndarray]:
        """Divides sentences that are too long into windows of nearly equal length.

        Args:
          longest: tokens of a window, [CLS] and [SEP] included; 3 or more.

        Returns:
          the windows as sentences, in their order; int64 [windows], the sentence of
          each window.
        """
        sizes = np.diff(self.ends, prepend=0)
        counts = np.maximum(1, -(-sizes // (longest - _SPECIAL)))
        owners = np.repeat(np.arange(len(sizes)), counts)
        last = np.cumsum(counts)
        number = np.arange(len(owners)) - np.repeat(last - counts, counts) + 1
        starts = (self.ends - sizes)[owners]
        ends = starts + number * sizes[owners] // counts[owners]
        return Tokens(self.ids, ends), owners


def tokenize(vocabulary: Vocabulary, texts: Sequence[str]) -> Tokens:
    """Encodes sentences, without special pieces."""
    parts, counts = [np.zeros(0, np.int32)], []
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        encoded = vocabulary.encode_batch(texts[start : start + _TEXTS_AT_ONCE])
        counts += map(len, encoded)
        parts.append(np.array([i for ids in encoded for i in ids], np.int32))
    return Tokens(np.concatenate(parts), np.cumsum(counts, dtype=np.int64))


class Batch(NamedTuple):
    """Sentences that run together.

    rows: int [sentences], their indices. length: tokens of a row; longer sentences are
    cut.
    """

    rows: np.ndarray
    length: int


def batch_input_fn(
    vocabulary: Vocabulary,
    tokens: Tokens,
    batches: Sequence[Batch],
    batch_size: int,
    pool_special_tokens: bool,
) -> Callable:
    """An input_fn: sentences in batches; the last ones are padded with empty rows.

    Args:
      vocabulary: for special pieces.
      tokens: of all sentences.
      batches: of at most `batch_size` sentences each.
      batch_size: of every batch.
      pool_special_tokens: whether `pooled_tokens` is 1 for [CLS] and [SEP], too.

    Returns:
      A function that gives a dataset of the features of `PooledLayers`.
    """
    names = ("input_word_ids", "input_mask", "input_type_ids", "pooled_tokens")
    lengths = {batch.length for batch in batches}
    length = lengths.pop() if len(lengths) == 1 else None
    signature = {name: tf.TensorSpec([batch_size, length], tf.int32) for name in names}

    def made() -> Iterator[dict[str, np.ndarray]]:
        for rows, length in batches:
            shape = [batch_size, length]
            yield _batch(vocabulary, tokens, rows, shape, pool_special_tokens)

    def input_fn(params=None):
        del params
        return generated_dataset(made, signature)

    return input_fn


def _batch(
    vocabulary: Vocabulary,
    tokens: Tokens,
    rows: np.ndarray,
    shape: list[int],
    pool_special_tokens: bool,
) -> dict[str, np.ndarray]:
    ids = np.full(shape, vocabulary.pad_id, np.int32)
    mask, pooled = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for place, row in enumerate(rows):
        start = tokens.ends[row - 1] if row else 0
        text = tokens.ids[start : tokens.ends[row]][: shape[1] - _SPECIAL]
        end = len(text) + _SPECIAL
        ids[place, 0], ids[place, end - 1] = vocabulary.cls_id, vocabulary.sep_id
        ids[place, 1 : end - 1] = text
        mask[place, :end] = 1
        pooled[place, 1 : end - 1] = 1
    return {
        "input_word_ids": ids,
        "input_mask": mask,
        "input_type_ids": np.zeros(shape, np.int32),
        "pooled_tokens": mask if pool_special_tokens else pooled,
    }
