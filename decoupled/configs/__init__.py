"""Everything that a gin file can set, as frozen dataclasses that check themselves.

No field has a default: what defines an experiment stands in `gin/`, and gin names the
bindings that are missing. `__post_init__` refuses values that cannot work, so that a
mistake ends in one line before a graph is built. No TensorFlow here.
"""

from decoupled.configs.data import (
    EVERY_LANGUAGE,
    MaskingConfig,
    SamplingConfig,
    VocabularyConfig,
)
from decoupled.configs.finetuning import (
    SCORINGS,
    FinetuningConfig,
    QuestionAnsweringConfig,
    RetrievalConfig,
)
from decoupled.configs.model import (
    ACTIVATIONS,
    EARLIER_VALUES,
    MeshConfig,
    ModelConfig,
)
from decoupled.configs.studies import (
    PlanConfig,
    ScaleConfig,
    SweepConfig,
    SweepRoot,
    sweep,
    sweep_row,
)
from decoupled.configs.training import (
    ClusterConfig,
    OptimizerConfig,
    PretrainConfig,
    ScheduleConfig,
    TrainingConfig,
    pretrain,
)

__all__ = [
    "ACTIVATIONS",
    "EARLIER_VALUES",
    "ClusterConfig",
    "EVERY_LANGUAGE",
    "FinetuningConfig",
    "MaskingConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PlanConfig",
    "PretrainConfig",
    "QuestionAnsweringConfig",
    "RetrievalConfig",
    "SCORINGS",
    "SamplingConfig",
    "ScaleConfig",
    "ScheduleConfig",
    "SweepConfig",
    "SweepRoot",
    "TrainingConfig",
    "VocabularyConfig",
    "pretrain",
    "sweep",
    "sweep_row",
]
