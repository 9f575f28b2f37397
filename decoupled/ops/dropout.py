"""Dropout whose masks are a pure function of (seed, step), so that runs can resume.

`mtf.dropout` draws its seeds from Python's `random` and `hash`, which differ between
processes.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoupled.core.compat import mtf, tf
from decoupled.ops.local import mesh_op


def dropout(
    x: mtf.Tensor, rate: float, seed: mtf.Tensor | None, name: str
) -> mtf.Tensor:
    """Zeroes a share `rate` of `x` and scales the rest by 1 / (1 - rate).

    `seed` is an int32 scalar that changes from step to step, or None outside training.
    Equal names give equal masks. Each slice of a split dimension has another mask.
    """
    if seed is None or rate == 0:
        return x
    salt = zlib.crc32(name.encode("utf-8")) % 2**30

    def lower(mesh_impl: mtf.MeshImpl, seed: Any) -> list:
        slice_shape = mesh_impl.slice_shape(x.shape)

        def mask(seed: tf.Tensor, part: tf.Tensor | int) -> tf.Tensor:
            pair = tf.stack([tf.reshape(seed, []), salt + part])
            is_kept = _uniform(slice_shape, pair) >= np.float32(rate) * 2**23
            return tf.cast(is_kept, x.dtype) / (1.0 - rate)

        return [mesh_impl.slicewise(mask, seed, _slice_index(mesh_impl, x.shape))]

    return x * mesh_op("dropout_mask", lower, [seed], [x])[0]


def _uniform(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """Uniform integers in [0, 2^23) as float32, the same wherever they are drawn."""
    # `tf.random.stateless_uniform` of floats gives other values where XLA compiles it,
    # because XLA uses other bits of the generator.
    bits = tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    return tf.cast(tf.bitwise.bitwise_and(bits, 2**23 - 1), tf.float32)


def _slice_index(mesh_impl: mtf.MeshImpl, shape: mtf.Shape) -> Any:
    """The index of each device's slice; equal slices have equal indexes."""
    index = 0
    for dimension in shape.dims:
        axis = mesh_impl.tensor_dimension_to_mesh_axis(dimension)
        if axis is None:
            continue
        size = mesh_impl.shape[axis].size
        index = mesh_impl.slicewise(
            lambda i, c, size=size: i * size + c,
            index,
            mesh_impl.laid_out_pcoord(axis),
        )
    return index
