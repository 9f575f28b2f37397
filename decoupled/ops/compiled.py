"""Arithmetic of many passes compiled into one.

TensorFlow runs one kernel per operation, and each reads and writes memory: on a CPU the
gradient of GELU alone takes ten passes over [tokens, intermediate]. XLA makes one loop
of them, over all cores. It pays for chains of elementwise operations, with sums along
rows at most; sums over rows and matrix products are faster as TensorFlow's own kernels
(docs/performance.md).
"""

from collections.abc import Callable

from decoupled.compat import tf

# Partial sums of a row: those of one AVX-512 register.
_LANES = 16
# Numbers in the largest argument from which a kernel is worth the time to compile it.
_LARGE = 2**16


def compiled(function: Callable) -> Callable:
    """`function` of tensors as one kernel, compiled once per shape and dtype.

    Args:
      function: takes and returns tf.Tensor; elementwise, with broadcasting.
    """
    return tf.function(function, jit_compile=True, autograph=False)


def compiled_where_large(function: Callable) -> Callable:
    """As `compiled`, but `function` as it is where all its tensors are small."""
    return _CompiledWhereLarge(function)


def row_sums(x: tf.Tensor) -> tf.Tensor:
    """Sums along rows, for kernels that are compiled: [..., d] to [..., 1].

    XLA adds up a row one number after the other on a CPU, each waiting for the one
    before. Where 16 divides d, 16 partial sums are made side by side.
    """
    width = x.shape[-1]
    if width % _LANES == 0:
        x = tf.add_n(tf.split(x, width // _LANES, axis=-1))
    return tf.reduce_sum(x, axis=-1, keepdims=True)


class _CompiledWhereLarge:
    def __init__(self, function):
        self.python_function = function
        self._kernel = compiled(function)

    def __call__(self, *arguments):
        tensors = [x for x in arguments if isinstance(x, tf.Tensor)]
        large = any(x.shape.num_elements() >= _LARGE for x in tensors)
        return (self._kernel if large else self.python_function)(*arguments)
