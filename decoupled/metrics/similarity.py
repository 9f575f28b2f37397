"""Correlations of two sequences of numbers, of Pearson and of Spearman."""

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """float64 [n]: ranks from 1; equal values get the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts)
    return (last_ranks - (counts - 1) / 2)[places]


def pearson(first: np.ndarray, second: np.ndarray) -> float | None:
    """Pearson's correlation; None if a sequence is constant."""
    x, y = (np.asarray(values, np.float64) for values in (first, second))
    # A constant sequence may differ from its mean by a rounding error.
    if not len(x) or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    # Scaled, so that no square is 0 or infinite.
    x, y = (values / np.abs(values).max() for values in (x, y))
    return float(np.corrcoef(x, y)[0, 1])


def spearman(first: np.ndarray, second: np.ndarray) -> float | None:
    """Pearson's correlation of the ranks; as `pearson`."""
    return pearson(*(ranks(np.asarray(values)) for values in (first, second)))


def number_scores(targets: np.ndarray, answers: np.ndarray) -> dict[str, float]:
    """Correlations times 100, 0 if all answers are equal, and the mean absolute error.

    The targets are at least two different numbers.
    """
    return {
        "pearson": 100 * (pearson(targets, answers) or 0.0),
        "spearman": 100 * (spearman(targets, answers) or 0.0),
        "mean_absolute_error": float(np.abs(targets - answers).mean()),
    }
