"""Any count of sentences to batches of a few lengths, made while they are used."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core.compat import tf
from decoupled.data.vocabulary import Vocabulary

_SPECIAL = 2
_TEXTS_AT_ONCE = 10_000


class Tokens(NamedTuple):
    """The pieces of all sentences one after the other.

    ids: int32 [pieces]. ends: int64 [sentences], where each sentence ends in `ids`.
    """

    ids: np.ndarray
    ends: np.ndarray

    def lengths(self, longest: int) -> np.ndarray:
        """Tokens of each sentence with [CLS] and [SEP], none above `longest`."""
        return np.minimum(np.diff(self.ends, prepend=0) + _SPECIAL, longest)


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

    rows: int [sentences], which ones. length: tokens of each; longer ones are cut.
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
    """An input_fn: sentences in batches, filled up with empty rows where some lack.

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
        dataset = tf.data.Dataset.from_generator(made, output_signature=signature)
        # Nothing is left to tune, and the thread that tunes can hold up a session's end
        # for as long as the session has run, up to a minute (TF 2.15).
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.prefetch(4).with_options(options)

    return input_fn


def _batch(vocabulary, tokens, rows, shape, pool_special_tokens):
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
