"""Nearest neighbours between two sets of vectors: exact, in blocks, both directions.

The scores of a pair of vectors x, y are:

  cosine           cos(x, y)
  euclidean        minus the squared distance
  ratio_margin     cos(x, y) / b        b: mean of the cosines of x with its k nearest
  distance_margin  cos(x, y) - b        neighbours and of y with its k nearest

The margins are those of Artetxe and Schwenk, Margin-based Parallel Corpus Mining (ACL
2019). They lower the scores of sentences that are close to everything. The best match
by margin is searched among all vectors, not only among the nearest by cosine.

The module also mines pairs of translations from two texts, as for BUCC. Their scores,
and the accuracy of Tatoeba's line numbers, are in `decoupled.metrics.labels`.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

# Vectors of each side whose scores are in memory at a time: 32 MB of float64.
BLOCK = 2048

# A ratio to a mean cosine of 0 or less has no meaning; this bound keeps it finite.
_SMALLEST_MEAN = 1e-6
# Two-sided quantile of the standard normal distribution.
_QUANTILE_95 = 1.959963984540054

Progress = Callable[[list], Iterable]


class Matches(NamedTuple):
    """The index and the score of the best match of every vector, of the first side
    (forward) and of the second (backward). Scores are float64."""

    forward: np.ndarray
    forward_scores: np.ndarray
    backward: np.ndarray
    backward_scores: np.ndarray


def best_matches(
    first: np.ndarray,
    second: np.ndarray,
    scoring: str,
    num_neighbours: int,
    block: int = BLOCK,
    progress: Progress = iter,
) -> Matches:
    """The best match of every vector [vectors, size] among all of the other side.

    Of equal scores the first wins. A vector of zeros has cosine 0 with all others.
    `num_neighbours` is k of the margins, `block` the number of vectors of a side at a
    time. `progress` wraps the iterated list; margins call it a second time.
    """
    score = _pair_scores(first, second, scoring, num_neighbours, block, progress)
    forward, backward = _BestMatches(len(first)), _BestMatches(len(second))
    for rows, columns in progress(_blocks(first, second, block)):
        scores = score(rows, columns)
        forward.add(rows, columns, scores)
        backward.add(columns, rows, scores.T)
    return Matches(forward.places, forward.scores, backward.places, backward.scores)


def neighbour_means(
    first: np.ndarray,
    second: np.ndarray,
    num_neighbours: int,
    block: int = BLOCK,
    progress: Progress = iter,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean cosine of every vector with its nearest neighbours on the other side."""
    forward = _HighestScores(len(first), min(num_neighbours, len(second)))
    backward = _HighestScores(len(second), min(num_neighbours, len(first)))
    for rows, columns in progress(_blocks(first, second, block)):
        cosines = _unit(first[rows]) @ _unit(second[columns]).T
        forward.add(rows, cosines)
        backward.add(columns, cosines.T)
    return forward.values.mean(axis=1), backward.values.mean(axis=1)


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """95% interval of a share, by Wilson's score; it is within [0, 1]."""
    share, z2 = successes / trials, _QUANTILE_95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    variance = share * (1 - share) / trials + z2 / (4 * trials**2)
    half = _QUANTILE_95 * variance**0.5 / (1 + z2 / trials)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """95% interval of a mean, by the normal distribution; of one value, the value."""
    mean, count = float(values.mean()), len(values)
    errors = values - mean
    variance = float(errors @ errors) * count / (count - 1) if count > 1 else 0.0
    half = _QUANTILE_95 * variance**0.5 / count
    return mean - half, mean + half


def _pair_scores(first, second, scoring, num_neighbours, block, progress):
    """A function of two slices that gives the scores of their pairs."""
    if scoring == "euclidean":
        # Centred at their common mean, the terms that cancel out are small.
        centre = (first.mean(axis=0) + second.mean(axis=0)) / 2
        return lambda rows, columns: (
            -_squared_distances(first[rows] - centre, second[columns] - centre)
        )

    def cosines(rows, columns):
        return _unit(first[rows]) @ _unit(second[columns]).T

    if scoring == "cosine":
        return cosines
    means = neighbour_means(first, second, num_neighbours, block, progress)

    def margins(rows, columns):
        pair_means = (means[0][rows, np.newaxis] + means[1][np.newaxis, columns]) / 2
        if scoring == "distance_margin":
            return cosines(rows, columns) - pair_means
        return cosines(rows, columns) / np.maximum(pair_means, _SMALLEST_MEAN)

    return margins


def _blocks(first, second, block) -> list[tuple[slice, slice]]:
    starts = [range(0, len(vectors), block) for vectors in (first, second)]
    return [
        (slice(row, row + block), slice(column, column + block))
        for row in starts[0]
        for column in starts[1]
    ]


def _unit(vectors):
    # In float32, vectors that are nearly parallel have equal cosines.
    vectors = vectors.astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)


def _squared_distances(first, second):
    squares = [np.einsum("ij,ij->i", side, side) for side in (first, second)]
    return squares[0][:, np.newaxis] + squares[1] - 2 * (first @ second.T)


class _BestMatches:
    """The best score of each vector so far, and the index of its match."""

    def __init__(self, vectors):
        self.places = np.zeros(vectors, np.int64)
        self.scores = np.full(vectors, -np.inf)

    def add(self, rows, columns, scores):
        places = scores.argmax(axis=1)
        row_scores = scores[np.arange(len(scores)), places]
        is_better = row_scores > self.scores[rows]
        self.scores[rows] = np.where(is_better, row_scores, self.scores[rows])
        places += columns.start
        self.places[rows] = np.where(is_better, places, self.places[rows])


class _HighestScores:
    """The k highest scores of each vector so far, unordered."""

    def __init__(self, vectors, count):
        self._count = count
        self.values = np.full([vectors, count], -np.inf)

    def add(self, rows, scores):
        values = self.values[rows]
        # Most blocks have no nearest neighbour for most vectors.
        has_gain = scores.max(axis=1) > values.min(axis=1)
        candidates = np.concatenate([values[has_gain], scores[has_gain]], axis=1)
        candidates = np.partition(candidates, -self._count, axis=1)
        values[has_gain] = candidates[:, -self._count :]


def mine(matches: Matches) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of best matches, of both directions, taken greedily by score.

    This is the retrieval "max" of Artetxe and Schwenk (ACL 2019) and of XTREME's
    baseline. Among all pairs of a vector and its best match, the pair with the highest
    score whose vectors are both free is taken, until there is none.

    Returns:
      pairs of indices, int64 [pairs, 2], the best first, and their scores.
    """
    first, second = len(matches.forward), len(matches.backward)
    pairs = np.concatenate(
        [
            np.stack([np.arange(first), matches.forward], axis=1),
            np.stack([matches.backward, np.arange(second)], axis=1),
        ]
    )
    scores = np.concatenate([matches.forward_scores, matches.backward_scores])
    order = np.argsort(-scores, kind="stable")
    free_first, free_second = np.ones(first, bool), np.ones(second, bool)
    indices = []
    for index in order:
        left, right = pairs[index]
        if free_first[left] and free_second[right]:
            free_first[left] = free_second[right] = False
            indices.append(index)
    return pairs[indices], scores[indices]


def best_threshold(
    scores: np.ndarray, are_right: np.ndarray, num_gold: int
) -> tuple[float, float]:
    """The threshold with the highest F1, and this F1 in percent.

    Of several thresholds it is the highest. It is halfway between the last score that
    is kept and the next one, or the lowest score if all are kept. `scores` are float64
    and descending, and `num_gold` is at least 1.
    """
    pair_counts = np.arange(1, len(scores) + 1)
    # 2 * right / (pairs + gold) is the harmonic mean of precision and recall.
    f1 = 2 * np.cumsum(are_right) / (pair_counts + num_gold)
    # No threshold can tell equal scores apart.
    is_last_of_equals = np.append(scores[:-1] != scores[1:], True)
    best = int(np.argmax(np.where(is_last_of_equals, f1, -1.0)))
    next_score = scores[best + 1] if best + 1 < len(scores) else scores[best]
    return float((scores[best] + next_score) / 2), 100 * float(f1[best])
