"""Random bits as a pure function of counters, bit-equal in NumPy and in a graph.

A draw is a function of integers, such as (seed, stream, sequence index), and needs no
state. Any part of the data stream can be computed without what comes before it, and
its value does not depend on batch sizes, threads or devices. The mixing function is
SplitMix64 (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195), applied once per
counter. `tf.random.stateless_uniform` is not suitable: NumPy has no equivalent, and its
values for one sequence depend on the shape of the whole batch.
"""

import enum
import itertools

import numpy as np

from decoupled.core.release import tf

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_COUNTER_MASK = (1 << 64) - 1


class Stream(enum.IntEnum):
    """The purpose of a draw. Different streams of one seed are independent."""

    LANGUAGE = 0
    SHARD_ORDER = 1
    CHUNK_ORDER = 2
    MASK_POSITION = 3
    MASK_ACTION = 4
    MASK_PIECE = 5
    PHASE = 6


def numpy_bits(*counters) -> np.ndarray:
    """64 random bits for each combination of the counters, integers or integer arrays,
    which are broadcast."""
    key = np.zeros((1,), np.uint64)
    shape = np.broadcast_shapes(*(np.shape(counter) for counter in counters))
    for counter in counters:
        steps = _as_uint64(counter) + np.uint64(1)
        key = _numpy_mix(key + steps * np.uint64(_GAMMA))
    return key.reshape(shape)


def graph_bits(*counters) -> tf.Tensor:
    """As `numpy_bits`, with tensors: the same counters give the same bits."""
    # The integers before the first tensor are mixed here, and not in the graph.
    constants = list(itertools.takewhile(lambda x: isinstance(x, int), counters))
    key = tf.constant(numpy_bits(*constants).item() if constants else 0, tf.uint64)
    for counter in counters[len(constants) :]:
        steps = _as_uint64_tensor(counter) + tf.constant(1, tf.uint64)
        key = _graph_mix(key + steps * tf.constant(_GAMMA, tf.uint64))
    return key


def numpy_permutation(size: int, *counters) -> np.ndarray:
    """A permutation of range(size), int64 [size]; a function of the counters."""
    keys = numpy_bits(*counters, np.arange(size)) >> np.uint64(1)
    return np.argsort(keys, kind="stable")


def graph_permutation(size: tf.Tensor, *counters) -> tf.Tensor:
    """As `numpy_permutation`, int32 [size], in a graph."""
    keys = shift_right(graph_bits(*counters, tf.range(size)), 1)
    return tf.argsort(tf.cast(keys, tf.int64), stable=True)


def shift_right(bits: tf.Tensor, count: int) -> tf.Tensor:
    """`bits >> count` of uint64."""
    return tf.bitwise.right_shift(bits, tf.constant(count, tf.uint64))


def _as_uint64(counter) -> np.ndarray:
    if isinstance(counter, int):
        return np.array([counter & _COUNTER_MASK], np.uint64)
    return np.atleast_1d(counter).astype(np.uint64)


def _as_uint64_tensor(counter) -> tf.Tensor:
    if isinstance(counter, int):
        return tf.constant(counter & _COUNTER_MASK, tf.uint64)
    return tf.cast(counter, tf.uint64)


def _numpy_mix(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_MIX_1)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_MIX_2)
    return bits ^ (bits >> np.uint64(31))


def _graph_mix(bits: tf.Tensor) -> tf.Tensor:
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        bits = tf.bitwise.bitwise_xor(bits, shift_right(bits, shift))
        bits = bits * tf.constant(factor, tf.uint64)
    return tf.bitwise.bitwise_xor(bits, shift_right(bits, 31))
