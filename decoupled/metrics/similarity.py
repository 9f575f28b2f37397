"""The similarity of two sequences of numbers, or of two sets of vectors.

Numbers: the correlations of Pearson and Spearman.

Vectors for the same objects, of any two widths: linear CKA (Kornblith et al. 2019) is 1
if one set is a shifted, rotated and scaled copy of the other, and 0 if the sets are
linearly unrelated. It is dominated by the directions of largest variance. The overlap
of nearest neighbours depends only on the neighbourhood of each vector.
"""

import math

import numpy as np

# Number of cosines that are in memory at a time.
_BLOCK_VALUES = 2**24


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


def number_scores(targets: np.ndarray, answers: np.ndarray) -> dict[str, float]:
    """Correlations times 100, 0 if all answers are equal, and the mean absolute error.

    Args:
      targets: at least two different numbers.
    """
    return {
        "pearson": 100 * (pearson(targets, answers) or 0.0),
        "spearman": 100 * (spearman(targets, answers) or 0.0),
        "mean_absolute_error": float(np.abs(targets - answers).mean()),
    }


class CrossMoments:
    """Sums over tokens that give linear CKA, so that no token is stored."""

    def __init__(self, width: int, other_width: int):
        self._count = 0
        self._sums = [np.zeros(width), np.zeros(other_width)]
        self._own = [np.zeros([w, w]) for w in (width, other_width)]
        self._cross = np.zeros([width, other_width])

    def add(self, first: np.ndarray, second: np.ndarray) -> None:
        """Adds vectors of the same tokens, [n, width] and [n, other width]."""
        pair = [values.astype(np.float64) for values in (first, second)]
        self._count += len(first)
        for place, values in enumerate(pair):
            self._sums[place] += values.sum(0)
            self._own[place] += values.T @ values
        self._cross += pair[0].T @ pair[1]

    def cka(self) -> float | None:
        """|X'Y|^2 / (|X'X| |Y'Y|) of the centred vectors; None if one is constant.

        The norms are Frobenius norms.
        """
        if not self._count:
            return None
        first, second = self._sums
        cross = self._cross - np.outer(first, second) / self._count
        own = [
            np.linalg.norm(matrix - np.outer(total, total) / self._count)
            for matrix, total in zip(self._own, self._sums, strict=True)
        ]
        scale = own[0] * own[1]
        return float(np.linalg.norm(cross) ** 2 / scale) if scale else None


def nearest(table: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """The rows of a table that are nearest to some of its rows, by cosine.

    Args:
      table: float [rows, width]. A row of zeros has cosine 0 with all others.
      queries: int [n], indices of rows.
      count: of neighbours; less than the number of rows.

    Returns:
      int64 [n, count], indices of rows, unordered; a row is not its own neighbour.
    """
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(norms == 0, 1, norms)
    found = np.empty([len(queries), count], np.int64)
    step = max(1, _BLOCK_VALUES // len(table))
    for start in range(0, len(queries), step):
        rows = queries[start : start + step]
        cosines = unit[rows] @ unit.T
        cosines[np.arange(len(rows)), rows] = -np.inf
        order = np.argpartition(cosines, -count, axis=1)
        found[start : start + step] = order[:, -count:]
    return found


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    """The mean share of common neighbours.

    For random neighbours it is their number divided by the number of all candidates.

    Args:
      first, second: int [n, count], as from `nearest`.
    """
    shared = [len(np.intersect1d(*pair)) for pair in zip(first, second, strict=True)]
    return float(np.mean(shared) / first.shape[1])
