"""SavedModels that give a vector for each sentence, as `decoupled retrieve` does.

The vector is the mean over a sentence's tokens in one layer. The SavedModel has no
layers above it, no pooler and no heads. To centre vectors, it stores the mean vector of
given sentences and subtracts it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import Encoder
from decoupled.exports.serving.roots import (
    Root,
    feature_spec,
    graph_signature,
    network_function,
    trace,
)
from decoupled.exports.serving.text import TextRoot

_BATCH = 64


class SentenceVectors(NamedTuple):
    """How the vectors are made; see `RetrievalConfig`.

    layer: 0 (embeddings) to L. pool_special_tokens: whether [CLS] and [SEP] are in the
    mean. centre_on: a file with a sentence a line, whose mean vector is subtracted; ""
    subtracts nothing.
    """

    layer: int
    pool_special_tokens: bool
    centre_on: str


class SentenceRoot(Root):
    """Packed ids -> `sentence_vector` float32 [batch, H], which is also `default`.

    The input should have one segment only. If no token is in the mean, the vector is
    zeros minus the mean vector.

    Attributes:
      mean_vector: float32 [H], which is subtracted.
    """

    def __init__(
        self,
        encoder: Encoder,
        hidden_size: int,
        pool_special_tokens: bool,
        vocabulary_path: str,
    ):
        super().__init__(encoder, vocabulary_path=vocabulary_path)
        self._encoder, self._pool_special_tokens = encoder, pool_special_tokens
        self.mean_vector = tf.Variable(
            tf.zeros([hidden_size]), trainable=False, name="mean_vector"
        )
        self.variables = [*self.variables, self.mean_vector]
        for training in (False, True):
            trace(self.__call__, feature_spec(), training=training)

    @network_function
    def __call__(self, inputs, training=False):
        states = self._encoder.hidden_states(inputs, training)[-1]
        mask = inputs["input_mask"]
        vector = mean_over_tokens(states, mask, self._pool_special_tokens)
        vector -= self.mean_vector
        return {"sentence_vector": vector, "default": vector}

    def signatures(self) -> dict:
        """`serving_default`."""
        return {"serving_default": graph_signature(self.__call__)}


def mean_over_tokens(
    states: tf.Tensor, mask: tf.Tensor, pool_special_tokens: bool
) -> tf.Tensor:
    """The mean of the vectors of each text's tokens, zeros if none is in the mean.

    Args:
      states: float32 [batch, length, H]. mask: int32 [batch, length], 1 for tokens.
      pool_special_tokens: whether [CLS], the first, and [SEP], the last, are in it.
    """
    if not pool_special_tokens:
        last = tf.reduce_sum(mask, axis=1, keepdims=True) - 1
        column = tf.range(tf.shape(mask)[1])[tf.newaxis, :]
        mask *= tf.cast((column > 0) & (column < last), mask.dtype)
    shares = tf.cast(mask, tf.float32)
    shares /= tf.maximum(tf.reduce_sum(shares, axis=1, keepdims=True), 1.0)
    return tf.einsum("blh,bl->bh", states, shares)


def store_mean(root: SentenceRoot, text: TextRoot, path: str) -> int:
    """Sets the mean vector to that of the sentences of a file; returns their number.

    Args:
      root: its mean vector must be 0 before. text: the model of strings around `root`.
      path: UTF-8 text, a sentence a line; empty lines are left out.

    Raises:
      UserError: the file cannot be read, has no sentence, or a vector is not finite.
    """
    lines = [line.strip() for line in files.split_lines(files.read_text(path))]
    # Sorted, so that batches have sentences of similar length.
    sentences = sorted(filter(None, lines), key=len)
    if not sentences:
        raise UserError(f"{path}: holds no sentence to centre vectors on")
    count = -(-len(sentences) // _BATCH)
    total = np.zeros(root.mean_vector.shape, np.float64)
    for batch in console.track(_batches(sentences), "centring on sentences", count):
        total += text(tf.constant(batch))["sentence_vector"].numpy().sum(0, np.float64)
    mean = total / len(sentences)
    if not np.isfinite(mean).all():
        raise UserError(
            f"{path}: the mean vector of these sentences is not finite; the training "
            "diverged, choose an earlier checkpoint"
        )
    root.mean_vector.assign(mean.astype(np.float32))
    return len(sentences)


def _batches(sentences: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(sentences), _BATCH):
        yield sentences[start : start + _BATCH]
