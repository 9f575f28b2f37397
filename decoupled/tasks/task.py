"""The two interfaces of a task, and what the graphs of several tasks share.

`Task` is the side of the graph: features, loss and metrics. `FinetuningTask` is the
side of the data: which files there are, how examples become features, how the graph's
outputs become answers, and how answers are scored.
"""

import abc
import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from decoupled.core import console, files
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import LabelReader, check_labels
from decoupled.data.vocabulary import Vocabulary
from decoupled.model.dims import Dims, examples_dim, labels_dim
from decoupled.model.heads import Forward, cls_positions
from decoupled.model.layers import Builder
from decoupled.model.variables import Head
from decoupled.ops.cross_entropy import softmax_cross_entropy
from decoupled.tasks.description import COLUMNS, INDEX, TaskDescription
from decoupled.tasks.text_files import other_splits, splits_of

Features = dict[str, np.ndarray]
_LABELS = "the task's labels"


class Task(abc.ABC):
    """Features, loss and metrics of one task.

    name: for files and messages. sequence_length: tokens of every input.
    metrics: name -> (numerator, denominator), names of `Forward.sums`; the metric of a
      batch is the quotient of the two, and is logged in percent.
    examples: of a packed row (`decoupled.data.packing`); None if a row is an example.
    predicts_tokens: whether predictions are of tokens, not of whole examples.
    """

    name: str
    sequence_length: int
    metrics: dict[str, tuple[str, str]]
    examples: mtf.Dimension | None = None
    predicts_tokens = False

    def __init__(self, name: str, sequence_length: int, dropout: float):
        self.name, self.sequence_length = name, sequence_length
        self._dropout = dropout

    def packed(self, examples: int) -> "Task":
        """The same task on rows that hold up to so many examples."""
        task = copy.copy(self)
        task.examples = examples_dim(examples)
        return task

    def example_dims(self, dims: Dims) -> list[mtf.Dimension]:
        """[batch], or [batch, examples] of packed rows."""
        return [dims.batch] if self.examples is None else [dims.batch, self.examples]

    def encoder_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The layout of the encoder's inputs, int32 [batch, sequence] each."""
        names = ["input_word_ids", "input_mask", "input_type_ids"]
        if self.examples is not None:
            names.append("position_ids")
        return {name: [dims.batch, dims.sequence] for name in names}

    def first_positions(
        self, build: Builder, features: dict[str, mtf.Tensor]
    ) -> mtf.Tensor:
        """Where [CLS] is, int32, of the dimensions of `example_dims`."""
        if self.examples is None:
            return cls_positions(build)
        return features["first_positions"]

    @property
    @abc.abstractmethod
    def head(self) -> Head:
        """The head on the encoder."""

    @abc.abstractmethod
    def extra_dims(self) -> list[mtf.Dimension]:
        """Dimensions of this task that the model does not have."""

    @abc.abstractmethod
    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The layout of every feature after `prepare`.

        Features whose names end as in `model.dims.FLOAT_FEATURES` are float32, all
        others int32.
        """

    @abc.abstractmethod
    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Adds what depends on the whole batch, before it is cut into microbatches."""

    @abc.abstractmethod
    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        """Builds the encoder, the head, and the loss."""


def example_layout(
    task: Task, dims: Dims, *names: str
) -> dict[str, list[mtf.Dimension]]:
    """The layout of a task whose answer belongs to a whole example: the encoder's
    inputs, `loss_scale`, weights, and what `names` has."""
    layout = {name: task.example_dims(dims) for name in (*names, "example_weights")}
    if task.examples is not None:
        layout["first_positions"] = task.example_dims(dims)
    return {**task.encoder_dims(dims), **layout, "loss_scale": [dims.batch]}


def loss_scale(weights: tf.Tensor) -> tf.Tensor:
    """float32 [batch], equal for all rows: 1 / (number of weights above 0, at least 1).

    It turns the sum of weighted losses into their mean over a batch. The sum of the
    weights would be another number in each batch, and take from a rare class what its
    weights give it.
    """
    total = tf.maximum(tf.reduce_sum(tf.cast(weights > 0, tf.float32)), 1.0)
    per_row = weights if weights.shape.rank == 1 else weights[:, 0]
    return tf.ones_like(per_row) / total


def with_weights(
    features: dict[str, tf.Tensor], like: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Adds `example_weights` (padding has 0), of the shape of `like`, and the scale."""
    weights = features.get("example_weights")
    if weights is None:
        weights = tf.ones_like(like, tf.float32)
    return {**features, "example_weights": weights, "loss_scale": loss_scale(weights)}


def with_token_weights(
    features: dict[str, tf.Tensor], name: str, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Adds the weights of tokens (padding has 0) by this name, and the scale."""
    features = dict(features)
    examples = features.pop("example_weights", None)
    if examples is not None:
        weights *= tf.expand_dims(examples, 1)
    return {**features, name: weights, "loss_scale": loss_scale(weights)}


def weighted_loss(
    losses: mtf.Tensor,
    correct: mtf.Tensor,
    weights: mtf.Tensor,
    scale: mtf.Tensor,
    predictions: dict[str, mtf.Tensor],
) -> Forward:
    """The loss of a step, and the sums from which the metrics are computed.

    `losses` and `correct`, which counts right answers, are weighted; `scale` is from
    `loss_scale`.
    """
    return Forward(
        loss=mtf.reduce_sum(losses * scale),
        sums={
            "loss_sum": mtf.reduce_sum(losses),
            "hits": mtf.reduce_sum(correct),
            "weight": mtf.reduce_sum(weights),
        },
        predictions=predictions,
    )


class Labelling(Task):
    """A task whose answers are labels; see `Classification` and `Tagging`."""

    metrics = {"accuracy": ("hits", "weight")}

    def __init__(
        self,
        name: str,
        labels: Sequence[str],
        sequence_length: int,
        dropout: float,
    ):
        super().__init__(name, sequence_length, dropout)
        self.labels, self._labels_dim = labels, labels_dim(len(labels))

    def extra_dims(self) -> list[mtf.Dimension]:
        return [self._labels_dim]

    def _labelled(
        self,
        features: dict[str, mtf.Tensor],
        logits: mtf.Tensor,
        weights: mtf.Tensor,
        predictions: dict[str, mtf.Tensor],
    ) -> Forward:
        losses, correct = softmax_cross_entropy(
            logits, features["label_ids"], self._labels_dim, weights=weights
        )
        scale = features["loss_scale"]
        return weighted_loss(losses, correct, weights, scale, predictions)


class FinetuningTask(abc.ABC):
    """A task that is trained in one language and evaluated in every language.

    A kind of task says how files are read (`read_file`), what the graph computes of
    examples, and which answers follow.

    labels: of classification and tagging, in the order of their ids; else empty.
    metrics: what `score` gives, in the order in which it is shown.
    headline: the metrics whose mean chooses a checkpoint and a learning rate.
    training_languages: trained on; the dev file of the first chooses checkpoints.
    prediction_suffix: "tsv" or "json", of XTREME's submission format.
    graph_features: the features that the graph reads; any others serve `answers`.
    settings: all that features depend on besides files, as JSON.
    """

    labels: Sequence[str] = ()
    prediction_suffix = "tsv"
    graph_features: tuple[str, ...]

    def __init__(
        self, description: TaskDescription, data_dir: str, settings: dict[str, Any]
    ):
        self.description, self.data_dir = description, data_dir
        self.name, self.kind = description.name, description.kind
        self.metrics, self.headline = description.metrics, description.headline
        self.training_languages = description.training_languages
        self._settings = settings
        self._files: dict[str, dict[str, str]] = {}

    def languages(self, split: str) -> list[str]:
        """Languages that have a file of this split: those of training first."""
        if split not in self._files:
            self._files[split] = self._find_files(split)
        return list(self._files[split])

    def paths(self, split: str, language: str) -> list[str]:
        """The files of a split; only training may have several."""
        names = self.training_languages if split == "train" else [language]
        for name in names:
            if name not in self.languages(split):
                raise self.description.missing_file(self.data_dir, split, name)
        return [self._files[split][name] for name in names]

    def indexes(self, split: str, language: str) -> list[str]:
        """The files that are read beside those of a split, see `INDEX`."""
        paths = (path + INDEX for path in self.paths(split, language))
        return [path for path in paths if files.exists(path)]

    def read(self, split: str, language: str) -> list[Any]:
        """The examples of a split, in the order of the files."""
        if split == "train":
            return self.training
        [path] = self.paths(split, language)
        return self.read_file(path, language, split)

    @functools.cached_property
    def training(self) -> list[Any]:
        names = self.training_languages
        pairs = zip(self.paths("train", names[0]), names, strict=True)
        return [x for path, name in pairs for x in self.read_file(path, name, "train")]

    def settings(self) -> dict[str, Any]:
        """All that features depend on besides vocabulary and file, as JSON."""
        task = self.description
        if task.form != COLUMNS:
            return self._settings
        return {
            **self._settings,
            "texts": list(task.texts),
            "label": task.label,
            "splits": list(task.splits),
            "split_column": task.split_column,
        }

    def answer_settings(self) -> dict[str, Any]:
        """All else that `answers` depends on, as JSON; exported models follow it."""
        return {}

    @property
    def answer_limit(self) -> str | None:
        """The longest answer that `answers` gives, in words; None without a limit."""
        return None

    def share_beyond_limit(
        self, vocabulary: Vocabulary, examples: list[Any]
    ) -> float | None:
        """Share of labelled examples whose right answers are all beyond `answer_limit`;
        None without labels or a limit."""
        return None

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Refuses settings that do not go with a vocabulary."""
        return None

    def label_reader(self) -> LabelReader:
        """A reader of the task's labels in files."""
        origin = _LABELS if self.description.labels else "the training files"
        return LabelReader(self.labels, origin)

    def _find_files(self, split: str) -> dict[str, str]:
        paths = self.description.find_files(self.data_dir, split)
        if self.description.split_column is None:
            return paths
        if split == "train":
            for path in paths.values():
                for name, rows in other_splits(path, self.description).items():
                    console.say(
                        f"{path}: OwnTaskConfig.splits does not name {quoted(name)}; "
                        f"rows left out: {rows:,}"
                    )
            return paths
        # A file that has all splits may lack this one.
        return {
            language: path
            for language, path in paths.items()
            if split in splits_of(path, self.description)
        }

    def _read_labels(self, read: Callable[[str, LabelReader], Any]) -> list[str]:
        if self.description.labels:
            return check_labels(self.description.labels, _LABELS)
        reader = LabelReader()
        paths = self.paths("train", self.training_languages[0])
        for path in paths:
            read(path, reader)
        if len(reader.labels) < 2:
            label = quoted("".join(reader.labels))
            raise UserError(
                f"{paths[0]}: has the label {label} alone; two or more are needed"
            )
        return reader.labels

    @abc.abstractmethod
    def read_file(self, path: str, language: str, split: str) -> list[Any]:
        """The examples of a file; only those of test files may lack labels."""

    @abc.abstractmethod
    def features(self, vocabulary: Vocabulary, examples: list[Any]) -> Features:
        """Examples as arrays with one row per window; an example may have several.

        `example_index` int32 [rows], non-decreasing, is the example of each row.
        """

    @abc.abstractmethod
    def network(self, dropout: float) -> Task:
        """The graph's side of the task; `dropout` is before the last layer."""

    @abc.abstractmethod
    def answers(
        self, examples: list[Any], features: Features, outputs: Features
    ) -> list[Any]:
        """The graph's outputs [rows, ...] as one answer per example."""

    @abc.abstractmethod
    def score(
        self, language: str, examples: list[Any], answers: list[Any]
    ) -> dict[str, float] | None:
        """Metric -> value of all answers, in percent; None without labels."""

    @abc.abstractmethod
    def trivial_answers(self, examples: list[Any]) -> list[Any]:
        """Answers of a trivial baseline, such as the most frequent training label."""

    @abc.abstractmethod
    def write(self, path: str, examples: list[Any], answers: list[Any]) -> None:
        """Writes the answers in XTREME's submission format, atomically."""
