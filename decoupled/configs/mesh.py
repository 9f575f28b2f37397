"""The mesh of devices that the dimensions of a model live on."""

import dataclasses

import gin

from decoupled.configs.checks import check_choice, check_not_negative, check_types

ACTIVATION_DTYPES = ("float32", "bfloat16")
SLICE_DTYPES = ("float32", "bfloat16")
EMBEDDING_LOOKUPS = ("gather", "one_hot")


@gin.register
@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Where the dimensions of the graph live.

    mesh_shape: e.g. "all:1" or "data:2;vocab:4"; axis sizes multiply to the number of
      devices.
    layout_rules: e.g. "batch:data;vocab:vocab"; which dimension (`decoupled.model.dims`
      lists them) is split over which mesh axis. Dimensions without a rule are
      replicated.
    activation_dtype: "float32" or "bfloat16"; optimizer slots and the loss are float32
      always.
    embedding_lookup: "gather" copies rows; "one_hot" multiplies a one-hot matrix by the
      table, which a TPU may do faster if the vocabulary is small. Results are equal.
    slice_dtype: of the weights on the devices, "float32" or "bfloat16", which halves
      their memory; updates then use stochastic rounding (`decoupled.ops.rounding`).
      Vectors (biases, layer norms) and what checkpoints hold are float32 always.
    stack_mib: on a TPU, slices of equal shape are one variable of each core, as long as
      their float32 gradients take at most so many MiB
      (`decoupled.ops.meshes.stacks`). 0: each slice is a variable of its own. Results
      and checkpoints are equal.
    """

    mesh_shape: str
    layout_rules: str
    activation_dtype: str
    embedding_lookup: str
    slice_dtype: str
    stack_mib: int

    def __post_init__(self):
        check_types(self)
        check_not_negative(self, "stack_mib")
        check_choice(self, "activation_dtype", ACTIVATION_DTYPES)
        check_choice(self, "embedding_lookup", EMBEDDING_LOOKUPS)
        check_choice(self, "slice_dtype", SLICE_DTYPES)
