"""Settings of fine-tuning, question answering and retrieval."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from typing import ClassVar

from decoupled.configs.checks import (
    Settings,
    bound,
    check_choice,
    check_not_negative,
    check_positive,
    check_rates,
    configurable,
)
from decoupled.configs.hardware import MeshConfig
from decoupled.configs.training import OptimizerConfig, TrainingConfig
from decoupled.core.errors import UserError
from decoupled.core.labels import check_labels

CLASS_WEIGHTS = ("none", "balanced")
AUTO = "auto"
# The kinds of tasks, by their heads.
CLASSIFICATION = "classification"
REGRESSION = "regression"
TAGGING = "tagging"
QUESTION_ANSWERING = "question answering"
# For each kind of a task in the user's own files: the metrics that can select a
# checkpoint, and the extensions of files.
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
# A tag of `entity_f1`, in the scheme IOB2 or IOB1.
ENTITY_TAG = re.compile("O|[BI]-.+")
SCORINGS = ("cosine", "euclidean", "ratio_margin", "distance_margin")
LONG_SENTENCES = ("cut", "windows")


@configurable()
@dataclasses.dataclass(frozen=True)
class FinetuningConfig(Settings):
    """The settings of fine-tuning that pre-training does not have.

    num_epochs: passes over the English training set (paper: 3).
    max_sequence_length: longer inputs are truncated.
    classifier_dropout: dropout rate before the task layer, in training only.
    keep_layers: how many of the checkpoint's first layers are kept (Figure 1, Table 5);
      0 keeps all.
    freeze_input_embedding: whether the input embedding block is frozen.
    warmup_fraction: share of the steps with linear warm-up; a linear decay follows.
    learning_rates: each is tried, and the best on English dev is kept; () trains with
      OptimizerConfig.learning_rate, which is ignored otherwise.
    class_weights: "none", or "balanced", which gives every class the same total weight
      in the training loss; classification only.
    """

    # Paper Table 10 has the epochs. The paper gives no length, warm-up or dropout of
    # the classifier; ours are those of google-research/bert.
    num_epochs: float = 3
    max_sequence_length: int = 128
    classifier_dropout: float = 0.1
    keep_layers: int = 0
    # True is the control of the paper's footnote 4.
    freeze_input_embedding: bool = False
    warmup_fraction: float = 0.1
    learning_rates: tuple = ()
    class_weights: str = "none"

    def _check(self):
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


@configurable()
@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTaskConfig(Settings):
    """A task in the user's own files, for `finetune --task=own`.

    name: of the task, in results and folders. kind: a key of `OWN_METRICS`.
    files: path of the files below --data_dir; "{split}" and "{language}" stand for the
      names of split and language, e.g. "reviews/{split}-{language}.tsv". Without
      "{language}" there is one language, the first of `training_languages`. The
      extension determines the format: one of `OWN_ENDINGS`, with one word per line for
      tags, and SQuAD's JSON for questions.
    splits: the names of training, dev and test in the files.
    split_column: the column that names a row's split, if one file has all splits; None
      if "{split}" names it.
    training_languages: the languages to train on; the dev file of the first one selects
      checkpoint and learning rate.
    texts: the columns of one or two texts, or of the word. A column is given by its
      name in the header, by the name of a JSON field, or, in files without a header, by
      its number from 1.
    label: the column of the label, of the tag, or of the number of a regression.
    labels: in the order of their ids; () uses those of the training files, sorted. It
      is () for a regression.
    metric: the metric that selects checkpoints and learning rates.
    """

    name: str
    kind: str
    files: str
    splits: tuple = ("train", "dev", "test")
    split_column: str | int | None = None
    training_languages: tuple = ("en",)
    texts: tuple = ()
    label: str | int | None = None
    labels: tuple = ()
    metric: str

    def _check(self):
        check_choice(self, "kind", tuple(OWN_METRICS))
        check_choice(self, "metric", OWN_METRICS[self.kind])
        checks = [self._name_mistakes(), self._file_mistakes()]
        if self.kind != QUESTION_ANSWERING:
            checks += [self._column_mistakes(), self._label_mistakes()]
        for is_mistake, field, problem in itertools.chain(*checks):
            if is_mistake:
                raise UserError(f"OwnTaskConfig.{field}: {problem}")

    # Each yields whether there is a mistake, its field, and the problem. A later check
    # runs only if all earlier ones found no mistake.

    def _name_mistakes(self) -> Iterator[tuple[bool, str, str]]:
        is_name = re.fullmatch(r"(?!\.)[^/\\\x00-\x1f]+", self.name)
        yield not is_name, "name", f"{self.name!r} cannot be the name of a folder"
        for name in ("splits", "training_languages"):
            values = getattr(self, name)
            are_names = values and all(type(v) is str and v for v in values)
            are_different = are_names and len(set(values)) == len(values)
            problem = f"{values} are not one or more different names"
            yield not are_different, name, problem
        problem = f"{self.splits} are not the three names of training, dev and test"
        yield len(self.splits) != 3, "splits", problem

    def _file_mistakes(self) -> Iterator[tuple[bool, str, str]]:
        endings = OWN_ENDINGS[self.kind]
        problem = f"{self.files!r} does not end in one of {', '.join(endings)}"
        problem += f", the forms of {self.kind}"
        yield not self.files.endswith(endings), "files", problem
        text = f'{self.files!r} needs "{{split}}" in it, or OwnTaskConfig.split_column'
        is_one_way = ("{split}" in self.files) != (self.split_column is not None)
        yield not is_one_way, "files", f"{text}, and not both"
        is_outside = self.files.startswith(("/", "~")) or ".." in self.files.split("/")
        yield is_outside, "files", f"{self.files!r} is not a path below --data_dir"
        is_in_column = self.split_column is not None
        problem = 'a file holds one split; put "{split}" into OwnTaskConfig.files'
        has_tables = self.kind in (CLASSIFICATION, REGRESSION)
        yield is_in_column and not has_tables, "split_column", problem

    def _column_mistakes(self) -> Iterator[tuple[bool, str, str]]:
        max_columns = 1 if self.kind == TAGGING else 2
        problem = f"{self.texts} are not 1{' or 2' if max_columns == 2 else ''} columns"
        yield not 1 <= len(self.texts) <= max_columns, "texts", problem
        all_columns = (*self.texts, self.label, self.split_column)
        columns = [column for column in all_columns if column is not None]
        kinds = {type(column) for column in columns}
        are_mixed = self.label is None or len(kinds) > 1 or kinds - {int, str}
        problem = f"are not all names, or all numbers from 1: {columns}"
        yield bool(are_mixed), "texts, label, split_column", problem
        are_repeated = len(set(columns)) < len(columns)
        problem = f"name a column twice: {columns}"
        yield are_repeated, "texts, label, split_column", problem
        problem = f"the columns of {self.kind} are numbers"
        yield self.kind == TAGGING and str in kinds, "texts", problem
        is_below = kinds == {int} and min(columns) < 1
        yield is_below, "texts, label", f"columns {columns} count from 1"

    def _label_mistakes(self) -> Iterator[tuple[bool, str, str]]:
        labels, name = self.labels, "labels"
        problem = f"{labels}, but a regression has numbers; set it to ()"
        yield self.kind == REGRESSION and bool(labels), name, problem
        problem = f"{labels} are not all texts; write {tuple(map(str, labels))}"
        yield any(type(label) is not str for label in labels), name, problem
        check_labels(labels, "OwnTaskConfig.labels")
        for label in labels if self.metric == "entity_f1" else ():
            problem = (
                f"entity_f1 needs tags O, B-TYPE and I-TYPE; {label!r} is none of them"
            )
            yield not ENTITY_TAG.fullmatch(label.strip()), name, problem
        yield len(labels) == 1, name, f"{labels} are not two or more labels"


@configurable()
@dataclasses.dataclass(frozen=True)
class QuestionAnsweringConfig(Settings):
    """Windows of contexts and choice of answers (Devlin et al. 2019, section 4.2).

    max_question_length: longer questions are truncated to so many pieces.
    doc_stride: pieces between the starts of neighbouring windows over a context that
      does not fit into one; windows longer than the stride overlap.
    max_answer_length: the largest number of pieces of an answer, or "auto": an answer
      may be 1.5 times as long, in characters, as the longest one in training.
    n_best: how many of the most likely starts and ends of each window are combined.
    """

    # Those of XTREME's scripts, which are BERT's for SQuAD. The scripts allow answers
    # of 30 pieces, which excludes correct ones where a vocabulary cuts words into many
    # pieces (docs/xtreme.md).
    max_question_length: int = 64
    doc_stride: int = 128
    max_answer_length: int | str = AUTO
    n_best: int = 20

    def _check(self):
        check_positive(self, "max_question_length doc_stride n_best")
        if type(self.max_answer_length) is str:
            check_choice(self, "max_answer_length", (AUTO,))
        else:
            check_positive(self, "max_answer_length")


@configurable()
@dataclasses.dataclass(frozen=True)
class RetrievalConfig(Settings):
    """How translations are found with sentence vectors.

    layer: the layer whose output is pooled: 0 is the embedding output, 1 the first
      layer, -1 the last, -2 the one before it. Analyses that compare layers ignore it.
    pool_special_tokens: whether the mean over a sentence's tokens includes [CLS] and
      [SEP], as in XTREME's baseline, but not in Figure 2.
    centre: whether the mean vector of each side is subtracted from its vectors, which
      removes what all sentences of a language share (Figure 2's translation vector).
    scoring: "cosine", "euclidean", or a margin of Artetxe and Schwenk (ACL 2019):
      "ratio_margin" or "distance_margin".
    num_neighbours: k of the margins; the other scorings ignore it.
    max_sequence_length: length of the longest sentence, [CLS] and [SEP] included.
    long_sentences: "cut" truncates longer sentences. "windows" divides them into
      windows; the vector is the mean over the tokens of all windows of a sentence.
    batch_size: sentences or windows in a batch.
    """

    # In deep models a layer somewhat above the middle is better (Figure 2).
    layer: int = -1
    pool_special_tokens: bool = True
    centre: bool = False
    scoring: str = "cosine"
    num_neighbours: int = 4
    max_sequence_length: int = 128
    long_sentences: str = "cut"
    batch_size: int = 64

    def _check(self):
        check_choice(self, "scoring", SCORINGS)
        check_choice(self, "long_sentences", LONG_SENTENCES)
        check_positive(self, "num_neighbours max_sequence_length batch_size")
        if self.max_sequence_length < 3:
            raise UserError(
                f"RetrievalConfig.max_sequence_length: {self.max_sequence_length} "
                "leaves no room for text beside [CLS] and [SEP]; use 3 or more"
            )

    def layer_of(self, num_layers: int, checkpoint: str) -> int:
        """The layer counted from the start, from 0 to L; L for -1."""
        if not -num_layers - 1 <= self.layer <= num_layers:
            raise UserError(
                f"RetrievalConfig.layer: {self.layer}, but {checkpoint} has layers 0 "
                f"(embeddings) to {num_layers}"
            )
        return self.layer if self.layer >= 0 else num_layers + 1 + self.layer


@configurable("finetune")
@dataclasses.dataclass(frozen=True)
class FinetuneConfig(Settings):
    """All settings of a fine-tuning run, without those of the pre-trained model.

    question_answering: of tasks of this kind. own_task: None unless the task is `own`.
    """

    DEFAULTS: ClassVar = {
        # Paper Table 10, for all models except RemBERT. The rate is the middle of
        # XNLI's grid; the files in tasks/ have the grid of each task.
        "TrainingConfig.batch_size": 32,
        "OptimizerConfig.learning_rate": 2e-5,
        "TrainingConfig.save_checkpoints_steps": 1000,
        "TrainingConfig.keep_checkpoint_max": 3,
        "TrainingConfig.log_steps": 10,
        "TrainingConfig.eval_sequences": 0,
    }

    finetuning: FinetuningConfig = bound(FinetuningConfig)
    mesh: MeshConfig = bound(MeshConfig)
    optimizer: OptimizerConfig = bound(OptimizerConfig)
    training: TrainingConfig = bound(TrainingConfig)
    question_answering: QuestionAnsweringConfig | None = bound(QuestionAnsweringConfig)
    own_task: OwnTaskConfig | None = None


@configurable("retrieve")
@dataclasses.dataclass(frozen=True)
class RetrieveConfig(Settings):
    """The settings of `decoupled retrieve` and of `export --sentence_vectors`."""

    retrieval: RetrievalConfig = bound(RetrievalConfig)
