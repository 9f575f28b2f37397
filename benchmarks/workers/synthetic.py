"""The same synthetic data for every framework. Needs NumPy only.

Batches for training and inference, pairs of sentences and of vectors for retrieval,
documents for input pipelines.
"""

from collections.abc import Iterator

import numpy as np

# Special pieces stand below the first id of text, in the vocabularies of all models
# compared.
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID, FIRST_ID = range(6)
# Pieces of a sentence: as in Tatoeba, half have fewer, few have many more.
SENTENCE_MEDIAN = 11
SENTENCE_SPREAD = 0.5
# Tokens of a document: half have fewer, one in a hundred has ten times as many.
DOCUMENT_MEDIAN = 120
DOCUMENT_SPREAD = 1.0
DOCUMENT_LONGEST = 20_000


def masked_lm_batch(case: dict) -> dict[str, np.ndarray]:
    """A batch without padding, its masked positions distinct and sorted.

    Args:
      case: holds "vocab_size", "batch", "sequence_length" and "predictions".

    Returns:
      int32 "input_word_ids", "input_mask", "input_type_ids" [batch, sequence],
      "masked_lm_positions", "masked_lm_ids" and, float32, "masked_lm_weights"
      [batch, predictions].
    """
    generator = np.random.default_rng(0)
    vocab_size = case["vocab_size"]
    tokens = [case["batch"], case["sequence_length"]]
    masked = [case["batch"], case["predictions"]]
    # Any row of `order` but its first column, which stands for [CLS].
    order = generator.random([tokens[0], tokens[1] - 1]).argsort(axis=1) + 1
    return {
        "input_word_ids": generator.integers(FIRST_ID, vocab_size, tokens, np.int32),
        "input_mask": np.ones(tokens, np.int32),
        "input_type_ids": np.zeros(tokens, np.int32),
        "masked_lm_positions": np.sort(order[:, : masked[1]]).astype(np.int32),
        "masked_lm_ids": generator.integers(FIRST_ID, vocab_size, masked, np.int32),
        "masked_lm_weights": np.ones(masked, np.float32),
    }


def classification_batch(case: dict) -> dict[str, np.ndarray]:
    """Random tokens without padding, as above, with labels.

    Args:
      case: holds "vocab_size", "batch", "sequence_length" and "labels".

    Returns:
      int32 "input_word_ids", "input_mask", "input_type_ids" [batch, sequence] and
      "label_ids" [batch].
    """
    generator = np.random.default_rng(0)
    shape = [case["batch"], case["sequence_length"]]
    return {
        "input_word_ids": generator.integers(
            FIRST_ID, case["vocab_size"], shape, np.int32
        ),
        "input_mask": np.ones(shape, np.int32),
        "input_type_ids": np.zeros(shape, np.int32),
        "label_ids": generator.integers(0, case["labels"], shape[:1], np.int32),
    }


def sentence_pairs(case: dict) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Two lists of sentences, int64 [pieces] each, without special pieces.

    Args:
      case: holds "vocab_size", "pairs" and "sequence_length", which no sentence
        exceeds.
    """
    generator = np.random.default_rng(0)
    longest = case["sequence_length"] - 2
    drawn = generator.lognormal(
        np.log(SENTENCE_MEDIAN), SENTENCE_SPREAD, [2, case["pairs"]]
    )
    lengths = np.clip(drawn, 1, longest).astype(np.int64)
    first, second = (
        [generator.integers(FIRST_ID, case["vocab_size"], length) for length in side]
        for side in lengths
    )
    return first, second


def vector_pairs(case: dict) -> tuple[np.ndarray, np.ndarray]:
    """float32 [pairs, size] twice; the second are the first with noise.

    Args:
      case: holds "pairs" and "size".
    """
    generator = np.random.default_rng(0)
    shape = [case["pairs"], case["size"]]
    first = generator.standard_normal(shape, np.float32) + 1
    return first, first + 0.5 * generator.standard_normal(shape, np.float32)


def documents(case: dict) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The documents of each language.

    Lengths are log-normal, the frequencies of pieces fall as in text: piece number r
    comes about 1 / r as often as the first.

    Args:
      case: holds "vocab_size" and "languages", a dict of name -> fewest tokens.

    Returns:
      (name, documents); a document is int64 [tokens], never empty.
    """
    for number, (name, tokens) in enumerate(case["languages"].items()):
        yield name, _draw_documents(number, tokens, case["vocab_size"] - FIRST_ID + 1)


def _draw_documents(seed, tokens, pieces):
    generator = np.random.default_rng(seed)
    # Their mean is above the median, so that these are enough.
    drawn = generator.lognormal(
        np.log(DOCUMENT_MEDIAN), DOCUMENT_SPREAD, tokens // DOCUMENT_MEDIAN + 1
    )
    ends = np.cumsum(np.clip(drawn, 1, DOCUMENT_LONGEST).astype(np.int64))
    ends = ends[: np.searchsorted(ends, tokens) + 1]
    ranks = pieces ** generator.random(ends[-1])
    return np.split(ranks.astype(np.int64) - 1 + FIRST_ID, ends[:-1])
