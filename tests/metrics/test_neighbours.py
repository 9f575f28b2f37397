"""Nearest neighbours: by hand, and against scipy's full matrices of distances.

Mined pairs and their threshold: by hand, and against all thresholds there are.
"""

import tracemalloc

import numpy as np
import pytest

from decoupled.configs import SCORINGS
from decoupled.metrics.labels import set_scores
from decoupled.metrics.neighbours import (
    Matches,
    best_matches,
    best_threshold,
    mean_interval,
    mine,
    neighbour_means,
    wilson_interval,
)


def vectors(count, seed, size=6):
    """Vectors around a common mean, as those of sentences are."""
    return np.random.default_rng(seed).normal(0.7, 1, [count, size]).astype(np.float32)


def full_scores(first, second, scoring, num_neighbours):
    """All scores at once, from scipy's distances in float64."""
    distance = pytest.importorskip("scipy.spatial.distance")
    first, second = first.astype(np.float64), second.astype(np.float64)
    if scoring == "euclidean":
        return -distance.cdist(first, second, "sqeuclidean")
    cosines = 1 - distance.cdist(first, second, "cosine")
    if scoring == "cosine":
        return cosines
    forward = np.sort(cosines, axis=1)[:, ::-1][:, :num_neighbours].mean(axis=1)
    backward = np.sort(cosines, axis=0)[::-1][:num_neighbours].mean(axis=0)
    both = (forward[:, None] + backward[None]) / 2
    return cosines / both if scoring == "ratio_margin" else cosines - both


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("block", [1, 7, 1000])
def test_the_best_of_all_whatever_the_blocks(scoring, block):
    first, second = vectors(40, 1), vectors(23, 2)
    scores = full_scores(first, second, scoring, num_neighbours=4)
    matches = best_matches(first, second, scoring, 4, block)
    np.testing.assert_array_equal(matches.forward, scores.argmax(axis=1))
    np.testing.assert_array_equal(matches.backward, scores.argmax(axis=0))
    np.testing.assert_allclose(matches.forward_scores, scores.max(axis=1), atol=1e-5)
    np.testing.assert_allclose(matches.backward_scores, scores.max(axis=0), atol=1e-5)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_vectors_that_are_nearly_parallel_are_told_apart(scoring):
    shared = 3 + np.arange(64) % 5
    near = [(shared + 2e-3 * vectors(30, s, 64)).astype(np.float32) for s in (5, 6)]
    scores = full_scores(*near, scoring, num_neighbours=4)
    matches = best_matches(*near, scoring, 4)
    np.testing.assert_array_equal(matches.forward, scores.argmax(axis=1))
    assert matches.forward_scores.dtype == np.float64


# The last asks for more than there are: all are neighbours.
@pytest.mark.parametrize("block, count", [(2, 3), (5, 3), (100, 3), (100, 20)])
def test_means_of_the_nearest(block, count):
    first, second = vectors(9, 3), vectors(14, 4)
    cosines = full_scores(first, second, "cosine", 0)
    forward, backward = neighbour_means(first, second, count, block)
    expected = np.sort(cosines, axis=1)[:, -count:].mean(axis=1)
    np.testing.assert_allclose(forward, expected, atol=1e-6)
    expected = np.sort(cosines, axis=0)[-count:].mean(axis=0)
    np.testing.assert_allclose(backward, expected, atol=1e-6)


@pytest.mark.parametrize("block", [1, 2, 10])
def test_of_equal_vectors_the_first_counts(block):
    first = np.array([[1.0, 1.0], [1.0, -1.0]])
    second = np.array([[1.0, -1.0], [1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
    matches = best_matches(first, second, "cosine", 1, block)
    assert matches.forward.tolist() == [1, 0]
    assert matches.backward.tolist() == [1, 0, 0, 1]


def test_a_vector_of_zeros_is_close_to_nothing():
    first = np.array([[0.0, 0.0], [1.0, 2.0]])
    for scoring in SCORINGS:
        matches = best_matches(first, first, scoring, 2)
        assert np.isfinite(matches.forward_scores).all()
        assert matches.forward[1] == 1


def test_memory_is_that_of_blocks():
    first, second = vectors(2000, 7), vectors(2000, 8)
    matrix = 2000 * 2000 * 4
    tracemalloc.start()
    best_matches(first, second, "ratio_margin", 4, block=128)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < matrix / 10


def test_progress_covers_all_blocks_and_margins_go_over_them_twice():
    seen = []

    def progress(blocks):
        seen.append(len(blocks))
        return blocks

    first, second = vectors(10, 1), vectors(7, 2)
    best_matches(first, second, "cosine", 4, 4, progress)
    best_matches(first, second, "ratio_margin", 4, 4, progress)
    assert seen == [6, 6, 6]


@pytest.mark.parametrize("right, of", [(0, 10), (3, 10), (10, 10), (412, 5000)])
def test_wilson_interval(right, of):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(right, of).proportion_ci(0.95, "wilson")
    result = wilson_interval(right, of)
    assert result == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= result[0] < result[1] <= 1


def test_interval_of_a_mean_is_the_normal_distribution_s():
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).normal(3, 2, 50)
    expected = stats.norm.interval(0.95, values.mean(), stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected)
    assert mean_interval(values[:1]) == (values[0], values[0])


def test_pairs_are_taken_greedily_from_both_directions():
    matches = Matches(
        forward=np.array([0, 0, 1]),
        forward_scores=np.array([0.9, 0.8, 0.3]),
        backward=np.array([0, 1]),
        backward_scores=np.array([0.9, 0.7]),
    )
    pairs, scores = mine(matches)
    # (1, 0) comes second, but 0 is taken; then (1, 1) takes 1 away from (2, 1).
    assert pairs.tolist() == [[0, 0], [1, 1]]
    assert scores == pytest.approx([0.9, 0.7])


@pytest.mark.parametrize(
    "scores, are_right, threshold",
    [
        # 1 of 1, 1 of 2, 2 of 3, 2 of 4: F1 2/3, 1/2, 4/5, 2/3.
        ([0.9, 0.8, 0.6, 0.2], [True, False, True, False], 0.4),
        # Without the last of the equal ones F1 would be 100.
        ([0.9, 0.5, 0.5, 0.1], [True, True, False, False], 0.3),
    ],
)
def test_threshold_by_hand(scores, are_right, threshold):
    best = best_threshold(np.array(scores), np.array(are_right), 2)
    assert best == pytest.approx((threshold, 80))


def test_where_nothing_is_right_the_threshold_is_high():
    threshold, f1 = best_threshold(np.array([0.9, 0.5]), np.array([False, False]), 5)
    assert f1 == 0
    assert 0.5 < threshold <= 0.9


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_is_better(seed):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 30))
    # Few values, so that some are equal.
    scores = np.sort(generator.integers(0, 12, count) / 10)[::-1].astype(np.float32)
    names = [(f"x-{i}", f"y-{i}") for i in range(count)]
    gold = {name for name in names if generator.random() < 0.4} | {("x-0", "y-77")}
    are_right = np.array([name in gold for name in names])
    threshold, best = best_threshold(scores, are_right, len(gold))

    def f1(threshold):
        kept = zip(names, scores, strict=True)
        return set_scores(gold, [n for n, s in kept if s >= threshold])["f1"]

    assert f1(threshold) == pytest.approx(best)
    assert best == pytest.approx(max(map(f1, scores)))
