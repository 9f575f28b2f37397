"""Sentences of any number to batches of few lengths, made while they are used.

A graph has one length. Sentences are short and their longest is long, so they are
divided among several graphs, by length; what padding costs and what building a graph
costs decides among how many.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.compat import tf
from decoupled.data.vocabulary import Vocabulary

_SPECIAL = 2
_TEXTS_AT_ONCE = 10_000
# Lengths are multiples of this, so that a mesh can split them.
_LENGTH_STEP = 8


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


def choose_lengths(
    lengths: np.ndarray, longest: int, tokens_per_graph: int
) -> list[int]:
    """The lengths of graphs, ascending, that together cost the least.

    Args:
      lengths: int [sentences], of each sentence, at most `longest`.
      longest: what sentences are cut to.
      tokens_per_graph: a graph costs as much as encoding so many tokens.

    Returns:
      Multiples of 8, or `longest`; every sentence fits into the last one.
    """
    rounded = np.minimum(-(-lengths // _LENGTH_STEP) * _LENGTH_STEP, longest)
    sizes, counts = np.unique(rounded, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    # cheapest[i]: cost of all sentences of the first i sizes, and the lengths for it.
    cheapest: list[tuple[float, list[int]]] = [(0, [])]
    for end, size in enumerate(sizes, start=1):
        cost, chosen = min(
            (cost + (below[end] - below[start]) * size + tokens_per_graph, chosen)
            for start, (cost, chosen) in enumerate(cheapest)
        )
        cheapest.append((cost, [*chosen, int(size)]))
    return cheapest[-1][1]


def batch_input_fn(
    vocabulary: Vocabulary,
    tokens: Tokens,
    rows: np.ndarray,
    sequence_length: int,
    batch_size: int,
    pool_special_tokens: bool,
) -> Callable:
    """An input_fn: some sentences in batches, the last one filled up with empty rows.

    Args:
      vocabulary: for special pieces.
      tokens: of all sentences.
      rows: int [sentences], which of them, in this order.
      sequence_length: longer sentences are cut.
      pool_special_tokens: whether `pooled_tokens` is 1 for [CLS] and [SEP], too.

    Returns:
      A function that gives a dataset of the features of `PooledLayers`.
    """
    shape = [batch_size, sequence_length]
    names = ("input_word_ids", "input_mask", "input_type_ids", "pooled_tokens")
    signature = {name: tf.TensorSpec(shape, tf.int32) for name in names}

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, len(rows), batch_size):
            yield _batch(
                vocabulary,
                tokens,
                rows[start : start + batch_size],
                shape,
                pool_special_tokens,
            )

    def input_fn(params=None):
        del params
        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
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
        ids[place, :end] = [vocabulary.cls_id, *text, vocabulary.sep_id]
        mask[place, :end] = 1
        pooled[place, 1 : end - 1] = 1
    return {
        "input_word_ids": ids,
        "input_mask": mask,
        "input_type_ids": np.zeros(shape, np.int32),
        "pooled_tokens": mask if pool_special_tokens else pooled,
    }
