"""A trained model for exports: sizes, vocabulary, checkpoint, task."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from decoupled.configs import ModelConfig, QuestionAnsweringConfig
from decoupled.configs.finetuning import (
    AUTO,
    CLASSIFICATION,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.labels import check_labels
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.checkpoint_files import CheckpointFile
from decoupled.model.variables import OUTPUT_BIAS, SPANS, Head
from decoupled.runs import run_folder
from decoupled.runs.saved_run import (
    read_folder,
    selected_checkpoint,
    selected_folder,
)
from decoupled.tasks.qa_features import SPECIALS
from decoupled.training.checkpoints import find_checkpoint, listed_checkpoints

# [CLS] and two [SEP], and a piece for each of two segments.
_SHORTEST = 5
# TF Hub's text preprocessors pack to this length by default.
_HUB_SEQUENCE_LENGTH = 128
# The settings of XTREME's scripts, for question-answering models whose folder has no
# settings, such as converted models.
_READER_LENGTH = 384
_READER_DEFAULTS = {
    "max_question_length": 64,
    "doc_stride": 128,
    "max_answer_length": 30,
    "n_best": 20,
}
# Kind of the head -> name of the SavedModel that takes ids, and of the one that takes
# strings, if there is one.
_NAMES = {
    None: ("encoder", "text_encoder"),
    CLASSIFICATION: ("classifier", "text_classifier"),
    REGRESSION: ("regressor", "text_regressor"),
    TAGGING: ("tagger", None),
    QUESTION_ANSWERING: ("span_model", None),
}
# The names for sentence vectors, for any head.
SENTENCE_NAMES = ("sentence_encoder", "text_sentence_encoder")
LABELLED = (CLASSIFICATION, TAGGING)
# Earlier exports hold these; `decoupled predict` takes their place.
REMOVED_NAMES = ("text_tagger", "text_qa")
NAMES = (*filter(None, sum(_NAMES.values(), SENTENCE_NAMES)), *REMOVED_NAMES)
# Tasks of pairs whose settings do not name columns.
_PAIR_TASKS = ("xnli", "pawsx")


def task_head(kind: str | None, labels: int) -> Head:
    """The variables beside the encoder of a kind of task; none for None.

    Args:
      labels: of a classifier or tagger.
    """
    count = {REGRESSION: 1, QUESTION_ANSWERING: SPANS.labels}.get(kind, labels)
    return Head(pooler=kind in (CLASSIFICATION, REGRESSION), labels=count)


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """The model that is exported.

    config: its sizes. vocabulary: its pieces. weights: of its checkpoint.
    head: the kind of its task, see `configs.finetuning`; None for an encoder.
    task: the name of its fine-tuning task, if any.
    labels: of a classifier or tagger, in the order of their ids; else empty.
    trained_length: tokens of the inputs in training; None if the folder does not say,
      as after a conversion.
    answers: settings of windows and answers for question answering; else None.
    columns: of the texts, or of the word, in the task's files; empty if the folder does
      not say, as for tasks whose files have one form. label_column: of the label.
    assumed: names of settings in `answers` that the folder does not contain.
    max_characters: most characters of an answer, instead of the limit in pieces.
    """

    config: ModelConfig
    vocabulary: Vocabulary
    weights: CheckpointFile
    head: str | None
    task: str | None
    labels: Sequence[str]
    trained_length: int | None
    answers: QuestionAnsweringConfig | None = None
    assumed: Sequence[str] = ()
    max_characters: int | None = None
    columns: Sequence[str | int] = ()
    label_column: str | int | None = None

    @property
    def segments(self) -> Sequence[int]:
        """How many texts an input may have: 1, 2, or either if it is unknown."""
        possible = (1, 2) if self.config.type_vocab_size > 1 else (1,)
        if self.head not in (CLASSIFICATION, REGRESSION):
            return possible
        count = 2 if self.task in _PAIR_TASKS else len(self.columns)
        return (count,) if count else possible

    @property
    def default_length(self) -> int:
        """The length of training; a common length if that is unknown."""
        usual = _READER_LENGTH if self.answers else _HUB_SEQUENCE_LENGTH
        return self.trained_length or min(usual, self.config.max_positions)

    @property
    def kind(self) -> str:
        """The name of the SavedModel for ids: `encoder`, `classifier`, `tagger` ..."""
        return _NAMES[self.head][0]

    @property
    def text_kind(self) -> str | None:
        """The name of the SavedModel for strings; None if there is none."""
        return _NAMES[self.head][1]

    def with_max_answer_length(self, pieces: int) -> "TrainedModel":
        """The same question-answering model with another limit.

        Raises:
          UserError: the limit is not positive, or the model gives no answers.
        """
        if self.answers is None:
            raise UserError(
                "--max_answer_length: is for models that answer questions; this is "
                f"{self.kind}"
            )
        if pieces < 1:
            raise UserError(f"--max_answer_length: {pieces} is less than 1")
        return dataclasses.replace(
            self,
            answers=dataclasses.replace(self.answers, max_answer_length=pieces),
            assumed=[name for name in self.assumed if name != "max_answer_length"],
            max_characters=None,
        )

    def described_answers(self) -> dict[str, Any] | None:
        """Settings of windows and answers as JSON; one of the two limits is None."""
        if self.answers is None:
            return None
        described = dataclasses.asdict(self.answers)
        if self.max_characters is not None:
            described["max_answer_length"] = None
        return described | {"max_characters": self.max_characters}

    def check(self, sequence_length: int, mlm: bool) -> None:
        """Checks that the model can be exported, before anything is written.

        Raises:
          UserError: a variable is missing or has another shape, the checkpoint lacks
            the MLM head that `mlm` requires, or the sequence length is impossible.
        """
        longest = self.config.max_positions
        if not _SHORTEST <= sequence_length <= longest:
            raise UserError(
                f"--sequence_length: {sequence_length} is not between {_SHORTEST} and "
                f"the model's max_positions = {longest}"
            )
        if self.answers:
            self._check_windows(sequence_length)
        if self.config.type_vocab_size < 2 and (self.answers or 2 in self.segments):
            raise UserError(
                f"{self.weights.path}: has one type embedding "
                "(ModelConfig.type_vocab_size); pairs and questions need two"
            )
        if mlm and OUTPUT_BIAS not in self.weights:
            raise UserError(
                f"{self.weights.path}: holds no MLM head (fine-tuning drops it); "
                "export without --mlm, or a pre-training checkpoint"
            )
        own = task_head(self.head, len(self.labels))
        self.weights.check(self.config, own._replace(masked_lm=mlm))

    def _check_windows(self, sequence_length):
        asked, stride = self.answers.max_question_length, self.answers.doc_stride
        room = sequence_length - SPECIALS - asked
        if room < stride:
            raise UserError(
                f"--sequence_length: {sequence_length} leaves {max(room, 0)} pieces of "
                f"context beside a question of {asked}; windows begin every {stride} "
                f"pieces, so give {asked + SPECIALS + stride} or more"
            )


def open_trained_model(
    model_dir: str, checkpoint: str | None = None, *, is_read_whole: bool = False
) -> TrainedModel:
    """Opens a model that `pretrain`, `finetune` or `convert` made.

    Args:
      model_dir: the run's folder.
      checkpoint: a prefix, or the name of one in `model_dir`; by default the selected
        checkpoint.
      is_read_whole: whether the caller reads every weight. This function then does not
        read the checkpoint to check that it is complete.

    Raises:
      UserError: a file is missing or not ours, the vocabulary is not the one that the
        model was trained with, or there is no complete checkpoint.
    """
    described, vocabulary = read_folder(model_dir)
    find = chosen_prefix if is_read_whole else _find
    prefix = find(model_dir, checkpoint)
    path = os.path.join(model_dir, run_folder.CONFIG)
    head = _head(path, described.task)
    reader = {}
    if head == QUESTION_ANSWERING:
        reader = _reader_settings(model_dir, described.data)
    return TrainedModel(
        config=described.model,
        vocabulary=vocabulary,
        weights=CheckpointFile(prefix),
        head=head,
        task=described.task.get("name") if described.task else None,
        labels=_labels(path, described.task) if head in LABELLED else (),
        trained_length=_trained_length(path, described),
        **_columns(path, described.data),
        **reader,
    )


def chosen_prefix(model_dir: str, checkpoint: str | None) -> str:
    """The prefix of the given checkpoint, or else of the selected one.

    The checkpoint is not read.

    Args:
      model_dir: the run's folder.
      checkpoint: a prefix, or the name of one in `model_dir`.

    Raises:
      UserError: the folder has no readable list of checkpoints.
    """
    if checkpoint:
        return _named(model_dir, checkpoint)
    folder = selected_folder(model_dir)
    prefixes = listed_checkpoints(folder)
    if not prefixes:
        raise UserError(
            f"{folder}: no readable list of checkpoints ({files.CHECKPOINT_LIST}); "
            "name one with --checkpoint=PREFIX"
        )
    return prefixes[-1]


def _head(path: str, task: dict[str, Any] | None) -> str | None:
    """The kind of a task; None where the model has no task."""
    if task is None:
        return None
    kind = task.get("kind", CLASSIFICATION)
    if not isinstance(kind, str) or kind not in _NAMES:
        known = ", ".join(filter(None, _NAMES))
        raise UserError(f"{path}: a task of the kind {kind!r}; known: {known}")
    return kind


def _labels(path: str, task: dict[str, Any]) -> list[str]:
    """The labels of a classifier or tagger."""
    labels = task.get("labels")
    if not (isinstance(labels, list) and labels):
        raise UserError(f'{path}: "task" has no list of labels')
    return check_labels(labels, f'{path}: "task"')


def _columns(path: str, data: Any) -> dict[str, Any]:
    """The columns of `OwnTaskConfig`, which `finetune` wrote to config.json."""
    features = data.get("features") if isinstance(data, dict) else None
    features = features if isinstance(features, dict) else {}
    columns, label = features.get("texts", []), features.get("label")
    is_list = isinstance(columns, list) and len(columns) <= 2
    if not (is_list and all(type(column) in (str, int) for column in columns)):
        raise UserError(f"{path}: texts is {columns!r}, not one or two columns")
    if type(label) not in (str, int, type(None)):
        raise UserError(f"{path}: label is {label!r}, not a column")
    return {"columns": columns, "label_column": label}


def _reader_settings(model_dir: str, data: Any) -> dict[str, Any]:
    """`answers`, `assumed` and `max_characters` of a `TrainedModel`."""
    path = os.path.join(model_dir, run_folder.ANSWERS)
    said = files.read_json(path) if files.exists(path) else {}
    features = data.get("features") if isinstance(data, dict) else None
    parts = [part for part in (features, said) if isinstance(part, dict)]
    known = {
        name: part[name]
        for part in parts
        for name in _READER_DEFAULTS
        if part.get(name) is not None
    }
    characters = said.get("max_characters") if isinstance(said, dict) else None
    if characters is not None:
        if type(characters) is not int or characters < 1:
            raise UserError(f"{path}: max_characters is {characters!r}, not 1 or more")
        known["max_answer_length"] = _READER_DEFAULTS["max_answer_length"]
    elif known.get("max_answer_length") == AUTO:
        # Only the training data determine that limit.
        del known["max_answer_length"]
    try:
        settings = QuestionAnsweringConfig(**(_READER_DEFAULTS | known))
    except UserError as error:
        raise UserError(f"{model_dir}: {error}") from error
    return {
        "answers": settings,
        "assumed": sorted(set(_READER_DEFAULTS) - set(known)),
        "max_characters": characters,
    }


def _trained_length(path: str, described: run_folder.ModelDir) -> int | None:
    """The length of inputs that `finetune` or `pretrain` wrote to config.json."""
    data = described.data if isinstance(described.data, dict) else {}
    for part, name in (
        ("features", "max_sequence_length"),
        ("masking", "sequence_length"),
    ):
        settings = data.get(part)
        if not isinstance(settings, dict) or name not in settings:
            continue
        length, longest = settings[name], described.model.max_positions
        if type(length) is not int or not 1 <= length <= longest:
            raise UserError(
                f"{path}: {name} is {length!r}, not between 1 and the model's "
                f"max_positions = {longest}"
            )
        return length
    return None


def _find(model_dir: str, checkpoint: str | None) -> str:
    """The prefix of a checkpoint. It is read to check that it is complete."""
    if checkpoint:
        return find_checkpoint(_named(model_dir, checkpoint))
    return selected_checkpoint(model_dir).prefix


def _named(model_dir: str, checkpoint: str) -> str:
    """The prefix; a bare name, e.g. `model.ckpt-100`, is in `model_dir`."""
    return checkpoint if "/" in checkpoint else os.path.join(model_dir, checkpoint)
