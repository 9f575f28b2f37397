"""The settings of gin files: frozen dataclasses that check their values, and roots.

Each command with settings has a root, which collects the dataclasses that it needs. No
setting has a default in code: `gin/` defines the experiments, and gin names missing
bindings. `__post_init__` refuses values that cannot work, so that a mistake gives one
line before a graph is built. This package does not import TensorFlow.
"""

from decoupled.configs.analyses import (
    geometry,
    masked_lm,
    neighbours,
    probing,
    word_translation,
)
from decoupled.configs.corpora import (
    ParallelTextConfig,
    build_corpus,
    build_vocabulary,
)
from decoupled.configs.data import (
    EVERY_LANGUAGE,
    MaskingConfig,
    SamplingConfig,
    VocabularyConfig,
)
from decoupled.configs.finetuning import (
    SCORINGS,
    FinetuningConfig,
    OwnTaskConfig,
    QuestionAnsweringConfig,
    RetrievalConfig,
    finetune,
    retrieve,
)
from decoupled.configs.mesh import MeshConfig
from decoupled.configs.model import ACTIVATIONS, EARLIER_VALUES, ModelConfig
from decoupled.configs.studies import (
    PlanConfig,
    ReproductionRoot,
    ScaleConfig,
    StudyConfig,
    SweepConfig,
    SweepRoot,
    convert,
    parameters,
    plan,
    reproduce,
    sweep,
    sweep_row,
)
from decoupled.configs.training import (
    ClusterConfig,
    OptimizerConfig,
    Phase,
    PhaseConfig,
    PretrainConfig,
    ScheduleConfig,
    TrainingConfig,
    pretrain,
    without_effect,
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
    "ParallelTextConfig",
    "Phase",
    "PhaseConfig",
    "PlanConfig",
    "PretrainConfig",
    "OwnTaskConfig",
    "QuestionAnsweringConfig",
    "ReproductionRoot",
    "RetrievalConfig",
    "SCORINGS",
    "SamplingConfig",
    "ScaleConfig",
    "ScheduleConfig",
    "StudyConfig",
    "SweepConfig",
    "SweepRoot",
    "TrainingConfig",
    "VocabularyConfig",
    "build_corpus",
    "build_vocabulary",
    "convert",
    "finetune",
    "geometry",
    "masked_lm",
    "neighbours",
    "parameters",
    "plan",
    "pretrain",
    "probing",
    "reproduce",
    "retrieve",
    "sweep",
    "sweep_row",
    "word_translation",
    "without_effect",
]
