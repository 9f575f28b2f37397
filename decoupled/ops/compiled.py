"""Arithmetic of many passes compiled into one.

TensorFlow runs one kernel per operation, and each reads and writes memory: on a CPU the
gradient of GELU alone takes ten passes over [tokens, intermediate]. XLA makes one loop
of them, over all cores. It pays for chains of elementwise operations, with sums along
rows at most; sums over rows and matrix products are faster as TensorFlow's own kernels
(docs/performance.md).
"""

from collections.abc import Callable

from decoupled.compat import tf

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


class _CompiledWhereLarge:
    def __init__(self, function):
        self.python_function = function
        self._kernel = compiled(function)

    def __call__(self, *arguments):
        tensors = [x for x in arguments if isinstance(x, tf.Tensor)]
        large = any(x.shape.num_elements() >= _LARGE for x in tensors)
        return (self._kernel if large else self.python_function)(*arguments)
