"""From strings to labels, numbers, tags and answers, with an exported model.

The SavedModel turns ids into numbers. Everything else is the code of the model's task,
which makes windows, chooses answers, and reads and writes files, so that predictions
are those of `finetune`.

  from decoupled.exports.serving.prediction import open_predictor

  model = open_predictor("exports/tags")
  model.predict([["The", "cat", "sat", "."]])  # [{"words": [...], "tags": [...]}]
  model = open_predictor("exports/questions")
  model.predict([("Who sat?", "The cat sat.")])  # [{"answer": "The cat", ...}]
"""

import collections
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from decoupled.configs import QuestionAnsweringConfig
from decoupled.configs.finetuning import (
    AUTO,
    CLASSIFICATION,
    OWN_ENDINGS,
    OWN_METRICS,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
    OwnTaskConfig,
)
from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.core.labels import LabelReader
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary, open_vocabulary, vocabulary_path
from decoupled.exports.served_task import LABELLED
from decoupled.exports.serving.encoder import FEATURES
from decoupled.exports.serving.saved_model import (
    DESCRIPTION,
    FORMAT,
    open_saved_model,
    program_sha256,
)
from decoupled.tasks.description import (
    COLUMNS,
    CORPUS,
    SPLITS,
    XTREME,
    Column,
    TaskDescription,
    describe_task,
)
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.qa_answers import scored_answers
from decoupled.tasks.qa_files import Question, read_questions
from decoupled.tasks.tagging_files import (
    TaggedSentence,
    check_tags,
    read_sentences,
    read_tagged,
)
from decoupled.tasks.task import Features, FinetuningTask
from decoupled.tasks.text_files import (
    LabelledTexts,
    line_ends_note,
    read_unlabelled,
)
from decoupled.xtreme.files import LanguageFile

# The kinds of exports that `predict` runs, and the kinds of their tasks.
_KINDS = {
    "classifier": CLASSIFICATION,
    "regressor": REGRESSION,
    "tagger": TAGGING,
    "span_model": QUESTION_ANSWERING,
}
# Examples between two lines of progress, and rows that run at once.
_EXAMPLES = 64
_ROWS = 32
_TEXT_ENDING = ".txt"
# What an example of each kind has instead of a label.
_NO_LABEL_FIELDS: dict[str, dict[str, Any]] = {
    CLASSIFICATION: {"label": None},
    REGRESSION: {"label": None},
    TAGGING: {"tags": None},
    QUESTION_ANSWERING: {"answers": ()},
}
_TOKEN_KINDS = (TAGGING, QUESTION_ANSWERING)
# The first column numbers the words.
_WORD_COLUMN = {".conllu": 2}
_TAG_COLUMN = 2
# No file has such a column.
_NO_LABEL: dict[type, Column] = {str: "(no label)", int: 10**9}


@dataclasses.dataclass(frozen=True)
class Predictor:
    """An exported model with the code of its task.

    columns, label_column: of the texts in the task's own files; empty or None if
    unknown. segments: how many texts an input may have. limits: settings of answers to
    questions, and most characters of one; else None. model: the SavedModel.
    """

    kind: str
    task: FinetuningTask
    vocabulary: Vocabulary
    columns: Sequence[Column]
    label_column: Column | None
    segments: Sequence[int]
    limits: tuple[QuestionAnsweringConfig, int | None] | None
    model: Any

    def predict(self, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """A prediction for each text, pair of texts, list of words, or pair of question
        and context.

        It has `label` and `probability`; `value`; `words` and `tags`; or `answer`,
        `start` (its first character in the context) and `score` (a sum of two logits).
        Raises UserError for an input of another form, and for NaN or infinity.
        """
        if isinstance(inputs, str):
            raise UserError("inputs: is one text; give a list of texts")
        # Their elements are names of columns, or have no order.
        if isinstance(inputs, Mapping | Set) or hasattr(inputs, "columns"):
            raise UserError("inputs: is a table or a set; give a list")
        examples = [self._example(n, item) for n, item in enumerate(inputs, start=1)]
        return self.as_json(examples, self.answers(examples))

    def read(self, path: str, columns: Sequence[Column] = ()) -> list[Any]:
        """The examples of a file, without its labels, which only say where a row ends.

        In files of `build_corpus` they must be the model's, since nothing else tells
        the label of a row from a second text.
        The file has the format of the task's own files, or is, for models of single
        texts, a .txt file with a text a line. `columns` are those of the texts or of
        the word, instead of those of training.
        """
        readers = self._readers(columns)
        read = readers.get(os.path.splitext(path)[1])
        if read is None:
            endings = ", ".join(readers)
            raise UserError(f"--input: {path} does not end in one of {endings}")
        no_label = _NO_LABEL_FIELDS[self.kind]
        examples = [example._replace(**no_label) for example in read(path)]
        if self.kind in (CLASSIFICATION, REGRESSION):
            if note := line_ends_note(path, examples):
                console.say(note)
            for number, example in enumerate(examples, start=1):
                self._check_count(example.texts, f"{path}, example {number}")
        return examples

    def answers(self, examples: list[Any], progress: bool = False) -> list[Any]:
        """The task's answers; of questions, `ScoredAnswer`s."""
        starts = range(0, len(examples), _EXAMPLES)
        if progress:
            starts = console.track(starts, f"predicting, {_EXAMPLES} examples each")
        answers = []
        for start in starts:
            block = examples[start : start + _EXAMPLES]
            features = self.task.features(self.vocabulary, block)
            outputs = self._outputs(features)
            if self.limits is None:
                answers += self.task.answers(block, features, outputs)
            else:
                logits = (outputs["start_logits"], outputs["end_logits"])
                answers += scored_answers(block, features, *logits, *self.limits)
        return answers

    def as_json(self, examples: list[Any], answers: list[Any]) -> list[dict]:
        """Answers as values of JSON; see `predict`. Questions of files have an `id`."""
        if self.kind == CLASSIFICATION:
            return [answer._asdict() for answer in answers]
        if self.kind == REGRESSION:
            return [{"value": answer} for answer in answers]
        pairs = zip(examples, answers, strict=True)
        if self.kind == TAGGING:
            return [{"words": e.words, "tags": tags} for e, tags in pairs]
        return [
            {"id": e.identifier, "answer": a.text, "start": a.start, "score": a.score}
            for e, a in pairs
        ]

    def write(self, path: str, examples: list[Any], answers: list[Any]) -> None:
        """Writes the prediction file of `finetune`, or, to a .jsonl file, `as_json`.

        The file appears when it is complete.
        """
        if path.endswith(".jsonl"):
            rows = self.as_json(examples, answers)
            lines = (
                json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows
            )
            files.write_text(path, "".join(f"{line}\n" for line in lines))
            return
        if self.limits is not None:
            answers = [answer.text for answer in answers]
        self.task.write(path, examples, answers)

    def _example(self, number: int, item: Any) -> Any:
        is_text = isinstance(item, str)
        parts = tuple(item) if isinstance(item, list | tuple) else (item,)
        where = f"input {number}"
        if not all(isinstance(part, str) for part in parts):
            raise UserError(f"{where}: is no text, and no list of texts")
        if self.kind == TAGGING:
            if is_text or not parts:
                raise UserError(f"{where}: is not a list of one or more words")
            return TaggedSentence(list(parts), None)
        if self.kind == QUESTION_ANSWERING:
            if is_text or len(parts) != 2:
                raise UserError(f"{where}: is not a pair of question and context")
            return Question(str(number), *parts, ())
        self._check_count(parts, where)
        return LabelledTexts(parts, None)

    def _check_count(self, texts: Sequence[str], where: str) -> None:
        if len(texts) not in self.segments:
            counts = " or ".join(f"{count}" for count in self.segments)
            raise UserError(
                f"{where}: the number of texts is {len(texts)}, but this model is for "
                f"{counts}; --texts names the columns of a .tsv, .csv or .jsonl file"
            )

    def _readers(self, columns: Sequence[Column]) -> dict[str, Callable]:
        if self.kind == QUESTION_ANSWERING:
            if columns:
                raise UserError("--texts: questions come in SQuAD's JSON; leave it out")
            return {".json": self._read_questions}
        readers = {
            ending: lambda path: self._read_columns(path, columns)
            for ending in OWN_ENDINGS[self.kind]
        }
        if self.kind != TAGGING:
            readers[_TEXT_ENDING] = lambda path: _read_lines(path, columns)
        if not columns and self.task.description.form != COLUMNS:
            # The files of these tasks differ from others in quoting.
            readers[".tsv"] = self._read_task_file
        return readers

    def _read_questions(self, path: str) -> list[Question]:
        """The questions of a file, with answers or without."""
        return read_questions(LanguageFile(path, self.task.name, None)).questions

    def _read_task_file(self, path: str) -> list[Any]:
        if self.task.description.form == CORPUS:
            return self.task.read_file(path, "unknown", "test")
        if self.kind == TAGGING:
            file = LanguageFile(path, self.task.name, None)
            labels = self.task.labels
            check_tags(path, _TAG_COLUMN, labels)
            return read_sentences(file, labels, tags_may_miss=True, any_tags=True)
        return read_unlabelled(path, self.task.description)

    def _read_columns(self, path: str, columns: Sequence[Column]) -> list[Any]:
        ending = os.path.splitext(path)[1]
        description, label = self.task.description, self.label_column
        if label is None and description.form == XTREME:
            label = description.label
        is_named, columns = bool(columns), tuple(columns) or self.columns
        if self.kind == TAGGING and columns in ((), (1,)):
            columns = (_WORD_COLUMN.get(ending, 1),)
        is_treebank = ending in _WORD_COLUMN
        if self.kind == TAGGING and columns == (2,) and not (is_named or is_treebank):
            # If it was trained on a treebank, column 2 of a table may have the tags.
            raise UserError(
                "--texts: the model was trained on files with the words in column 2, "
                f"perhaps .conllu; name the column of {path} with the words, as "
                "--texts=1"
            )
        if not columns:
            raise UserError(
                f"--texts: name the column of {path} with the text, or the two of a "
                "pair, as --texts=premise,hypothesis"
            )
        if self.kind == TAGGING:
            if str in map(type, columns):
                raise UserError("--texts: the column of the words is a number")
            task = _description(self.task.name, TAGGING, columns)
            tag_column = label or _TAG_COLUMN
            if not is_treebank and tag_column not in columns:
                check_tags(path, tag_column, self.task.labels, is_named)
            return read_tagged(path, task, "test", LabelReader(self.task.labels))
        # Columns by name and by number are of different files.
        if type(label) is not type(columns[0]) or label in columns:
            label = None
        labels = self.task.labels if self.kind == CLASSIFICATION else ()
        task = _description(self.task.name, self.kind, columns, label, labels)
        return read_unlabelled(path, task)

    def _outputs(self, features: Features) -> Features:
        """The model's numbers for all rows; rows of similar length run together."""
        mask = features["input_mask"]
        sizes, width = mask.sum(axis=1), mask.shape[1]
        order = np.argsort(-sizes, kind="stable")
        parts = collections.defaultdict(list)
        call = getattr(self.model, "predict", self.model)
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            length = int(sizes[rows].max())
            inputs = {n: tf.constant(features[n][rows, :length]) for n in FEATURES}
            for name, values in self._numbers(call(inputs)).items():
                if self.kind in _TOKEN_KINDS:
                    values = np.pad(values, [(0, 0), (0, width - length)])
                parts[name].append(values)
        ranks = np.argsort(order)
        return {name: np.concatenate(part)[ranks] for name, part in parts.items()}

    def _numbers(self, outputs: dict[str, tf.Tensor]) -> Features:
        """The outputs that the task's answers depend on, under the task's names."""
        if self.kind == REGRESSION:
            numbers = {"values": outputs["value"].numpy()}
        elif self.kind == QUESTION_ANSWERING:
            names = ("start_logits", "end_logits")
            numbers = {name: outputs[name].numpy() for name in names}
        else:
            name = "logits" if self.kind == TAGGING else "probabilities"
            numbers = {name: outputs[name].numpy()}
            if numbers[name].shape[-1] != len(self.task.labels):
                raise UserError(
                    f"{DESCRIPTION}: has {len(self.task.labels)} labels, but the model "
                    f"gives {numbers[name].shape[-1]}; export it again"
                )
        if not all(np.isfinite(values).all() for values in numbers.values()):
            raise UserError(
                "the model gives NaN or infinity; its training diverged, export an "
                "earlier checkpoint"
            )
        if self.kind == TAGGING:
            return {"best_labels": numbers["logits"].argmax(axis=-1)}
        return numbers


def open_predictor(export_dir: str) -> Predictor:
    """Opens the folder that `decoupled export` wrote."""
    path = os.path.join(export_dir, DESCRIPTION)
    if not files.exists(path):
        raise UserError(
            f"--export_dir: {export_dir} has no {DESCRIPTION}; give the folder that "
            "decoupled export wrote, and not a SavedModel in it such as "
            f"{', '.join(_KINDS)}"
        )
    content = files.read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path}: was not written by decoupled export")
    name = content.get("kind")
    if not isinstance(name, str) or name not in _KINDS:
        raise UserError(
            f"--export_dir: {export_dir} is of the kind {name!r} and gives vectors; "
            f"predict is for {', '.join(_KINDS)}"
        )
    vocabulary = open_vocabulary(
        vocabulary_path(os.path.join(export_dir, "preprocessor", "assets"))
    )
    try:
        fingerprint = content["vocabulary"]["fingerprint"]
        # Earlier exports do not have all of these.
        task_fields, sizes = content.get("task") or {}, content["model"]
        segments = task_fields.get("texts") or (
            [1, 2] if sizes["type_vocab_size"] > 1 else [1]
        )
        if not {*segments} <= {1, 2}:
            raise ValueError(f"texts are {segments}")
        length = files.typed(content["sequence_length"], int)
        if length > files.typed(sizes["max_positions"], int):
            raise ValueError("sequence_length is more than max_positions")
        kind, columns = _KINDS[name], tuple(task_fields.get("columns", ()))
        label_column = task_fields.get("label_column")
        if kind in LABELLED and not content["labels"]:
            raise ValueError("no labels")
        limits = _answers(content["answers"]) if kind == QUESTION_ANSWERING else None
        task = _task(
            kind,
            task_fields.get("name") or "own",
            columns,
            tuple(content["labels"] or ()),
            length,
            limits and limits[0],
        )
    except (UserError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = files.reason(error)
        raise UserError(f"{path}: damaged ({reason}); export again") from error
    if vocabulary.fingerprint != fingerprint:
        raise UserError(f"{vocabulary.path}: is not the vocabulary of the model")
    folder = os.path.join(export_dir, name)
    model = open_saved_model(folder)
    _check_model(folder, model, path, content)
    return Predictor(
        kind, task, vocabulary, columns, label_column, segments, limits, model
    )


def _check_model(folder: str, model: Any, path: str, content: dict) -> None:
    """Refuses a SavedModel of another export, and labels that were changed."""
    # Earlier exports have no hash.
    if content.get("sha256") not in (None, program_sha256(folder)):
        raise UserError(f"{folder}: is not the model of {path}; export again")
    if not hasattr(model, "labels"):
        return
    labels = [label.decode() for label in model.labels().numpy()]
    if labels != content["labels"]:
        raise UserError(
            f"{path}: has other labels than {folder}, which has {', '.join(labels)}; "
            "export again"
        )


def _answers(content: dict[str, Any]) -> tuple[QuestionAnsweringConfig, int | None]:
    """Settings of answers, and most characters of one, of export.json."""
    names = [field.name for field in dataclasses.fields(QuestionAnsweringConfig)]
    settings = {name: content[name] for name in names}
    if content["max_characters"] is not None:
        settings["max_answer_length"] = AUTO
    return QuestionAnsweringConfig(**settings), content["max_characters"]


def _task(
    kind: str,
    name: str,
    columns: Sequence[Column],
    labels: Sequence[str],
    length: int,
    answers: QuestionAnsweringConfig | None,
) -> FinetuningTask:
    """The code of a task, which reads no file of it."""
    if name in TASKS and TASKS[name].kind == kind:
        task = dataclasses.replace(TASKS[name], labels=labels)
    else:
        task = _description(name, kind, columns, labels=labels)
    return task_of(task, "", length, answers)


def _description(
    name: str,
    kind: str,
    columns: Sequence[Column],
    label: Column | None = None,
    labels: Sequence[str] = (),
) -> TaskDescription:
    columns = tuple(columns) or (1,)
    config = OwnTaskConfig(
        name=name,
        kind=kind,
        files=f"{{split}}{OWN_ENDINGS[kind][0]}",
        splits=SPLITS,
        split_column=None,
        training_languages=("en",),
        texts=columns,
        label=_NO_LABEL[type(columns[0])] if label is None else label,
        labels=tuple(labels),
        metric=OWN_METRICS[kind][0],
    )
    return describe_task(config)


def _read_lines(path: str, columns: Sequence[Column]) -> list[LabelledTexts]:
    """A text a line; none may be empty, as in all files of texts."""
    if columns:
        raise UserError(
            f"--texts: {path} has a text a line and no columns; rename it to .tsv if "
            "it has"
        )
    lines = LanguageFile(path, "", None).lines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise UserError(f"{path}:{number}: is empty")
    if not lines:
        raise UserError(f"{path}: holds no text")
    return [LabelledTexts((line,), None) for line in lines]
