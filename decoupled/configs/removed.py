"""Settings of earlier versions that were removed. Files and runs still name them."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Removed(NamedTuple):
    """What takes the place of a setting, and the values that changed nothing.

    Records of runs name settings with these values, and such runs go on.
    """

    advice: str
    without_effect: tuple[Any, ...] = ()


_NO_MESH = "the serving encoder runs in one process; remove it and all of MeshConfig"
_PACKED = "batches of fine-tuning are always packed; remove it"
_NO_BOOKS = "no task is made of Bible verses any more; remove it"
_NO_LIMITS = (
    "the shares of languages do not depend on the length of a run; "
    "SamplingConfig.weights sets them"
)
_CLUSTER = (
    "with --accelerator, the flags --coordinator, --processes and --process say which "
    "processes train together"
)
# Name in a gin file, parameter -> the advice about it.
REMOVED = {
    ("ModelConfig", "output_embedding_rank"): Removed(
        "the output embedding is one matrix; scores have at most the rank "
        "ModelConfig.output_embedding_size",
        (0,),
    ),
    ("OptimizerConfig", "name"): Removed(
        "every model is trained with AdamW; remove it", ("adamw",)
    ),
    ("SamplingConfig", "min_epochs"): Removed(_NO_LIMITS, (None,)),
    ("SamplingConfig", "max_epochs"): Removed(_NO_LIMITS, (None,)),
    ("TrainingConfig", "softmax_block_size"): Removed(
        "logits are always computed as a whole; to save memory, split the vocabulary "
        "over the mesh (layout_rules), or set recompute_layers",
        (0,),
    ),
    ("TrainingConfig", "label_smoothing"): Removed(
        "the loss is the plain cross-entropy, as in the paper; remove it", (0.0,)
    ),
    ("MeshConfig", "embedding_lookup"): Removed(
        "rows of tables are always copied; remove it", ("gather",)
    ),
    ("FinetuningConfig", "group_by_length"): Removed(_PACKED, (True, False)),
    ("FinetuningConfig", "pack_sequences"): Removed(_PACKED, (True,)),
    ("ParallelTextConfig", "translations"): Removed(
        "--source=aligned: reads a file for each language, so the files choose the "
        "translations",
        (None,),
    ),
    ("ParallelTextConfig", "max_train_examples"): Removed(_NO_BOOKS, (4000,)),
    ("ParallelTextConfig", "max_test_examples"): Removed(_NO_BOOKS, (1000,)),
    ("StudyConfig", "secondary_tasks"): Removed(
        "every task has SweepConfig.finetuning_runs runs; remove it"
    ),
    ("SweepConfig", "warm_processes"): Removed(
        "runs are forks wherever these are possible; results are those of separate "
        "processes",
        (True, False),
    ),
    ("retrieve", "mesh"): Removed(_NO_MESH),
    ("neighbours", "mesh"): Removed(_NO_MESH),
    ("ClusterConfig", "workers"): Removed(_CLUSTER, ((),)),
}
# Of these classes, only the parameters above had an effect on a run.
REMOVED_CLASSES = {
    "ClusterConfig": _CLUSTER,
    "geometry": "analyze masked_lm has the ranks of logits and embeddings; remove it",
}


def had_effect(owner: str, name: str, value: Any) -> bool:
    """Whether a saved value of a removed setting changed a run."""
    entry = REMOVED.get((owner, name))
    return bool(entry and entry.without_effect) and value not in entry.without_effect


def without_gone(owner: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Saved settings of a class without removed settings that changed nothing."""
    return {
        name: value
        for name, value in values.items()
        if (owner, name) not in REMOVED or had_effect(owner, name, value)
    }
