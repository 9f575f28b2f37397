"""Spearman's rho and its interval, by hand and against scipy."""

import numpy as np
import pytest
from scipy import stats

from decoupled.analyses.rank_correlation import correlate, interval, ranks, spearman


def test_equal_values_share_the_mean_of_their_ranks():
    assert ranks(np.array([10, 30, 20, 20, 5])).tolist() == [2, 5, 3.5, 3.5, 1]


def test_by_hand():
    # 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15)
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("values", [4, 1000])
def test_against_scipy_with_and_without_ties(seed, values):
    first, second = np.random.default_rng(seed).integers(0, values, [2, 50])
    expected = stats.spearmanr(first, second).statistic
    assert spearman(first, second) == pytest.approx(expected, abs=1e-12)
    np.testing.assert_array_equal(ranks(first), stats.rankdata(first))


def test_what_has_one_value_has_no_correlation():
    assert correlate(np.ones(9), np.arange(9)) == (None, None, None)
    assert correlate(np.array([1.0]), np.array([2.0])) == (None, None, None)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="3 values and 2 values"):
        spearman([1, 2, 3], [1, 2])


def test_interval_by_hand():
    # rho 0: tanh(1.959964 / sqrt(100)).
    assert interval(0.0, 103) == pytest.approx((-0.193525, 0.193525), abs=1e-6)
    # rho 0.5: z = 0.549306, width 1.959964 * sqrt(1.125 / 25) = 0.415771.
    assert interval(0.5, 28) == pytest.approx((0.132747, 0.746533), abs=1e-5)


def test_interval_of_few_pairs_and_of_perfect_order():
    assert interval(0.5, 3) == (None, None)
    assert interval(1.0, 10) == (1.0, 1.0)


def test_intervals_hold_the_truth_in_95_of_100_samples():
    generator = np.random.default_rng(0)
    true_pearson = 0.6
    truth = 6 / np.pi * np.arcsin(true_pearson / 2)
    held = 0
    for _ in range(1000):
        first, noise = generator.normal(size=[2, 60])
        second = true_pearson * first + np.sqrt(1 - true_pearson**2) * noise
        found = correlate(first, second)
        held += found.low <= truth <= found.high
    assert 930 <= held <= 970
