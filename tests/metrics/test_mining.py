"""Mined pairs and their threshold: by hand, and against all thresholds there are."""

import numpy as np
import pytest

from decoupled.metrics.mining import best_threshold, mine, pair_scores
from decoupled.metrics.neighbours import Matches, best_matches


def test_pairs_are_taken_greedily_from_both_directions():
    matches = Matches(
        forward=np.array([0, 0, 1]),
        forward_scores=np.array([0.9, 0.8, 0.3]),
        backward=np.array([0, 1]),
        backward_scores=np.array([0.9, 0.7]),
    )
    found = mine(matches)
    # (1, 0) comes second, but 0 is taken; then (1, 1) takes 1 away from (2, 1).
    assert found.pairs.tolist() == [[0, 0], [1, 1]]
    assert found.scores == pytest.approx([0.9, 0.7])


def test_no_place_stands_twice_and_scores_fall():
    generator = np.random.default_rng(0)
    first, second = (generator.normal(1, 1, [n, 5]) for n in (60, 45))
    found = mine(best_matches(first, second, "ratio_margin", 4))
    for side in found.pairs.T:
        assert len(set(side)) == len(side)
    assert (np.diff(found.scores) <= 0).all()


def test_threshold_by_hand():
    scores = np.array([0.9, 0.8, 0.6, 0.2])
    threshold = best_threshold(scores, np.array([True, False, True, False]), 2)
    # 1 of 1, 1 of 2, 2 of 3, 2 of 4: F1 2/3, 1/2, 4/5, 2/3.
    assert threshold.score == pytest.approx(0.4)
    assert threshold.f1 == pytest.approx(80)


def test_all_count_where_that_is_best():
    threshold = best_threshold(np.array([3.0, 1.0]), np.array([False, True]), 1)
    assert threshold.score == 1.0


def test_equal_scores_stand_and_fall_together():
    scores = np.array([0.9, 0.5, 0.5, 0.1])
    # Without the last of the equal ones F1 would be 100.
    threshold = best_threshold(scores, np.array([True, True, False, False]), 2)
    assert threshold.f1 == pytest.approx(80)
    assert threshold.score == pytest.approx(0.3)


def test_where_nothing_is_right_the_threshold_is_high():
    threshold = best_threshold(np.array([0.9, 0.5]), np.array([False, False]), 5)
    assert threshold.f1 == 0
    assert 0.5 < threshold.score <= 0.9


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_is_better(seed):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 30))
    # Few values, so that some are equal.
    scores = np.sort(generator.integers(0, 12, count) / 10)[::-1].astype(np.float32)
    names = [(f"x-{i}", f"y-{i}") for i in range(count)]
    gold = {name for name in names if generator.random() < 0.4} | {("x-0", "y-77")}
    found = best_threshold(scores, np.array([n in gold for n in names]), len(gold))

    def f1(threshold):
        kept = zip(names, scores, strict=True)
        return pair_scores(gold, [n for n, s in kept if s >= threshold])["f1"]

    assert f1(found.score) == pytest.approx(found.f1)
    assert found.f1 == pytest.approx(max(map(f1, scores)))


GOLD = [("de-1", "en-7"), ("de-2", "en-8"), ("de-3", "en-9"), ("de-4", "en-1")]


@pytest.mark.parametrize(
    "predictions, f1, precision, recall",
    [
        (GOLD, 100, 100, 100),
        (GOLD[::-1] + GOLD, 100, 100, 100),
        (GOLD[:1] + [("de-2", "en-9")], 100 / 3, 50, 25),
        (GOLD[:3] + [("de-9", "en-9")] * 3, 75, 75, 75),
        ([tuple(reversed(pair)) for pair in GOLD], 0, 0, 0),
        ([], 0, 0, 0),
    ],
)
def test_sets_of_pairs(predictions, f1, precision, recall):
    expected = {"f1": f1, "precision": precision, "recall": recall}
    assert pair_scores(GOLD, predictions) == pytest.approx(expected, abs=1e-12)
