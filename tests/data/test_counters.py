"""Counter-based random bits: the same in NumPy and in a graph, and random enough."""

import numpy as np

from decoupled.core.release import tf
from decoupled.data.counters import (
    Stream,
    graph_bits,
    graph_permutation,
    numpy_bits,
    numpy_permutation,
)


def test_first_values_of_splitmix64():
    # The published test vector of SplitMix64 from state 0.
    assert numpy_bits(0).tolist() == 0xE220A8397B1DCDAF


def test_graph_and_numpy_give_the_same_bits():
    rows, columns = np.arange(50)[:, None], np.arange(7) * 10**12
    expected = numpy_bits(5, Stream.LANGUAGE, rows, columns)
    found = graph_bits(5, Stream.LANGUAGE, tf.constant(rows), tf.constant(columns))
    assert expected.shape == (50, 7)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_graph_and_numpy_permute_alike():
    found = graph_permutation(tf.constant(1000), 1, Stream.CHUNK_ORDER, 2, 3)
    expected = numpy_permutation(1000, 1, Stream.CHUNK_ORDER, 2, 3)
    np.testing.assert_array_equal(found.numpy(), expected)
    assert sorted(expected) == list(range(1000))
    assert not np.array_equal(
        expected, numpy_permutation(1000, 1, Stream.CHUNK_ORDER, 2, 4)
    )


def test_each_counter_and_their_order_matter():
    assert len({int(numpy_bits(*c)) for c in ([1, 2], [2, 1], [1, 3], [1], [2])}) == 5


def test_bits_are_balanced():
    bits = numpy_bits(7, np.arange(20_000))
    for place in range(64):
        ones = int(((bits >> np.uint64(place)) & np.uint64(1)).sum())
        assert abs(ones - 10_000) < 5 * np.sqrt(20_000 / 4)
