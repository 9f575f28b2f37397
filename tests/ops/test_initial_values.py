"""Truncated normal values are TensorFlow's, drawn whole or some rows at a time."""

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.ops.initial_values import truncated_normal

SEED = [7, 12345]


@pytest.fixture(scope="module")
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def expected(session, shape):
    drawn = tf.random.stateless_truncated_normal(shape, SEED, stddev=0.02)
    return session.run(drawn)


@pytest.mark.parametrize("shape", [[9], [1001, 7], [64, 48], [3, 5, 6], [0, 4]])
def test_whole(session, shape):
    found = session.run(truncated_normal(shape, SEED, 0.02))
    np.testing.assert_array_equal(found, expected(session, shape))


@pytest.mark.parametrize(
    ("columns", "first", "rows"),
    [(7, 0, 10), (7, 4, 3), (7, 101, 501), (7, 999, 2), (6, 3, 500), (128, 77, 900)],
)
def test_some_rows_of_a_matrix(session, columns, first, rows):
    found = session.run(truncated_normal([rows, columns], SEED, 0.02, first))
    whole = expected(session, [1001, columns])
    np.testing.assert_array_equal(found, whole[first : first + rows])


def test_some_rows_of_more_dimensions(session):
    found = session.run(truncated_normal([2, 3, 5], SEED, 1.0, first_row=4))
    whole = tf.random.stateless_truncated_normal([7, 3, 5], SEED)
    np.testing.assert_array_equal(found, session.run(whole)[4:6])
