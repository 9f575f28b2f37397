"""Tasks that a user describes: labels or numbers of texts, tags, answers to questions.

`OwnTaskConfig` describes files, columns and languages. In all else such a task equals
the other tasks of its kind.
"""

import os
from collections.abc import Callable
from typing import Any

from decoupled.configs.finetuning import (
    CLASSIFICATION,
    REGRESSION,
    TAGGING,
    OwnTaskConfig,
    QuestionAnsweringConfig,
)
from decoupled.core import console, files
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import LabelReader, check_labels
from decoupled.metrics.labels import accuracy, entity_scores, macro_f1
from decoupled.metrics.question_answering import squad_scores
from decoupled.tasks.classification import (
    Answer,
    SequenceClassificationTask,
    write_probable,
)
from decoupled.tasks.classification_files import LabelledTexts
from decoupled.tasks.own_files import (
    find_languages,
    pattern_of,
    read_tagged,
    read_texts,
    splits_of,
)
from decoupled.tasks.qa import QuestionAnsweringTask
from decoupled.tasks.qa_files import Question
from decoupled.tasks.regression import RegressionTask
from decoupled.tasks.tagging import TaggingTask, Tags
from decoupled.tasks.tagging_files import TaggedSentence
from decoupled.tasks.task import FinetuningTask
from decoupled.xtreme.files import LanguageFile

# Topics of parallel sentences (Adelani et al. 2024), of github.com/dadelani/sib-200.
SIB200 = OwnTaskConfig(
    name="sib200",
    kind=CLASSIFICATION,
    files="sib200/{split}-{language}.tsv",
    splits=("train", "dev", "test"),
    split_column=None,
    training_languages=("en",),
    texts=("text",),
    label="category",
    labels=(),
    metric="accuracy",
)


class _OwnFiles(FinetuningTask):
    """The files of a described task. `read_file` reads one of them."""

    def _describe(self, config: OwnTaskConfig) -> None:
        self.name, self.kind, self.config = config.name, config.kind, config
        self.training_languages = config.training_languages
        self.headline = (config.metric,)
        # Path -> the splits in a file that contains several; each file is read once.
        self._splits: dict[str, set[str]] = {}
        # Files of which it was said that cells have line ends.
        self._told: set[str] = set()

    def settings(self) -> dict[str, Any]:
        """Those of the kind, and the columns and splits that are read."""
        config = self.config
        return {
            **super().settings(),
            "texts": list(config.texts),
            "label": config.label,
            "splits": list(config.splits),
            "split_column": config.split_column,
        }

    def languages(self, data_dir: str, split: str) -> list[str]:
        """The languages that have examples of a split, those of training first."""
        found = find_languages(self.config, data_dir, split)
        if self.config.split_column is None or split == "train":
            return list(found)
        for path in found.values():
            if path not in self._splits:
                self._splits[path] = splits_of(path, self.config)
        return [name for name, path in found.items() if split in self._splits[path]]

    def path(self, data_dir: str, split: str, language: str) -> str:
        """The file that `OwnTaskConfig.files` names."""
        pattern = pattern_of(self.config, split)
        path = os.path.join(data_dir, pattern.replace("{language}", language))
        has_one = "{language}" in pattern or language == self.training_languages[0]
        if not has_one or not files.exists(path):
            raise UserError(
                f"{path}: missing; {self.name} needs its {split} file of language "
                f"{language!r} (OwnTaskConfig.files)"
            )
        return path

    def paths(self, data_dir: str, split: str, language: str) -> list[str]:
        """For training, the files of all training languages; else `path`."""
        languages = self.training_languages if split == "train" else [language]
        return [self.path(data_dir, split, name) for name in languages]

    def read(self, data_dir: str, split: str, language: str) -> list[Any]:
        """The examples; for training, those of all training languages."""
        paths = self.paths(data_dir, split, language)
        return [example for path in paths for example in self.read_file(path, split)]

    def read_file(self, path: str, split: str) -> list[Any]:
        """The examples of a file."""
        raise NotImplementedError

    def read_rows(self, path: str, split: str) -> list[LabelledTexts]:
        """The rows of a split; it is said once that cells have line ends in them."""
        rows = read_texts(path, self.config, split, self.known_labels())
        count = sum(bool(files.LINE_END.search(t)) for row in rows for t in row.texts)
        if count and path.endswith(".tsv") and path not in self._told:
            self._told.add(path)
            console.say(f"{path}: {count:,} cells in quotes have line ends in them")
        return rows

    def known_labels(self) -> LabelReader:
        """The labels of the task, to read a file with them."""
        source = "OwnTaskConfig.labels" if self.config.labels else "the training files"
        return LabelReader(self.labels, source)


class OwnClassification(_OwnFiles, SequenceClassificationTask):
    """A label for a text or a pair of texts.

    Args:
      config: of the task. Without labels in it, they come from the training files.
      data_dir: the folder of its files.
      max_sequence_length: tokens of a row.

    Raises:
      UserError: training files are missing or malformed, or have fewer than two labels.
    """

    metrics = ("accuracy", "macro_f1")

    def __init__(self, config: OwnTaskConfig, data_dir: str, max_sequence_length: int):
        self._describe(config)
        labels = own_labels(
            self, data_dir, lambda path, new: read_texts(path, config, "train", new)
        )
        super().__init__(config.name, labels, max_sequence_length)

    def read_file(self, path: str, split: str) -> list[LabelledTexts]:
        """The rows of a split."""
        return self.read_rows(path, split)

    def scores_of(self, labels: list[str], answers: list[str]) -> dict[str, float]:
        """Accuracy and the mean F1 of all labels."""
        return {**accuracy(labels, answers), **macro_f1(labels, answers)}

    def write(
        self, path: str, examples: list[LabelledTexts], answers: list[Answer]
    ) -> None:
        """As `write_probable`."""
        write_probable(path, answers)


class OwnRegression(_OwnFiles, RegressionTask):
    """A number for a text or a pair of texts.

    Args:
      config: of the task. max_sequence_length: tokens of a row.
    """

    def __init__(self, config: OwnTaskConfig, max_sequence_length: int):
        super().__init__(config.name, max_sequence_length)
        self._describe(config)

    def read_file(self, path: str, split: str) -> list[LabelledTexts]:
        """The rows of a split.

        Raises:
          UserError: also if every row of a dev file has the same number. Correlations
            are undefined there, and none of them can select a checkpoint.
        """
        rows = self.read_rows(path, split)
        if split == "dev" and len({float(row.label) for row in rows}) < 2:
            raise UserError(
                f"{path}: every number is {rows[0].label}, and a correlation needs two "
                "different numbers; add examples, or give no dev file"
            )
        return rows


class OwnTagging(_OwnFiles, TaggingTask):
    """A tag for each word.

    Args, Raises: as `OwnClassification`.
    """

    def __init__(self, config: OwnTaskConfig, data_dir: str, max_sequence_length: int):
        self._describe(config)
        labels = own_labels(
            self, data_dir, lambda path, new: read_tagged(path, config, "train", new)
        )
        super().__init__(config.name, max_sequence_length, labels)
        if config.metric == "entity_f1":
            self.metrics = ("entity_f1", "precision", "recall", "accuracy")

    def read_file(self, path: str, split: str) -> list[TaggedSentence]:
        """The sentences of a file."""
        return read_tagged(path, self.config, split, self.known_labels())

    def scores_of(
        self, language: str, labels: list[Tags], answers: list[Tags]
    ) -> dict[str, float]:
        """Accuracy of words and, if the metric is entity_f1, scores of entities."""
        flat = [tag for tags in labels for tag in tags]
        found = accuracy(flat, [tag for tags in answers for tag in tags])
        if len(self.metrics) == 1:
            return found
        scores = entity_scores(labels, answers)
        return {
            "entity_f1": scores["f1"],
            "precision": scores["precision"],
            "recall": scores["recall"],
            **found,
        }


class OwnQuestions(_OwnFiles, QuestionAnsweringTask):
    """The span of a text that answers a question, in SQuAD's JSON.

    Args:
      config: of the task. max_sequence_length: tokens of a window.
      settings: of windows and answers.

    Raises:
      UserError: a window has too little room for its part of a context.
    """

    def __init__(
        self,
        config: OwnTaskConfig,
        max_sequence_length: int,
        settings: QuestionAnsweringConfig,
    ):
        super().__init__(config.name, max_sequence_length, settings)
        self._describe(config)

    def read_file(self, path: str, split: str) -> list[Question]:
        """The questions of a file; see `QuestionAnsweringTask.read`."""
        return self.read_questions_of(LanguageFile(path, self.name, "own"), split)

    def scores_of(
        self,
        language: str,
        questions: list[tuple[str, list[str]]],
        answers: dict[str, str],
    ) -> dict[str, float]:
        """Exact match and F1, by SQuAD's rules in all languages."""
        return squad_scores(questions, answers)


def own_labels(
    task: _OwnFiles, data_dir: str, read: Callable[[str, LabelReader], list[Any]]
) -> list[str]:
    """The labels of a configuration, or those of its training files, sorted.

    Raises:
      UserError: there are fewer than two.
    """
    config = task.config
    if config.labels:
        return check_labels(config.labels, "OwnTaskConfig.labels")
    found = LabelReader()
    for path in task.paths(data_dir, "train", config.training_languages[0]):
        read(path, found)
    if len(found.labels) < 2:
        raise UserError(
            f"{task.path(data_dir, 'train', config.training_languages[0])}: has the "
            f"label {quoted(''.join(found.labels))} alone; two or more are needed"
        )
    return found.labels


def make_own_task(
    config: OwnTaskConfig,
    data_dir: str,
    max_sequence_length: int,
    settings: QuestionAnsweringConfig | None,
) -> FinetuningTask:
    """The task that a configuration describes.

    Raises:
      UserError: its files are missing or malformed, or settings are.
    """
    if config.kind == CLASSIFICATION:
        return OwnClassification(config, data_dir, max_sequence_length)
    if config.kind == REGRESSION:
        return OwnRegression(config, max_sequence_length)
    if config.kind == TAGGING:
        return OwnTagging(config, data_dir, max_sequence_length)
    if settings is None:
        raise UserError(
            "finetune.question_answering: is not set; give --gin_file=tasks/qa.gin too"
        )
    return OwnQuestions(config, max_sequence_length, settings)
