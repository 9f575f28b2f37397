"""Fine-tuning, questions and retrieval."""

import dataclasses
import math
import re
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
# What the head of a task does.
CLASSIFICATION = "classification"
REGRESSION = "regression"
TAGGING = "tagging"
QUESTION_ANSWERING = "question answering"
# The metrics by which a task of one's own can choose, by its kind, and the endings of
# its files.
OWN_METRICS = {
    CLASSIFICATION: ("accuracy", "macro_f1"),
    REGRESSION: ("pearson", "spearman"),
    TAGGING: ("accuracy", "entity_f1"),
    QUESTION_ANSWERING: ("f1", "exact_match"),
}
OWN_ENDINGS = {
    CLASSIFICATION: (".tsv", ".csv", ".jsonl"),
    REGRESSION: (".tsv", ".csv", ".jsonl"),
    TAGGING: (".tsv", ".txt", ".conll", ".conllu"),
    QUESTION_ANSWERING: (".json",),
}
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
class OwnTaskConfig:
    """A task in files of one's own, for `finetune --task=own`.

    name: of the task, in results and folders. kind: one of `OWN_METRICS`.
    files: where the files lie below --data_dir; "{split}" and "{language}" stand for
      the names of split and language, e.g. "reviews/{split}-{language}.tsv". Without
      "{language}" there is one, the first of `training_languages`. The ending tells the
      form: .tsv, .csv and .jsonl for texts, columns for tags, SQuAD's .json for
      questions.
    splits: how files call training, dev and test.
    split_column: the column that names a row's split where a file has all; None where
      "{split}" does.
    training_languages: trained on; the dev file of the first chooses the checkpoint.
    texts: columns of one or two texts, or of the word. A column is a name in the header
      or of a JSON field, or a number, from 1, in files without a header.
    label: column of the label, of the tag, or of the number of a regression.
    labels: in the order of their ids; () takes those of the training files, sorted. ()
      for a regression.
    metric: chooses checkpoints and learning rates.
    """

    name: str
    kind: str
    files: str
    splits: tuple
    split_column: str | int | None
    training_languages: tuple
    texts: tuple
    label: str | int | None
    labels: tuple
    metric: str

    def __post_init__(self):
        check_types(self)
        check_choice(self, "kind", tuple(OWN_METRICS))
        check_choice(self, "metric", OWN_METRICS[self.kind])
        self._check_names()
        self._check_files()
        self._check_columns()

    def _check_names(self):
        if not re.fullmatch(r"(?!\.)[^/\\\x00-\x1f]+", self.name):
            raise UserError(
                f"OwnTaskConfig.name: {self.name!r} cannot be the name of a folder"
            )
        for name, least in (("splits", 3), ("training_languages", 1)):
            values = getattr(self, name)
            texts = all(type(value) is str and value for value in values)
            if not texts or len(set(values)) != len(values) or len(values) < least:
                raise UserError(
                    f"OwnTaskConfig.{name}: {values} are not {least} or more "
                    "different names"
                )

    def _check_files(self):
        endings = OWN_ENDINGS[self.kind]
        if not self.files.endswith(endings):
            raise UserError(
                f"OwnTaskConfig.files: {self.files!r} does not end in one of "
                f"{', '.join(endings)}, the forms of {self.kind}"
            )
        if ("{split}" in self.files) == (self.split_column is not None):
            raise UserError(
                f'OwnTaskConfig.files: {self.files!r} needs "{{split}}" in it, or '
                "OwnTaskConfig.split_column, and not both"
            )
        if self.files.startswith("/") or ".." in self.files.split("/"):
            raise UserError(
                f"OwnTaskConfig.files: {self.files!r} is not a path below --data_dir"
            )

    def _check_columns(self):
        if self.kind == QUESTION_ANSWERING:
            if self.split_column is not None:
                raise UserError(
                    "OwnTaskConfig.split_column: a file of questions holds one split; "
                    'put "{split}" into OwnTaskConfig.files'
                )
            return
        most = 1 if self.kind == TAGGING else 2
        if not 1 <= len(self.texts) <= most:
            raise UserError(
                f"OwnTaskConfig.texts: {self.texts} are not 1"
                f"{' or 2' if most == 2 else ''} columns"
            )
        all_columns = (*self.texts, self.label, self.split_column)
        columns = [column for column in all_columns if column is not None]
        kinds = {type(column) for column in columns}
        if self.label is None or len(kinds) > 1 or kinds - {int, str}:
            raise UserError(
                "OwnTaskConfig.texts, label, split_column: are not all names, or all "
                f"numbers from 1: {columns}"
            )
        if any(type(column) is int and column < 1 for column in columns):
            raise UserError(f"OwnTaskConfig: columns {columns} count from 1")
        if self.kind == TAGGING and (str in kinds or self.split_column is not None):
            raise UserError(
                f"OwnTaskConfig: the columns of {self.kind} are numbers, and files "
                "hold one split"
            )
        if self.kind == REGRESSION and self.labels:
            raise UserError(
                f"OwnTaskConfig.labels: {self.labels}, but a regression has numbers; "
                "set it to ()"
            )
        if any(type(label) is not str for label in self.labels):
            raise UserError(
                f"OwnTaskConfig.labels: {self.labels} are not all texts; write "
                f"{tuple(map(str, self.labels))}"
            )
        if len(set(self.labels)) != len(self.labels) or len(self.labels) == 1:
            raise UserError(
                f"OwnTaskConfig.labels: {self.labels} are not two or more different "
                "labels"
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

    def layer_of(self, num_layers: int, checkpoint: str) -> int:
        """The layer counted from the start: 0 to L, for -1 L.

        Args:
          num_layers: L of the model. checkpoint: of the model, for a message.

        Raises:
          UserError: the model has no such layer.
        """
        if not -num_layers - 1 <= self.layer <= num_layers:
            raise UserError(
                f"RetrievalConfig.layer: {self.layer}, but {checkpoint} has layers 0 "
                f"(embeddings) to {num_layers}"
            )
        return self.layer if self.layer >= 0 else num_layers + 1 + self.layer


class FinetuneConfig(NamedTuple):
    """Everything that a fine-tuning run is made of, beside the pre-trained model.

    question_answering: None for tasks of other kinds. cluster: None for this process.
    own_task: None for the tasks that are known by name.
    """

    finetuning: FinetuningConfig
    mesh: MeshConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    question_answering: QuestionAnsweringConfig | None = None
    cluster: ClusterConfig | None = None
    own_task: OwnTaskConfig | None = None


@gin.configurable
def finetune(
    *,
    finetuning=gin.REQUIRED,
    mesh=gin.REQUIRED,
    optimizer=gin.REQUIRED,
    training=gin.REQUIRED,
    question_answering=gin.REQUIRED,
    cluster=gin.REQUIRED,
    own_task=gin.REQUIRED,
) -> FinetuneConfig:
    """The root of the gin configuration; the model's sizes come with its checkpoint."""
    return FinetuneConfig(
        finetuning, mesh, optimizer, training, question_answering, cluster, own_task
    )


class RetrieveConfig(NamedTuple):
    """Everything that a run of retrieval is made of, beside model and data."""

    retrieval: RetrievalConfig
    mesh: MeshConfig


@gin.configurable
def retrieve(*, retrieval=gin.REQUIRED, mesh=gin.REQUIRED) -> RetrieveConfig:
    """The root of the gin configuration; the model's sizes come with its checkpoint."""
    return RetrieveConfig(retrieval, mesh)
