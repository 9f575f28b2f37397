"""Which variables of a training graph are partitioned by rows.

Those that `decoupled.model.variables` declares so, and their two moments, where AdamW
updates them: their gradient is a product that is made, and used, a block at a time
(`decoupled.ops.adam`).
"""

import contextlib
import re
from collections.abc import Mapping

from decoupled.configs import MeshConfig, OptimizerConfig
from decoupled.core.compat import mtf, tf
from decoupled.model.variables import Variable, slots
from decoupled.ops.placement import PlacementMeshImpl
from decoupled.ops.row_blocks import in_row_blocks

# Mesh-TensorFlow's name of a slice on one processor.
_SLICE = re.compile(r"(?P<whole>.*?)(?P<slice>_slice_\d+)?")


def large_tables(
    variables: Mapping[str, Variable],
    optimizer: OptimizerConfig,
    mesh: MeshConfig,
    implementation: mtf.MeshImpl,
) -> contextlib.AbstractContextManager:
    """The scope in which a training graph is built and lowered.

    Args:
      variables: of the model, by name.
      optimizer, mesh: of the run. implementation: of the mesh. On TPUs and GPUs, for
        which many small kernels are slow, and where slices are bfloat16, all variables
        are whole.
    """
    placed = isinstance(implementation, PlacementMeshImpl)
    on_cpus = placed and not implementation.on_gpus
    if not on_cpus or optimizer.name != "adamw" or mesh.slice_dtype != "float32":
        return contextlib.nullcontext()
    # Mesh-TensorFlow then uses the variable itself as its only slice.
    alone = implementation.size == 1 and not implementation.devices[0]
    tables = [name for name, v in variables.items() if v.row_partitioned]
    chosen = {n for table in tables for n in (table, *slots(table, optimizer.name))}

    def is_chosen(name):
        found = _SLICE.fullmatch(name)
        return found["whole"] in chosen and (found["slice"] is None) == alone

    return tf.variable_scope(
        tf.get_variable_scope(), custom_getter=in_row_blocks(is_chosen)
    )
