"""The task of a trained model, as exports and conversions see it."""

import dataclasses
import math
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
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import check_labels
from decoupled.model.variables import OUTPUT_BIAS, SPANS, Head
from decoupled.runs import run_folder
from decoupled.runs.saved_run import Model

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
    """The variables beside the encoder of a kind of task."""
    count = {REGRESSION: 1, QUESTION_ANSWERING: SPANS.labels}.get(kind, labels)
    return Head(pooler=kind in (CLASSIFICATION, REGRESSION), labels=count)


@dataclasses.dataclass(frozen=True)
class ServedTask:
    """What the folder of a model says of its task.

    head: its kind, see `configs.finetuning`; None for an encoder. labels: in the order
      of their ids. segments: how many texts an input may have.
    trained_length: tokens of the inputs in training; None if the folder does not say,
      as after a conversion.
    answers: settings of question answering. assumed_settings: those that the folder
      does not contain. max_characters: of an answer, instead of the limit in pieces.
    columns, label_column: of the texts, or of the word, in the task's files; empty for
      tasks whose files have one form.
    """

    head: str | None = None
    name: str | None = None
    labels: Sequence[str] = ()
    segments: Sequence[int] = (1,)
    trained_length: int | None = None
    answers: QuestionAnsweringConfig | None = None
    assumed_settings: Sequence[str] = ()
    max_characters: int | None = None
    columns: Sequence[str | int] = ()
    label_column: str | int | None = None

    @property
    def kind(self) -> str:
        """The name of the SavedModel for ids."""
        return _NAMES[self.head][0]

    @property
    def text_kind(self) -> str | None:
        """The name of the SavedModel for strings; None if there is none."""
        return _NAMES[self.head][1]

    def default_length(self, config: ModelConfig) -> int:
        """The length of training; a common length if that is unknown."""
        length = _READER_LENGTH if self.answers else _HUB_SEQUENCE_LENGTH
        return self.trained_length or min(length, config.max_positions)

    def with_max_answer_length(self, pieces: int) -> "ServedTask":
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
            assumed_settings=[
                name for name in self.assumed_settings if name != "max_answer_length"
            ],
            max_characters=None,
        )

    def answer_settings(self) -> dict[str, Any] | None:
        """Settings of windows and answers as JSON; one of the two limits is None."""
        if self.answers is None:
            return None
        settings = dataclasses.asdict(self.answers)
        if self.max_characters is not None:
            settings["max_answer_length"] = None
        return settings | {"max_characters": self.max_characters}


def read_task(model: Model) -> ServedTask:
    """The task of an opened model."""
    description = model.description
    path = os.path.join(model.folder, run_folder.CONFIG)
    head = _head(path, description.task)
    name = description.task.get("name") if description.task else None
    columns = _columns(path, description.data)
    segments = (1, 2) if model.vocabulary.pairs.fit(model.config) else (1,)
    if head in (CLASSIFICATION, REGRESSION):
        count = 2 if name in _PAIR_TASKS else len(columns["columns"])
        segments = (count,) if count else segments
    reader_fields = {}
    if head == QUESTION_ANSWERING:
        reader_fields = _reader_settings(model)
    return ServedTask(
        head=head,
        name=name,
        labels=_labels(path, description.task) if head in LABELLED else (),
        segments=segments,
        trained_length=_trained_length(path, description, model.weights.global_step),
        **columns,
        **reader_fields,
    )


def check_exportable(
    model: Model, task: ServedTask, sequence_length: int, mlm: bool
) -> None:
    """Checks that a model can be exported, before anything is written."""
    max_positions, prefix = model.config.max_positions, model.weights.path
    if not _SHORTEST <= sequence_length <= max_positions:
        raise UserError(
            f"--sequence_length: {sequence_length} is not between {_SHORTEST} and "
            f"the model's max_positions = {max_positions}"
        )
    if task.answers:
        question, stride = task.answers.max_question_length, task.answers.doc_stride
        special = model.vocabulary.pairs.special
        min_length = question + special + stride
        if max_positions < min_length:
            raise UserError(
                f"{model.folder}: max_positions = {max_positions} leaves no room for a "
                f"question of {question} pieces and windows that begin every {stride}; "
                "fine-tune the model with smaller max_question_length and doc_stride"
            )
        if sequence_length < min_length:
            room = max(sequence_length - special - question, 0)
            raise UserError(
                f"--sequence_length: {sequence_length} leaves {room} pieces of "
                f"context beside a question of {question}; windows begin every "
                f"{stride} pieces, so give {min_length} or more"
            )
    has_pairs = task.answers or 2 in task.segments
    if has_pairs and not model.vocabulary.pairs.fit(model.config):
        raise UserError(
            f"{prefix}: has one type embedding (ModelConfig.type_vocab_size); pairs "
            "and questions need two"
        )
    if mlm and OUTPUT_BIAS not in model.weights:
        raise UserError(
            f"{prefix}: holds no MLM head (fine-tuning drops it); export without "
            "--mlm, or a pre-training checkpoint"
        )
    head = task_head(task.head, len(task.labels))
    model.weights.check(model.config, head._replace(masked_lm=mlm))


def _head(path: str, task: dict[str, Any] | None) -> str | None:
    if task is None:
        return None
    kind = task.get("kind", CLASSIFICATION)
    if not isinstance(kind, str) or kind not in _NAMES:
        known = ", ".join(filter(None, _NAMES))
        raise UserError(f"{path}: a task of the kind {kind!r}; known: {known}")
    return kind


def _labels(path: str, task: dict[str, Any]) -> list[str]:
    labels = task.get("labels")
    if not (isinstance(labels, list) and labels):
        raise UserError(f'{path}: "task" has no list of labels')
    labels = check_labels(labels, f'{path}: "task"')
    if len(labels) < 2:
        raise UserError(
            f'{path}: "task" has the label {quoted(labels[0])} alone; two or more are '
            "needed"
        )
    return labels


def _columns(path: str, data: Any) -> dict[str, Any]:
    features = data.get("features") if isinstance(data, dict) else None
    features = features if isinstance(features, dict) else {}
    columns, label = features.get("texts", []), features.get("label")
    is_list = isinstance(columns, list) and len(columns) <= 2
    if not (is_list and all(type(column) in (str, int) for column in columns)):
        raise UserError(f"{path}: texts is {columns!r}, not one or two columns")
    if type(label) not in (str, int, type(None)):
        raise UserError(f"{path}: label is {label!r}, not a column")
    return {"columns": columns, "label_column": label}


def _reader_settings(model: Model) -> dict[str, Any]:
    path, data = os.path.join(model.folder, run_folder.ANSWERS), model.description.data
    answers = files.read_json(path) if files.exists(path) else {}
    features = data.get("features") if isinstance(data, dict) else None
    parts = [part for part in (features, answers) if isinstance(part, dict)]
    known_settings = {
        name: part[name]
        for part in parts
        for name in _READER_DEFAULTS
        if part.get(name) is not None
    }
    characters = answers.get("max_characters") if isinstance(answers, dict) else None
    if characters is not None:
        if type(characters) is not int or characters < 1:
            raise UserError(f"{path}: max_characters is {characters!r}, not 1 or more")
        known_settings["max_answer_length"] = _READER_DEFAULTS["max_answer_length"]
    elif known_settings.get("max_answer_length") == AUTO:
        # Only the training data determine that limit.
        del known_settings["max_answer_length"]
    try:
        settings = QuestionAnsweringConfig(**(_READER_DEFAULTS | known_settings))
    except UserError as error:
        raise UserError(f"{model.folder}: {error}") from error
    special, question = model.vocabulary.pairs.special, settings.max_question_length
    room = model.config.max_positions - special - question
    if "doc_stride" not in known_settings and 0 < room < settings.doc_stride:
        # With few positions, windows of the usual stride would skip text.
        settings = dataclasses.replace(settings, doc_stride=room)
    return {
        "answers": settings,
        "assumed_settings": sorted(set(_READER_DEFAULTS) - set(known_settings)),
        "max_characters": characters,
    }


def _trained_length(
    path: str, description: run_folder.ModelDir, step: int | None
) -> int | None:
    """The length of inputs that `finetune` or `pretrain` wrote to config.json; of the
    phases of pre-training that began before `step`, the greatest."""
    data = description.data if isinstance(description.data, dict) else {}
    for part, name in (
        ("features", "max_sequence_length"),
        ("masking", "sequence_length"),
    ):
        settings = data.get(part)
        if not isinstance(settings, dict) or name not in settings:
            continue
        lengths, start = [], 0
        try:
            for phase in (*data.get("earlier_phases", ()), data):
                if start < (step or math.inf):
                    lengths.append(phase[part][name])
                start += phase.get("steps", 0)
        except (AttributeError, KeyError, TypeError) as error:
            reason = files.reason(error)
            raise UserError(f"{path}: earlier_phases: no phases ({reason})") from error
        max_positions = description.model.max_positions
        for length in lengths:
            if type(length) is not int or not 1 <= length <= max_positions:
                raise UserError(
                    f"{path}: {name} is {length!r}, not between 1 and the model's "
                    f"max_positions = {max_positions}"
                )
        return max(lengths)
    return None
