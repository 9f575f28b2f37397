"""The settings of gin files: frozen dataclasses that check their values.

Each class is a gin configurable, and its defaults are the paper's. The settings of a
command are a class too, with the name that its bindings have: `pretrain.whole_words` is
a field of `PretrainConfig`. A command in which a shared setting has another default
says so in DEFAULTS. `_check` refuses values that cannot work, so that a mistake gives
one line before a graph is built. This package does not import TensorFlow.
"""

from decoupled.configs.analyses import ANALYSES
from decoupled.configs.corpora import (
    CorpusSettings,
    ParallelTextConfig,
    VocabularySettings,
)
from decoupled.configs.data import (
    MaskingConfig,
    SamplingConfig,
    VocabularyConfig,
)
from decoupled.configs.finetuning import (
    SCORINGS,
    FinetuneConfig,
    FinetuningConfig,
    OwnTaskConfig,
    QuestionAnsweringConfig,
    RetrievalConfig,
    RetrieveConfig,
)
from decoupled.configs.hardware import MeshConfig
from decoupled.configs.model import ACTIVATIONS, ModelConfig, saved_model
from decoupled.configs.studies import (
    ParametersConfig,
    PlanConfig,
    PlanSettings,
    ReproductionRoot,
    ScaleConfig,
    StudyConfig,
    SweepConfig,
    SweepRoot,
)
from decoupled.configs.training import (
    OptimizerConfig,
    Phase,
    PhaseConfig,
    PretrainConfig,
    ScheduleConfig,
    TrainingConfig,
    without_effect,
)
