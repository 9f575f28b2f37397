"""Spearman's rank correlation with its confidence interval, on numpy alone."""

import math
import statistics
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
# Below this many pairs the interval's variance is not defined.
_FEWEST_PAIRS = 4


class Correlation(NamedTuple):
    """Spearman's rho and its interval at `CONFIDENCE`; None where not defined."""

    spearman: float | None
    low: float | None
    high: float | None


def correlate(first: np.ndarray, second: np.ndarray) -> Correlation:
    """Spearman's rho of two sequences, with its interval.

    Args:
      first, second: [n] each.

    Returns:
      None for rho where a sequence is constant or shorter than 2; None for the bounds
      with fewer than 4 pairs.
    """
    rho = spearman(first, second)
    if rho is None:
        return Correlation(None, None, None)
    return Correlation(rho, *interval(rho, len(first)))


def ranks(values: np.ndarray) -> np.ndarray:
    """float64 [n]: ranks from 1; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def spearman(first: np.ndarray, second: np.ndarray) -> float | None:
    """Pearson's correlation of the ranks; None where a sequence has one value only."""
    one, other = (ranks(np.asarray(values)) for values in (first, second))
    if len(one) != len(other):
        raise ValueError(f"{len(one)} values and {len(other)} values")
    one, other = one - (len(one) + 1) / 2, other - (len(other) + 1) / 2
    scale = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / scale if scale else None


def interval(rho: float, pairs: int) -> tuple[float | None, float | None]:
    """The confidence interval of Spearman's rho.

    Fisher's z, whose variance for ranks is (1 + rho^2 / 2) / (n - 3) (Bonett and
    Wright 2000, "Sample size requirements for estimating Pearson, Kendall and Spearman
    correlations"). Pairs that share a word count as independent, as is usual.
    """
    if pairs < _FEWEST_PAIRS:
        return None, None
    if abs(rho) >= 1:
        return rho, rho
    quantile = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    width = quantile * math.sqrt((1 + rho**2 / 2) / (pairs - 3))
    return math.tanh(math.atanh(rho) - width), math.tanh(math.atanh(rho) + width)
