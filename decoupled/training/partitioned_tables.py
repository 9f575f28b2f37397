"""Row-partitioned tables of a training graph: how they are chosen and restored.

The variables that `decoupled.model.variables` declares as `row_partitioned` are
partitioned, and so are their two moments. Their gradient is factored, and is computed
and used one partition at a time (`decoupled.ops.adam`).

If a variable was saved whole, TensorFlow reads all of it to restore one partition. It
does so for each partition, and for eight at a time: a table of 3 GB takes 24 GB of
memory, and minutes. Here each table is read once as a whole and then split.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from decoupled.configs import MeshConfig

# `BulkSaverBuilder` is the default builder of `tf.train.Saver`. It has no public name.
from decoupled.core.compat import BulkSaverBuilder, mtf, tf
from decoupled.model.variables import Variable, slots
from decoupled.ops.meshes.placement import PlacementMeshImpl
from decoupled.ops.row_partitions import (
    RowPartitionedVariable,
    copied_rows,
    row_partitioning_getter,
    saved_variables,
)

# Mesh-TensorFlow's name of a slice on one device.
_SLICE = re.compile(r"(?P<whole>.*?)(?P<slice>_slice_\d+)?")


def partition_large_tables(
    variables: Mapping[str, Variable],
    mesh: MeshConfig,
    implementation: mtf.MeshImpl,
) -> contextlib.AbstractContextManager:
    """The scope in which a training graph is built and lowered.

    Nothing is partitioned in programs of XLA, where many small kernels are slow, or if
    slices are bfloat16.
    """
    on_cpus = isinstance(implementation, PlacementMeshImpl)
    if not on_cpus or mesh.slice_dtype != "float32":
        return contextlib.nullcontext()
    # Mesh-TensorFlow then uses the variable itself as its only slice.
    is_alone = implementation.size == 1 and not implementation.devices[0]
    tables = [name for name, v in variables.items() if v.row_partitioned]
    chosen_names = {n for table in tables for n in (table, *slots(table))}

    def is_chosen(name):
        match = _SLICE.fullmatch(name)
        return match["whole"] in chosen_names and (match["slice"] is None) == is_alone

    return tf.variable_scope(
        tf.get_variable_scope(), custom_getter=row_partitioning_getter(is_chosen)
    )


class PartitionedSaverBuilder(BulkSaverBuilder):
    """The `builder` of a `tf.train.Saver` whose variables may be row-partitioned."""

    def bulk_restore(
        self,
        filename_tensor: tf.Tensor,
        saveables: Sequence[Any],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> list[tf.Tensor]:
        names = {saveable.name for saveable in saveables}
        tables = _tables_among(saved_variables())
        tables = {n: v for n, v in tables.items() if n in names}
        other_saveables = [s for s in saveables if s.name not in tables]
        values = ()
        if other_saveables:
            values = super().bulk_restore(
                filename_tensor, other_saveables, preferred_shard, restore_sequentially
            )
        values = iter(values)
        rows = _read_partitions(filename_tensor, tables)
        return [
            rows[saveable.name][_first_row(saveable)]
            if saveable.name in tables
            else next(values)
            for saveable in saveables
        ]


def start_from(
    checkpoint: str, variables: Mapping[str, tf.Variable | RowPartitionedVariable]
) -> None:
    """Makes variables, by their names in a checkpoint, start from its values."""
    tables = _tables_among(variables)
    for name, rows in _read_partitions(checkpoint, tables).items():
        partitions = tables[name].partitions
        for partition, value in zip(partitions, rows.values(), strict=True):
            # As `init_from_checkpoint` does; there is no public way.
            partition._initializer_op = partition.assign(value)
    tf.train.init_from_checkpoint(
        checkpoint, {n: v for n, v in variables.items() if n not in tables}
    )


def _tables_among(
    variables: Mapping[str, tf.Variable | RowPartitionedVariable],
) -> dict[str, RowPartitionedVariable]:
    return {n: v for n, v in variables.items() if isinstance(v, RowPartitionedVariable)}


def _first_row(saveable: Any) -> int:
    """The first row, from the spec "rows columns first,size:0,columns"."""
    (spec,) = saveable.specs
    return int(spec.slice_spec.split(" ")[-1].partition(",")[0])


def _read_partitions(
    prefix: str | tf.Tensor, tables: Mapping[str, RowPartitionedVariable]
) -> dict[str, dict[int, tf.Tensor]]:
    """Name -> first row -> the values of a partition, in order.

    Variables are read one after the other, because each is whole in memory while it is
    split.
    """
    rows, partitions = {}, []
    for name, variable in tables.items():
        with tf.device("cpu:0"), tf.control_dependencies(partitions):
            (table,) = tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=[name],
                shape_and_slices=[""],
                dtypes=[variable.dtype.base_dtype],
            )
            table.set_shape(variable.shape)
            partitions = copied_rows(table, variable.tiles)
        first_rows = (tile.first for tile in variable.tiles)
        rows[name] = dict(zip(first_rows, partitions, strict=True))
    return rows
