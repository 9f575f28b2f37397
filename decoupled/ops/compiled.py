"""Arithmetic of many passes compiled into one.

TensorFlow runs one kernel per operation, and each reads and writes memory: on a CPU the
gradient of GELU alone takes ten passes over [tokens, intermediate]. XLA makes one loop
of them, over all cores. It pays for chains of elementwise operations, with sums along
rows at most; sums over rows and matrix products are faster as TensorFlow's own kernels
(docs/performance_experiments.md).
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator

from decoupled.core.compat import tf

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


@functools.cache
def compile_first_quietly() -> None:
    """Compiles a kernel whose announcement nobody sees; later ones announce nothing.

    XLA announces the first kernel of a process on stderr, in two lines that no level of
    logging leaves out. Here that kernel is tiny, and what is written to stderr while it
    is compiled and run is dropped: a fraction of a second. What fails is raised as
    ever. Nothing happens where TF_CPP_MIN_LOG_LEVEL is 0, which shows every line.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    # Of its own: GPUs are left to the sessions that use them.
    config = tf.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.Session(config=config) as session, _no_stderr():
        given = tf.placeholder(tf.float32, [1])
        session.run(compiled(tf.exp)(given), {given: [0.0]})


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Drops what the process writes to stderr, from C++ too."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class _CompiledWhereLarge:
    def __init__(self, function):
        self.python_function = function
        self._kernel = compiled(function)

    def __call__(self, *arguments):
        tensors = [x for x in arguments if isinstance(x, tf.Tensor)]
        large = any(x.shape.num_elements() >= _LARGE for x in tensors)
        return (self._kernel if large else self.python_function)(*arguments)
