"""Fine-tuning, questions and retrieval."""

import dataclasses
import math
from typing import NamedTuple

import gin

from decoupled.configs.checks import (
    check_choice,
    check_not_negative,
    check_positive,
    check_rates,
    check_types,
)
from decoupled.configs.mesh import MeshConfig
from decoupled.configs.training import ClusterConfig, OptimizerConfig, TrainingConfig
from decoupled.core.errors import UserError

CLASS_WEIGHTS = ("none", "balanced")
AUTO = "auto"
SCORINGS = ("cosine", "euclidean", "ratio_margin", "distance_margin")
LONG_SENTENCES = ("cut", "windows")


@gin.register
@dataclasses.dataclass(frozen=True)
class FinetuningConfig:
    """What changes between pre-training and fine-tuning.

    num_epochs: passes over the English training set (paper: 3).
    max_sequence_length: longer inputs are cut.
    classifier_dropout: rate before the task layer, in training only.
    keep_layers: only the first k layers of the checkpoint are used (Figure 1,
      Table 5); 0 keeps all.
    freeze_input_embedding: the input embedding block is not trained.
    warmup_fraction: share of the steps with linear warm-up; a linear decay follows.
    learning_rates: each is tried, and the best on English dev is kept; () trains with
      OptimizerConfig.learning_rate, which is ignored otherwise.
    class_weights: "none", or "balanced", which gives every class the same total weight
      in the training loss; classification only.
    group_by_length: batches have rows of like length, and are padded to the longest row
      among a few lengths instead of max_sequence_length. Ignored on a TPU.
    """

    num_epochs: float
    max_sequence_length: int
    classifier_dropout: float
    keep_layers: int
    freeze_input_embedding: bool
    warmup_fraction: float
    learning_rates: tuple
    class_weights: str
    group_by_length: bool

    def __post_init__(self):
        check_types(self)
        check_positive(self, "num_epochs max_sequence_length")
        check_not_negative(self, "keep_layers")
        check_rates(self, "classifier_dropout warmup_fraction")
        check_choice(self, "class_weights", CLASS_WEIGHTS)
        rates = self.learning_rates
        if not all(type(r) in (int, float) and 0 < r < math.inf for r in rates) or (
            len(set(rates)) != len(rates)
        ):
            raise UserError(
                f"FinetuningConfig.learning_rates: {rates} are not distinct positive "
                "numbers, e.g. (1e-5, 2e-5)"
            )


@gin.register
@dataclasses.dataclass(frozen=True)
class QuestionAnsweringConfig:
    """Windows of contexts and choice of answers (Devlin et al. 2019, section 4.2).

    max_question_length: pieces of a question; the rest is cut off.
    doc_stride: pieces between the starts of neighbouring windows over a context that
      does not fit into one; windows longer than the stride overlap.
    max_answer_length: most pieces of an answer, or "auto": an answer may be 1.5 times
      as long, in characters, as the longest one in training.
    n_best: number of likeliest starts, and of ends, of each window that are combined.
    """

    max_question_length: int
    doc_stride: int
    max_answer_length: int | str
    n_best: int

    def __post_init__(self):
        check_types(self)
        check_positive(self, "max_question_length doc_stride n_best")
        if type(self.max_answer_length) is str:
            check_choice(self, "max_answer_length", (AUTO,))
        else:
            check_positive(self, "max_answer_length")


@gin.register
@dataclasses.dataclass(frozen=True)
class RetrievalConfig:
    """How translations are found by the vectors of sentences.

    layer: whose output is pooled: 0 is the embedding output, 1 the first layer; -1 is
      the last, -2 the one before it. Analyses that compare layers ignore it.
    pool_special_tokens: the mean over a sentence's tokens includes [CLS] and [SEP], as
      in XTREME's baseline, but not in Figure 2.
    centre: the mean vector of each side is subtracted from its vectors, which removes
      what all sentences of a language share (Figure 2's translation vector).
    scoring: "cosine", "euclidean", or a margin of Artetxe and Schwenk (ACL 2019):
      "ratio_margin" or "distance_margin".
    num_neighbours: k of the margins; the other scorings ignore it.
    max_sequence_length: of a sentence, [CLS] and [SEP] included. long_sentences: what
      becomes of longer ones, "cut" or "windows": their vector is then the mean over the
      tokens of all windows that they are divided into. batch_size: sentences or windows
      of a batch.
    """

    layer: int
    pool_special_tokens: bool
    centre: bool
    scoring: str
    num_neighbours: int
    max_sequence_length: int
    long_sentences: str
    batch_size: int

    def __post_init__(self):
        check_types(self)
        check_choice(self, "scoring", SCORINGS)
        check_choice(self, "long_sentences", LONG_SENTENCES)
        check_positive(self, "num_neighbours max_sequence_length batch_size")
        if self.max_sequence_length < 3:
            raise UserError(
                f"RetrievalConfig.max_sequence_length: {self.max_sequence_length} "
                "leaves no room for text beside [CLS] and [SEP]; use 3 or more"
            )


class FinetuneConfig(NamedTuple):
    """Everything that a fine-tuning run is made of, beside the pre-trained model.

    question_answering: None for tasks of other kinds. cluster: None for this process.
    """

    finetuning: FinetuningConfig
    mesh: MeshConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    question_answering: QuestionAnsweringConfig | None = None
    cluster: ClusterConfig | None = None


@gin.configurable
def finetune(
    *,
    finetuning=gin.REQUIRED,
    mesh=gin.REQUIRED,
    optimizer=gin.REQUIRED,
    training=gin.REQUIRED,
    question_answering=gin.REQUIRED,
    cluster=gin.REQUIRED,
) -> FinetuneConfig:
    """The root of the gin configuration; the model's sizes come with its checkpoint."""
    return FinetuneConfig(
        finetuning, mesh, optimizer, training, question_answering, cluster
    )


class RetrieveConfig(NamedTuple):
    """Everything that a run of retrieval is made of, beside model and data."""

    retrieval: RetrievalConfig
    mesh: MeshConfig


@gin.configurable
def retrieve(*, retrieval=gin.REQUIRED, mesh=gin.REQUIRED) -> RetrieveConfig:
    """The root of the gin configuration; the model's sizes come with its checkpoint."""
    return RetrieveConfig(retrieval, mesh)
