"""CKA in closed form, and neighbours that are known."""

import numpy as np
import pytest

from decoupled.metrics import likeness
from decoupled.metrics.likeness import CrossMoments, nearest, overlap


def cka(first, second, batch=100):
    moments = CrossMoments(first.shape[1], second.shape[1])
    for start in range(0, len(first), batch):
        moments.add(first[start : start + batch], second[start : start + batch])
    return moments.cka()


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).normal(2, 1, [60, 5])


def test_the_same_vectors_are_alike(vectors):
    assert cka(vectors, vectors) == pytest.approx(1)


def test_rotating_scaling_and_moving_changes_nothing(vectors):
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=[5, 5]))
    assert cka(vectors, 7 * vectors @ rotation + 3) == pytest.approx(1)


def test_what_shares_nothing_linear_is_0():
    x = np.array([1.0, 1, -1, -1])[:, np.newaxis]
    y = np.array([1.0, -1, 1, -1])[:, np.newaxis]
    assert cka(x, y) == pytest.approx(0, abs=1e-15)


def test_by_hand_for_one_of_two_directions():
    # Two uncorrelated directions of equal variance, of which the other model keeps one:
    # |X'Y|^2 = 1, |X'X| = sqrt(2), |Y'Y| = 1.
    x = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    assert cka(x, x[:, :1]) == pytest.approx(1 / np.sqrt(2))


def test_against_centred_gram_matrices_of_tokens(vectors):
    other = np.tanh(vectors[:, :3]) + np.random.default_rng(2).normal(size=[60, 3])
    centre = np.eye(60) - 1 / 60
    grams = [centre @ x @ x.T @ centre for x in (vectors, other)]
    hsic = [
        (a * b).sum()
        for a, b in ((grams[0], grams[1]), *zip(grams, grams, strict=True))
    ]
    expected = hsic[0] / np.sqrt(hsic[1] * hsic[2])
    assert 0.05 < expected < 0.95
    assert cka(vectors, other) == pytest.approx(expected)
    assert cka(vectors, other, batch=7) == pytest.approx(expected)


def test_constant_vectors_have_no_cka(vectors):
    assert cka(vectors, np.zeros([60, 2])) is None
    assert CrossMoments(2, 2).cka() is None


def test_neighbours_on_a_circle():
    """Rows at angles of 0, 10, 25 and 180 degrees; lengths do not matter."""
    angles = np.deg2rad([0, 10, 25, 180])
    table = np.stack([np.cos(angles), np.sin(angles)], 1) * [[1], [7], [2], [3]]
    found = nearest(table, np.arange(4), 1)
    assert found.ravel().tolist() == [1, 0, 1, 2]
    assert set(nearest(table, np.array([1]), 2)[0]) == {0, 2}


def test_neighbours_in_blocks(monkeypatch):
    table = np.random.default_rng(0).normal(size=[50, 6])
    queries = np.array([3, 7, 8, 40, 49])
    whole = nearest(table, queries, 5)
    monkeypatch.setattr(likeness, "_BLOCK_VALUES", 100)
    assert np.array_equal(np.sort(nearest(table, queries, 5)), np.sort(whole))


def test_a_row_of_zeros_is_near_to_nothing():
    table = np.array([[1.0, 0], [1, 0.1], [0, 0], [1, 0.2]])
    found = nearest(table, np.arange(4), 2)
    assert np.isfinite(table).all()
    assert set(found[0]) == {1, 3} and 2 not in found[[0, 1, 3]]


def test_the_share_of_common_neighbours():
    first, second = np.array([[1, 2], [3, 4]]), np.array([[2, 9], [4, 3]])
    assert overlap(first, second) == 0.75


def test_unrelated_tables_share_neighbours_as_often_as_draws_do():
    generator = np.random.default_rng(1)
    tables = (generator.normal(size=[600, 9]), generator.normal(size=[600, 9]))
    found = [nearest(table, np.arange(600), 30) for table in tables]
    assert overlap(*found) == pytest.approx(30 / 599, rel=0.1)
