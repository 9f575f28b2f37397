"""Which variables of a training graph are kept in blocks of rows.

The output embedding and its two moments, where AdamW updates them: its gradient is a
product that is made, and used, a block at a time (`decoupled.ops.adam`).
"""

import contextlib
import re

from decoupled.configs import MeshConfig, OptimizerConfig
from decoupled.core.compat import mtf, tf
from decoupled.model.embeddings import OUTPUT_EMBEDDING
from decoupled.ops.placement import PlacementMeshImpl
from decoupled.ops.row_blocks import in_row_blocks

# A variable, its moments, and Mesh-TensorFlow's name of a slice on one processor.
_TABLE = re.compile(rf"{OUTPUT_EMBEDDING}(/adam_[mv])?(?P<slice>_slice_\d+)?")


def large_tables(
    optimizer: OptimizerConfig, mesh: MeshConfig, implementation: mtf.MeshImpl
) -> contextlib.AbstractContextManager:
    """The scope in which a training graph is built and lowered.

    Args:
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

    def is_chosen(name):
        found = _TABLE.fullmatch(name)
        return found is not None and (found["slice"] is None) == alone

    return tf.variable_scope(
        tf.get_variable_scope(), custom_getter=in_row_blocks(is_chosen)
    )
