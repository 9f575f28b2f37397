"""AdamW for a variable whose gradient is a product, a few of its rows at a time.

What is made of the gradient at any moment is one or two tiles, which stay in the
processor's cache between the matrix product that makes them and the update that uses
them. A large output embedding is trained without a buffer of its size beside the
weights and the two moments.

Rows are written where they are. Nothing else may have these buffers: what copies the
saved variables to the slices before the first step (`mtf.Lowering`'s
`copy_masters_to_slices`) gives the slices buffers of their own. On one device, where
the saved variable is the slice, it has its own unless its initial value was fed: do not
feed it.
"""

from decoupled.compat import tf
from decoupled.ops.adam import SliceUpdate
from decoupled.ops.compiled import compiled
from decoupled.ops.rounding import read_slice
from decoupled.ops.tiles import columns_of, in_two_lanes, row_tiles, rows_of

# Numbers in a tile: 3 MB of gradient, beside old and new weights and moments.
_TILE = 768_000
# A graph has no more tiles than this for a slice, as each of their nodes takes 12 kB of
# a process; those of the largest slices are larger.
_MOST_TILES = 128


class TiledAdamUpdate(SliceUpdate):
    """One step of bias-corrected Adam with decoupled weight decay on one variable.

    The same step as `decoupled.ops.adam.AdamUpdate`.

    Args:
      variable, moment, second_moment: mtf.Variable [rows, columns], float32.
      gradient: of that shape.
      scale: float32 scalar that multiplies it.
      numbers: of the step.
      is_decayed: whether weight decay applies.
      after: a tensor that is there once nothing else of the step will read the
        variable: the norm of all gradients. The rows are written where they are, which
        nothing but this order keeps from what reads them.
    """

    def __init__(
        self, variable, moment, second_moment, gradient, scale, numbers, is_decayed,
        *, after,
    ):  # fmt: skip
        inputs = [*gradient, scale, numbers.kept, numbers.rate, numbers.epsilon, after]
        super().__init__([variable, moment, second_moment], inputs, "tiled_adam_update")
        self._new = [1.0 - numbers.beta1, 1.0 - numbers.beta2]
        self._is_decayed = is_decayed

    def lower(self, lowering):
        for variable in self._variables:
            lowering.variables[variable].own_buffers()
        super().lower(lowering)

    def _update_slice(
        self, variable, m, v, left, right, scale, kept, rate, epsilon, after
    ):
        rows, columns = variable.shape.as_list()
        left, right = tf.reshape(left, [-1, rows]), tf.reshape(right, [-1, columns])
        kept = kept if self._is_decayed else 1.0
        numbers = [scale, kept, rate, epsilon, *self._new]
        with tf.control_dependencies([left, right, after]):
            wholes = [read_slice(x) for x in (variable, m, v)]

        def update(tile):
            old = rows_of(wholes, tile)
            gradient = tf.matmul(columns_of(left, tile), right, transpose_a=True)
            return _write(wholes, tile, _tile_step(*old, gradient, *numbers))

        tiles = row_tiles(rows, max(_TILE // columns, rows // _MOST_TILES))
        with tf.control_dependencies(sum(in_two_lanes(update, tiles), [])):
            return tf.group(
                [
                    tf.raw_ops.AssignVariableOp(resource=x.handle, value=whole)
                    for x, whole in zip((variable, m, v), wholes, strict=True)
                ]
            )


def _write(wholes, tile, parts):
    """Writes rows into the buffers that a variable and its moments read as.

    Reading a variable gives its own buffer, and assigning it back, as is done in the
    end, changes nothing. Where TensorFlow copies what it reads (for a variable that is
    also read by rows), it is the copy that is written, and the assignment counts.
    """
    rows = tf.constant(list(range(tile.first, tile.first + tile.size)))
    return [
        tf.raw_ops.InplaceUpdate(x=whole, i=rows, v=part)
        for whole, part in zip(wholes, parts, strict=True)
    ]


@compiled
def _tile_step(w, m, v, gradient, scale, kept, rate, epsilon, new_m, new_v):
    gradient = tf.cast(gradient, tf.float32) * scale
    m += (gradient - m) * new_m
    v += (tf.square(gradient) - v) * new_v
    return w * kept - rate * m / (tf.sqrt(v) + epsilon), m, v
