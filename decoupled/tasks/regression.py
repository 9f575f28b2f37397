"""Regression: a number for a text or a pair of texts, such as STS-B's similarities."""

from typing import Any

import numpy as np

from decoupled.configs.finetuning import REGRESSION
from decoupled.core import files
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary
from decoupled.metrics.similarity import pearson, spearman
from decoupled.model.dims import Dims, labels_dim
from decoupled.model.encoder import encode
from decoupled.model.heads import Forward, sequence_logits
from decoupled.model.layers import Builder
from decoupled.model.variables import Head, classifier
from decoupled.tasks.classification import check_row, pack_texts
from decoupled.tasks.classification_files import LabelledTexts
from decoupled.tasks.task import (
    Features,
    FinetuningTask,
    Task,
    example_dims,
    loss_scale,
)

_FEATURES_VERSION = 1


class Regression(Task):
    """Gives a sequence a number; the loss is the mean squared error.

    Features beside the encoder's inputs: `targets`, float32 [batch].

    Args:
      name: of the task.
      sequence_length: tokens of every input.
      dropout: before the last layer, in training.
    """

    metrics = {}

    def __init__(self, name: str, sequence_length: int, dropout: float):
        self.name, self.sequence_length = name, sequence_length
        self._dropout, self._one = dropout, labels_dim(1)

    @property
    def head(self) -> Head:
        """Pooler and last layer, of one output."""
        return classifier(1)

    def extra_dims(self) -> list[mtf.Dimension]:
        """The one output."""
        return [self._one]

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The encoder's inputs, and targets and weights of each example."""
        return example_dims(self, dims, "targets")

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Adds weights (padding has 0) and 1 / (their sum over the batch)."""
        weights = features.get("example_weights")
        if weights is None:
            weights = tf.ones_like(features["targets"])
        return {
            **features,
            "example_weights": weights,
            "loss_scale": loss_scale(weights),
        }

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        """The squared error, and `values` float32 [batch]."""
        cls = encode(build, features, self.first_positions(build, features)).output
        outputs = sequence_logits(build, cls, 1, self._dropout)
        values = mtf.reduce_sum(outputs, reduced_dim=self._one)
        weights = features["example_weights"]
        losses = mtf.square(values - features["targets"]) * weights
        return Forward(
            loss=mtf.reduce_sum(losses * features["loss_scale"]),
            sums={
                "loss_sum": mtf.reduce_sum(losses),
                "weight": mtf.reduce_sum(weights),
            },
            predictions={"values": values},
        )


class RegressionTask(FinetuningTask):
    """A number for a text or a pair of texts; an answer is a float.

    `tasks.own` says where its files are.

    Args:
      name: of the task.
      max_sequence_length: tokens of a row; longer pairs lose pieces of the longer text.

    Raises:
      UserError: a row has no room for two texts.
    """

    kind = REGRESSION
    labels = ()
    metrics = ("pearson", "spearman", "mean_absolute_error")
    headline = ("pearson",)
    prediction_suffix = "tsv"
    graph_features = ("input_word_ids", "input_mask", "input_type_ids", "targets")

    def __init__(self, name: str, max_sequence_length: int):
        check_row(max_sequence_length)
        self.name, self._length = name, max_sequence_length

    def settings(self) -> dict[str, Any]:
        """Length and version of the features."""
        return {"max_sequence_length": self._length, "version": _FEATURES_VERSION}

    def features(
        self, vocabulary: Vocabulary, examples: list[LabelledTexts]
    ) -> Features:
        """The encoder's inputs and `targets` float32 [examples], 0 without a number."""
        packed = pack_texts(vocabulary, [e.texts for e in examples], self._length)
        targets = [float(example.label or 0.0) for example in examples]
        return {
            **packed,
            "targets": np.array(targets, np.float32),
            "example_index": np.arange(len(examples), dtype=np.int32),
        }

    def network(self, dropout: float, label_smoothing: float) -> Regression:
        """The graph's side of the task, whose loss never depends on padding.

        Raises:
          UserError: labels are to be smoothed.
        """
        if label_smoothing:
            raise UserError(
                f"TrainingConfig.label_smoothing: {label_smoothing}, but {self.name} "
                "is a regression and has no labels; set it to 0.0"
            )
        return Regression(self.name, self._length, dropout)

    def answers(
        self, examples: list[LabelledTexts], features: Features, outputs: Features
    ) -> list[float]:
        """`values` float32 [examples]."""
        return outputs["values"].tolist()

    def score(
        self, language: str, examples: list[LabelledTexts], answers: list[float]
    ) -> dict[str, float] | None:
        """Correlations times 100, which are 0 if all answers are equal, and the mean
        absolute error. None if the file has no numbers or all of them are equal."""
        if any(example.label is None for example in examples):
            return None
        targets = np.array([float(example.label) for example in examples])
        if np.ptp(targets) == 0:
            return None
        found = np.array(answers)
        return {
            "pearson": 100 * (pearson(targets, found) or 0.0),
            "spearman": 100 * (spearman(targets, found) or 0.0),
            "mean_absolute_error": float(np.abs(targets - found).mean()),
        }

    def trivial_answers(
        self, training: list[LabelledTexts], examples: list[LabelledTexts]
    ) -> list[float]:
        """The mean of the training numbers."""
        mean = float(np.mean([float(example.label) for example in training]))
        return [mean] * len(examples)

    def write(
        self, path: str, examples: list[LabelledTexts], answers: list[float]
    ) -> None:
        """Writes a number a line."""
        files.write_text(path, "".join(f"{answer:.9g}\n" for answer in answers))
