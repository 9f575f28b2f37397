"""Weights in bfloat16: updated in float32, then written with stochastic rounding.

bfloat16 has 8 bits of significand. Most updates are smaller than half of a weight's
last bit, and rounding to the nearest value loses them. Stochastic rounding rounds up
with a probability equal to the fraction that is cut off, and so keeps the update on
average (Gupta et al. 2015, section 3; Zamirai et al. 2020, "Revisiting BFloat16
Training", for updates of bfloat16 weights). A float32 copy of the weights, or a
correction for each, would use up the memory that bfloat16 saves.

The noise of an element is a hash of the run's seed, the step, the variable's name and
the element's index in the whole variable, as in counter-based generators (Salmon et al.
2011). It is mixed by the last steps of MurmurHash3 (Appleby 2011). Hence copies of a
slice on several devices stay equal, a resumed run continues exactly, and the noise is
the same on every mesh. One kernel reads the weights, computes the noise and the update,
rounds and writes, without a float32 copy of a slice.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from decoupled.core.compat import mtf, tf
from decoupled.ops.kernels import compiled
from decoupled.ops.local import shard_of
from decoupled.ops.meshes.simd import slices_of


def rounded(update: Callable) -> Callable:
    """A compiled kernel for `update_rounded`, from an elementwise function of float32
    weights and further tensors. It takes a slice, its `key`, the sizes of the whole
    variable and the further tensors, and returns the new slice in bfloat16."""

    def kernel(
        weights: tf.Tensor, key: tf.Tensor, sizes: Sequence[int], *inputs: tf.Tensor
    ) -> tf.Tensor:
        new_weights = update(tf.cast(weights, tf.float32), *inputs)
        part = weights.shape.as_list()[len(weights.shape) - len(sizes) :]
        return round_by(new_weights, noise(key, sizes, part))

    return compiled(kernel)


def update_rounded(
    lowering: mtf.Lowering,
    variables: Sequence[mtf.Variable],
    kernel: Callable,
    seed: Any,
    *inputs: Any,
) -> Any:
    """Replaces the slices of variables by the results of `kernel`, from `rounded`.

    Several variables are a stack. Returns laid-out dummy scalars, which are available
    once the slices are written.
    """
    mesh_impl = lowering.mesh_impl(variables[0])
    slices = slices_of(lowering, variables)
    shape = variables[0].shape
    salts = [zlib.crc32(v.name.encode("utf-8")) & 0x7FFFFFFF for v in variables]
    shards = [shard_of(mesh_impl, dimension) for dimension in shape.dims]

    def key(seed: tf.Tensor, *coordinates: tf.Tensor | int) -> tf.Tensor:
        begins = [c * s.size for c, s in zip(coordinates, shards, strict=True)]
        if len(salts) == 1:
            return tf.stack([seed, *salts, *begins])
        columns = [tf.fill([len(salts)], x) for x in (seed, *begins)]
        return tf.stack([columns[0], tf.constant(salts), *columns[1:]], axis=-1)

    keys = mesh_impl.slicewise(key, seed, *[shard.coordinate for shard in shards])
    weights = mesh_impl.slicewise(read_slice, slices)
    sizes = tuple(shape.to_integer_list)
    new_weights = mesh_impl.slicewise(kernel, weights, keys, sizes, *inputs)
    return mesh_impl.slicewise(_write_slice, slices, new_weights)


def read_slice(variable: tf.Variable) -> tf.Tensor:
    """The value of a slice, in the dtype that it is stored in."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _write_slice(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    write = variable.assign(value, read_value=False)
    with tf.control_dependencies([write]):
        return tf.zeros([])


def round_by(x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """`x` rounded stochastically to one of the two nearest bfloat16, with mean `x`."""
    # A bfloat16 is the upper half of a float32. Adding 16 random bits, the upper ones
    # of `noise`, carries into it with the probability of the lower half, exactly.
    bits = tf.bitcast(x, tf.uint32) + tf.bitwise.right_shift(noise, _uint32(16))
    upper = tf.bitwise.bitwise_and(bits, _uint32(0xFFFF0000))
    result = tf.where_v2(tf.math.is_finite(x), tf.bitcast(upper, tf.float32), x)
    return tf.cast(result, tf.bfloat16)


def noise(key: tf.Tensor, sizes: Sequence[int], part: Sequence[int]) -> tf.Tensor:
    """Random bits, uint32 [..., *part], for the elements of slices of shape `part`.

    `key`, int32 [..., 2 + rank], has seed, salt, and the index of a slice's first
    element along each dimension of the variable, whose shape is `sizes`. The bits of an
    element are a function of seed, salt and its index in the variable.
    """
    stack_shape = key.shape.as_list()[:-1]
    seed, salt, *begins = tf.unstack(tf.bitcast(key, tf.uint32), axis=-1)
    index = tf.zeros(stack_shape, tf.uint32)
    for axis, (begin, size, length) in enumerate(zip(begins, sizes, part, strict=True)):
        begin = tf.reshape(begin, stack_shape + [1] * (axis + 1))
        indexes = begin + tf.cast(tf.range(length), tf.uint32)
        index = tf.expand_dims(index * _uint32(size), -1) + indexes
    # Two rounds: after one, the bits of two steps would be shifted copies of one
    # sequence.
    first_key = tf.reshape(_mix(seed + _mix(salt)), stack_shape + [1] * len(part))
    second_key = _mix(first_key + _uint32(0x9E3779B9))
    return _mix(_mix(index + first_key) ^ second_key)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """A bijection of uint32; every bit of the result depends on every bit of `x`."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ tf.bitwise.right_shift(x, _uint32(shift))) * _uint32(factor)
    return x ^ tf.bitwise.right_shift(x, _uint32(16))


def _uint32(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)
