"""The interface that fine-tuning needs from a task: files in, predictions out.

`decoupled.tasks.task.Task` is the graph's side of a task. This is its side towards
data: which files it has, how examples become features, how the graph's outputs become
answers, and what the answers are worth.
"""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoupled.data.vocabulary import Vocabulary
from decoupled.tasks.task import Task

Features = dict[str, np.ndarray]
ENGLISH = "en"


class FinetuningTask(abc.ABC):
    """A task that is trained in one language and evaluated in every language.

    name: as on the command line and in XTREME's folders. kind: what the head does.
    training_languages: trained on; English dev, or that of the first, is what
      checkpoints are chosen by.
    labels: of classification and tagging, in the order of their ids; else empty.
    metrics: what `score` gives, in the order in which it is shown.
    headline: the metrics whose mean chooses a checkpoint and a learning rate.
    prediction_suffix: "tsv" or "json", of XTREME's submission format.
    graph_features: the features that the graph wants; any others serve `answers`.
    """

    name: str
    kind: str
    training_languages: tuple[str, ...] = (ENGLISH,)
    labels: Sequence[str]
    metrics: tuple[str, ...]
    headline: tuple[str, ...]
    prediction_suffix: str
    graph_features: tuple[str, ...]

    @abc.abstractmethod
    def languages(self, data_dir: str, split: str) -> list[str]:
        """Languages whose file of this split is there, English first.

        Those that XTREME does not list for the task come last.
        """

    @abc.abstractmethod
    def path(self, data_dir: str, split: str, language: str) -> str:
        """The file of a split ("train", "dev" or "test") in a language.

        Raises:
          UserError: there is none, naming task, split, language, the path looked for
            and how to get it.
        """

    def paths(self, data_dir: str, split: str, language: str) -> list[str]:
        """All files that `read` reads."""
        return [self.path(data_dir, split, language)]

    @abc.abstractmethod
    def read(self, data_dir: str, split: str, language: str) -> list[Any]:
        """The examples in `path(...)`, in the order of the file.

        Raises:
          UserError: the file is missing, empty or malformed; file and line are named.
        """

    @abc.abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything beside vocabulary and file that features depend on, as JSON."""

    def answer_settings(self) -> dict[str, Any]:
        """What else `answers` depends on, as JSON; exports do as it says."""
        return {}

    @abc.abstractmethod
    def features(self, vocabulary: Vocabulary, examples: list[Any]) -> Features:
        """Examples as arrays with one row per window; an example may have several.

        Returns:
          name -> array [rows, ...]; `example_index` int32 [rows] says whose row it is,
          in non-decreasing order.
        """

    def see_training(self, training: list[Any]) -> None:
        """Takes from the training examples what `answers` depends on.

        Called once, before `answers`; most tasks need nothing of them.
        """
        return None

    def answer_limit(self) -> str | None:
        """The longest answer that `answers` gives, in words; None without a limit."""
        return None

    def share_beyond_limit(
        self, vocabulary: Vocabulary, examples: list[Any]
    ) -> float | None:
        """Share of labelled examples whose right answers are all beyond `answer_limit`.

        Returns:
          0 to 1; None where no example is labelled or answers have no limit.
        """
        return None

    @abc.abstractmethod
    def network(
        self, dropout: float, label_smoothing: float, any_length: bool = False
    ) -> Task:
        """The graph's side of the task.

        Args:
          dropout: before the last layer, in training.
          label_smoothing: of the training loss.
          any_length: batches are padded to several lengths, which must not change the
            training loss.
        """

    @abc.abstractmethod
    def answers(
        self, examples: list[Any], features: Features, outputs: Features
    ) -> list[Any]:
        """The graph's outputs [rows, ...] as one answer per example."""

    @abc.abstractmethod
    def score(
        self, language: str, examples: list[Any], answers: list[Any]
    ) -> dict[str, float] | None:
        """Metric -> value of all answers; None where the examples have no labels."""

    @abc.abstractmethod
    def trivial_answers(
        self, training: list[Any], examples: list[Any]
    ) -> list[Any] | None:
        """Answers of a trivial baseline (majority label or tag), or None."""

    @abc.abstractmethod
    def write(self, path: str, examples: list[Any], answers: list[Any]) -> None:
        """Writes the answers in XTREME's submission format, atomically."""
