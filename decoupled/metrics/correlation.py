"""Correlations of two sequences of numbers."""

import math

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """float64 [n]: ranks from 1; equal values get the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def pearson(first: np.ndarray, second: np.ndarray) -> float | None:
    """Pearson's correlation; None if a sequence is constant.

    Raises:
      ValueError: the sequences differ in length.
    """
    one, other = (np.asarray(values, np.float64) for values in (first, second))
    if len(one) != len(other):
        raise ValueError(f"{len(one)} values and {len(other)} values")
    # A constant sequence may differ from its mean by a rounding error.
    if not len(one) or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    one, other = _unit(one), _unit(other)
    return float(one @ other)


def _unit(values):
    """Centred and of length 1, even if the squares would be 0 or infinite."""
    values = values / np.abs(values).max()
    values = values - values.mean()
    values = values / np.abs(values).max()
    return values / math.sqrt(float(values @ values))


def spearman(first: np.ndarray, second: np.ndarray) -> float | None:
    """Pearson's correlation of the ranks; as `pearson`."""
    return pearson(*(ranks(np.asarray(values)) for values in (first, second)))
