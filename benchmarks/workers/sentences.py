"""The same synthetic pairs of sentences for every framework. Needs NumPy only."""

import numpy as np

# Special pieces stand below the first id of text.
PAD_ID, CLS_ID, SEP_ID, FIRST_ID = 0, 3, 4, 5
# Pieces of a sentence: as in Tatoeba, half have fewer, few have many more.
MEDIAN_LENGTH = 11
LENGTH_SPREAD = 0.5


def sides(case: dict) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Two lists of sentences, int64 [pieces] each, without special pieces.

    Args:
      case: holds "vocab_size", "pairs" and "sequence_length", which no sentence
        exceeds.
    """
    generator = np.random.default_rng(0)
    longest = case["sequence_length"] - 2
    drawn = generator.lognormal(
        np.log(MEDIAN_LENGTH), LENGTH_SPREAD, [2, case["pairs"]]
    )
    lengths = np.clip(drawn, 1, longest).astype(np.int64)
    first, second = (
        [generator.integers(FIRST_ID, case["vocab_size"], length) for length in side]
        for side in lengths
    )
    return first, second


def vectors(case: dict) -> tuple[np.ndarray, np.ndarray]:
    """float32 [pairs, size] twice; the second are the first with noise.

    Args:
      case: holds "pairs" and "size".
    """
    generator = np.random.default_rng(0)
    shape = [case["pairs"], case["size"]]
    first = generator.standard_normal(shape, np.float32) + 1
    return first, first + 0.5 * generator.standard_normal(shape, np.float32)
