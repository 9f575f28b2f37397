"""Kernels for a CPU: chains of elementwise operations compiled into one, and sums.

TensorFlow runs one kernel per operation, and each reads and writes memory: on a CPU the
gradient of GELU alone takes ten passes over [tokens, intermediate]. XLA compiles them
into one loop over all cores. This pays for chains of elementwise operations, which may
contain sums along rows. Sums over rows and matrix products are faster as TensorFlow's
own kernels (docs/performance.md).

A sum over rows is a matrix product with ones, and a weighted sum along rows one with
the weights: TensorFlow's reductions take two to five times as long. In programs of XLA
they are reductions, which are fast there; a TPU would round the factors of a product to
bfloat16.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.local import ones, reshape
from decoupled.ops.meshes.placement import PlacementMeshImpl

# Number of partial sums of a row: the float32 elements of one AVX-512 register.
_LANES = 16
# Compiling a kernel pays if its largest argument has at least so many elements.
_LARGE = 2**16


def compiled(function: Callable) -> Callable:
    """An elementwise function as one kernel, compiled once per shape and dtype."""
    return tf.function(function, jit_compile=True, autograph=False)


def is_large(x: tf.Tensor) -> bool:
    """Whether compiling a kernel pays that has this argument, of static shape."""
    return x.shape.num_elements() >= _LARGE


class compiled_where_large:  # a decorator
    """As `compiled`, but runs `function` uncompiled if all its tensors are small."""

    def __init__(self, function: Callable):
        self.python_function = function
        self._kernel = compiled(function)

    def __call__(self, *arguments: Any) -> Any:
        has_large = any(is_large(x) for x in arguments if isinstance(x, tf.Tensor))
        return (self._kernel if has_large else self.python_function)(*arguments)


def row_sums(x: tf.Tensor) -> tf.Tensor:
    """Sums along rows, for kernels that are compiled: [..., d] to [..., 1]."""
    # On a CPU, XLA adds up a row element by element, and each addition waits for the
    # one before. 16 partial sums are computed in parallel.
    width = x.shape[-1]
    if width % _LANES == 0:
        x = tf.add_n(tf.split(x, width // _LANES, axis=-1))
    return tf.reduce_sum(x, axis=-1, keepdims=True)


def sums_over_rows(mesh_impl: mtf.MeshImpl, x: Any) -> Any:
    """Sums over rows within each slice, [..., columns] to [columns], in float32; laid
    out, of x's dtype."""
    on_host = isinstance(mesh_impl, PlacementMeshImpl)
    return mesh_impl.slicewise(_product_over_rows if on_host else _sum_over_rows, x)


def sums_along_rows(mesh_impl: mtf.MeshImpl, x: Any, weights: Any) -> Any:
    """Sums along rows within each slice, [..., columns] to [..., 1], weighted by
    [columns]; all laid out and float32."""
    on_host = isinstance(mesh_impl, PlacementMeshImpl)
    function = _product_along_rows if on_host else _sum_along_rows
    return mesh_impl.slicewise(function, x, weights)


def _product_over_rows(x: tf.Tensor) -> tf.Tensor:
    columns = x.shape[-1]
    matrix = reshape(x, [-1, columns])
    return reshape(tf.matmul(ones([1, matrix.shape[0]], x.dtype), matrix), [columns])


def _sum_over_rows(x: tf.Tensor) -> tf.Tensor:
    sums = tf.reduce_sum(tf.cast(x, tf.float32), axis=list(range(len(x.shape) - 1)))
    return tf.cast(sums, x.dtype)


def _product_along_rows(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    columns = x.shape[-1]
    y = tf.matmul(reshape(x, [-1, columns]), reshape(weights, [columns, 1]))
    return reshape(y, [*x.shape[:-1], 1])


def _sum_along_rows(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x * weights, axis=-1, keepdims=True)


@functools.cache
def compile_first_quietly() -> None:
    """Compiles a tiny kernel, so that later ones write nothing to stderr.

    XLA announces the first kernel of a process there, in two lines that no log level
    hides. TF_CPP_MIN_LOG_LEVEL=0 asks for every line.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    config = tf.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.Session(config=config) as session, _no_stderr():
        x = tf.placeholder(tf.float32, [1])
        session.run(compiled(tf.exp)(x), {x: [0.0]})


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Drops what the process writes to stderr, from C++ too."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as devnull:
            os.dup2(devnull.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
