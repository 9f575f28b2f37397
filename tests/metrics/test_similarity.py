"""Correlations beside scipy's."""

import numpy as np
import pytest
import scipy.stats

from decoupled.metrics.similarity import pearson, ranks, spearman


@pytest.mark.parametrize("seed", range(3))
def test_correlations_as_scipy_has_them(seed):
    generator = np.random.default_rng(seed)
    one = generator.integers(0, 6, 40)
    other = one + generator.normal(0, 3, 40)
    assert pearson(one, other) == pytest.approx(scipy.stats.pearsonr(one, other)[0])
    assert spearman(one, other) == pytest.approx(scipy.stats.spearmanr(one, other)[0])
    np.testing.assert_array_equal(ranks(one), scipy.stats.rankdata(one))


@pytest.mark.parametrize("size", [1e-200, 1e-5, 1e200])
def test_the_size_of_numbers_does_not_matter(size):
    one = np.array([1.0, 2.0, 4.0])
    assert pearson(size * one, [3, 1, 2]) == pytest.approx(pearson(one, [3, 1, 2]))


def test_no_correlation_with_a_constant():
    for one, other in (([1, 2], [3, 3]), ([0.1] * 7, range(7)), ([], [])):
        assert pearson(one, other) is None
        assert spearman(one, other) is None


def test_lengths_must_be_equal():
    with pytest.raises(ValueError):
        pearson([1, 2], [1, 2, 3])
