"""The same synthetic documents for every input pipeline. Needs NumPy only."""

from collections.abc import Iterator

import numpy as np

# Special pieces stand below the first id of text.
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID, FIRST_ID = range(6)
# Tokens of a document: half have fewer, one in a hundred has ten times as many.
MEDIAN_LENGTH = 120
LENGTH_SPREAD = 1.0
LONGEST = 20_000


def languages(case: dict) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The documents of each language.

    Lengths are log-normal, the frequencies of pieces fall as in text: piece number r
    comes about 1 / r as often as the first.

    Args:
      case: holds "vocab_size" and "languages", a dict of name -> fewest tokens.

    Returns:
      (name, documents); a document is int64 [tokens], never empty.
    """
    for number, (name, tokens) in enumerate(case["languages"].items()):
        yield name, _documents(number, tokens, case["vocab_size"] - FIRST_ID + 1)


def _documents(seed, tokens, pieces):
    generator = np.random.default_rng(seed)
    # Their mean is above the median, so that these are enough.
    drawn = generator.lognormal(
        np.log(MEDIAN_LENGTH), LENGTH_SPREAD, tokens // MEDIAN_LENGTH + 1
    )
    ends = np.cumsum(np.clip(drawn, 1, LONGEST).astype(np.int64))
    ends = ends[: np.searchsorted(ends, tokens) + 1]
    ranks = pieces ** generator.random(ends[-1])
    return np.split(ranks.astype(np.int64) - 1 + FIRST_ID, ends[:-1])
