"""The similarity of two sequences of numbers, or of two sets of vectors.

Numbers: the correlations of Pearson and Spearman.

Vectors for the same objects, of any two widths: linear CKA (Kornblith et al. 2019) is 1
if one set is a shifted, rotated and scaled copy of the other, and 0 if the sets are
linearly unrelated. It is dominated by the directions of largest variance.
"""

import math

import numpy as np

_BLOCK_ROWS = 8192


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
    x, y = (np.asarray(values, np.float64) for values in (first, second))
    if len(x) != len(y):
        raise ValueError(f"{len(x)} values and {len(y)} values")
    # A constant sequence may differ from its mean by a rounding error.
    if not len(x) or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    x, y = _unit(x), _unit(y)
    return float(x @ y)


def _unit(values):
    """Centred and of length 1, even if the squares would be 0 or infinite."""
    values = values / np.abs(values).max()
    values = values - values.mean()
    values = values / np.abs(values).max()
    return values / math.sqrt(float(values @ values))


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


def linear_cka(first: np.ndarray, second: np.ndarray) -> float | None:
    """|X'Y|^2 / (|X'X| |Y'Y|) of centred vectors of the same objects, [n, width].

    The norms are Frobenius norms. Sums are made over blocks of rows, in float64. None
    if one set is constant.
    """
    pair = (first, second)
    means = [vectors.mean(0, dtype=np.float64) for vectors in pair]
    cross = squares = others = 0.0
    for start in range(0, len(first), _BLOCK_ROWS):
        x, y = (
            vectors[start : start + _BLOCK_ROWS] - mean
            for vectors, mean in zip(pair, means, strict=True)
        )
        cross, squares, others = cross + x.T @ y, squares + x.T @ x, others + y.T @ y
    scale = np.linalg.norm(squares) * np.linalg.norm(others)
    return float(np.linalg.norm(cross) ** 2 / scale) if scale else None
