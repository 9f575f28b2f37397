"""Arithmetic of many passes compiled into one.

TensorFlow runs one kernel per operation, and each reads and writes memory: on a CPU the
gradient of GELU alone takes ten passes over [tokens, intermediate]. XLA makes one loop
of them, over all cores. It pays for chains of elementwise operations only; reductions
and matrix products are faster as TensorFlow's own kernels (docs/performance.md).
"""

from collections.abc import Callable

from decoupled.compat import tf


def compiled(function: Callable) -> Callable:
    """`function` of tensors as one kernel, compiled once per shape and dtype.

    Args:
      function: takes and returns tf.Tensor; elementwise, with broadcasting.
    """
    return tf.function(function, jit_compile=True, autograph=False)
