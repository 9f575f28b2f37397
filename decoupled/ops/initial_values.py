"""Truncated normal values, of which any rows can be drawn alone.

So a row-partitioned matrix starts from the same weights as a whole one, and is never
whole in memory.
"""

from collections.abc import Sequence

from decoupled.core.compat import tf

# TensorFlow draws four numbers at a time, and for each four has 256 steps of its
# generator ready, as it draws anew what lies outside.
_DRAWN_TOGETHER = 4
_STEPS = 256


def truncated_normal(
    shape: Sequence[int], seed: Sequence[int], stddev: float, first_row: int = 0
) -> tf.Tensor:
    """Rows of `tf.random.stateless_truncated_normal(..., seed, stddev=stddev)`.

    Args:
      shape: [rows, ...] of what is drawn.
      seed: two integers.
      stddev: of the normal distribution, which is cut at two of them.
      first_row: of the whole tensor, which has the same dimensions after the first.

    Returns:
      float32 values.
    """
    shape = tf.TensorShape(shape)
    size = shape.num_elements()
    before = first_row * shape[1:].num_elements()
    groups, excess = divmod(before, _DRAWN_TOGETHER)
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    values = tf.raw_ops.StatelessTruncatedNormalV2(
        shape=[excess + size],
        key=key,
        counter=counter + tf.constant([groups * _STEPS, 0], tf.uint64),
        alg=tf.raw_ops.StatelessRandomGetAlg(),
    )
    return tf.reshape(values[excess:] if excess else values, shape) * stddev
