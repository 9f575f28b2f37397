"""Restores row-partitioned variables, each read once and whole.

TensorFlow restores a block from a variable that was saved whole by reading all of it,
for each block again, and eight blocks at a time: of a table of 3 GB that is 24 GB of
memory, and minutes.
"""

# What `tf.train.Saver` takes where it is given none; it has no public name.
from decoupled.core.compat import BulkSaverBuilder, tf
from decoupled.ops.row_blocks import RowVariable, copied_rows, saved_variables


class BlocksFromWhole(BulkSaverBuilder):
    """The `builder` of a `tf.train.Saver` whose variables may be in blocks."""

    def bulk_restore(
        self, filename_tensor, saveables, preferred_shard, restore_sequentially
    ):
        """A value for each saveable, in their order."""
        names = {saveable.name for saveable in saveables}
        in_blocks = _in_blocks(saved_variables())
        in_blocks = {n: v for n, v in in_blocks.items() if n in names}
        others = [saveable for saveable in saveables if saveable.name not in in_blocks]
        values = ()
        if others:
            values = super().bulk_restore(
                filename_tensor, others, preferred_shard, restore_sequentially
            )
        values = iter(values)
        rows = _read(filename_tensor, in_blocks)
        return [
            rows[saveable.name][_first_row(saveable)]
            if saveable.name in in_blocks
            else next(values)
            for saveable in saveables
        ]


def start_from(
    checkpoint: str, variables: dict[str, tf.Variable | RowVariable]
) -> None:
    """Makes variables start from a checkpoint's values.

    Args:
      checkpoint: prefix.
      variables: by their names in it.
    """
    in_blocks = _in_blocks(variables)
    for name, rows in _read(checkpoint, in_blocks).items():
        for part, value in zip(in_blocks[name].parts, rows.values(), strict=True):
            # As `init_from_checkpoint` does; there is no public way.
            part._initializer_op = part.assign(value)
    tf.train.init_from_checkpoint(
        checkpoint, {n: v for n, v in variables.items() if n not in in_blocks}
    )


def _in_blocks(variables):
    return {n: v for n, v in variables.items() if isinstance(v, RowVariable)}


def _first_row(saveable):
    """Of a block, from "rows columns first,size:0,columns"."""
    (spec,) = saveable.specs
    return int(spec.slice_spec.split(" ")[-1].partition(",")[0])


def _read(prefix, variables):
    """Name -> first row -> the values of a block, in order. One variable after the
    other, as each is whole in memory while it is split."""
    rows, before = {}, []
    for name, variable in variables.items():
        with tf.device("cpu:0"), tf.control_dependencies(before):
            (whole,) = tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=[name],
                shape_and_slices=[""],
                dtypes=[variable.dtype.base_dtype],
            )
            whole.set_shape(variable.shape)
            before = copied_rows(whole, variable.tiles)
        firsts = (tile.first for tile in variable.tiles)
        rows[name] = dict(zip(firsts, before, strict=True))
    return rows
