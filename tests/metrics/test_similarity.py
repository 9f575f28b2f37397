"""Correlations beside scipy's, and CKA in closed form."""

import numpy as np
import pytest
import scipy.stats

from decoupled.metrics import similarity
from decoupled.metrics.similarity import linear_cka, pearson, ranks, spearman


@pytest.mark.parametrize("seed", range(3))
def test_correlations_as_scipy_has_them(seed):
    generator = np.random.default_rng(seed)
    one = generator.integers(0, 6, 40)
    other = one + generator.normal(0, 3, 40)
    assert pearson(one, other) == pytest.approx(scipy.stats.pearsonr(one, other)[0])
    assert spearman(one, other) == pytest.approx(scipy.stats.spearmanr(one, other)[0])
    np.testing.assert_array_equal(ranks(one), scipy.stats.rankdata(one))


def test_correlations_by_hand():
    assert ranks(np.array([10, 30, 20, 20, 5])).tolist() == [2, 5, 3.5, 3.5, 1]
    # 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15)
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)


@pytest.mark.parametrize("size", [1e-200, 1e-5, 1e200])
def test_the_size_of_numbers_does_not_matter(size):
    one = np.array([1.0, 2.0, 4.0])
    assert pearson(size * one, [3, 1, 2]) == pytest.approx(pearson(one, [3, 1, 2]))


def test_no_correlation_with_a_constant():
    for one, other in (([1, 2], [3, 3]), ([0.1] * 7, range(7)), ([], [])):
        assert pearson(one, other) is None
        assert spearman(one, other) is None


def test_lengths_must_be_equal():
    with pytest.raises(ValueError, match="1 values and 2 values"):
        pearson([1], [1, 2])


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).normal(2, 1, [60, 5])


def test_the_same_vectors_are_alike(vectors):
    assert linear_cka(vectors, vectors) == pytest.approx(1)


def test_rotating_scaling_and_moving_changes_nothing(vectors):
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=[5, 5]))
    assert linear_cka(vectors, 7 * vectors @ rotation + 3) == pytest.approx(1)


def test_what_shares_nothing_linear_is_0():
    x = np.array([1.0, 1, -1, -1])[:, np.newaxis]
    y = np.array([1.0, -1, 1, -1])[:, np.newaxis]
    assert linear_cka(x, y) == pytest.approx(0, abs=1e-15)


def test_by_hand_for_one_of_two_directions():
    # Two uncorrelated directions of equal variance, of which the other model keeps one:
    # |X'Y|^2 = 1, |X'X| = sqrt(2), |Y'Y| = 1.
    x = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    assert linear_cka(x, x[:, :1]) == pytest.approx(1 / np.sqrt(2))


def test_against_centred_gram_matrices_of_tokens(vectors, monkeypatch):
    other = np.tanh(vectors[:, :3]) + np.random.default_rng(2).normal(size=[60, 3])
    centre = np.eye(60) - 1 / 60
    grams = [centre @ x @ x.T @ centre for x in (vectors, other)]
    hsic = [
        (a * b).sum()
        for a, b in ((grams[0], grams[1]), *zip(grams, grams, strict=True))
    ]
    expected = hsic[0] / np.sqrt(hsic[1] * hsic[2])
    assert 0.05 < expected < 0.95
    assert linear_cka(vectors, other) == pytest.approx(expected)
    monkeypatch.setattr(similarity, "_BLOCK_ROWS", 7)
    assert linear_cka(vectors, other) == pytest.approx(expected)


def test_constant_vectors_have_no_cka(vectors):
    assert linear_cka(vectors, np.zeros([60, 2])) is None
    assert linear_cka(np.zeros([0, 2]), np.zeros([0, 2])) is None
