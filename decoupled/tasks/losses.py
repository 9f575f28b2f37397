"""Shared by the graphs of tasks: a weighted mean loss, and heads that give labels."""

from collections.abc import Sequence

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import labels_dim
from decoupled.model.heads import Forward
from decoupled.model.layers import Builder
from decoupled.ops.cross_entropy import softmax_cross_entropy
from decoupled.tasks.task import Task


def loss_scale(weights: tf.Tensor) -> tf.Tensor:
    """The factor that turns the sum of weighted losses into their mean over a batch.

    Args:
      weights: float32 [batch] or [batch, places].

    Returns:
      float32 [batch], equal for all rows: 1 / (sum of the weights), or 1 if the sum is
      less than 1.
    """
    total = tf.maximum(tf.reduce_sum(weights), 1.0)
    per_row = weights if weights.shape.rank == 1 else weights[:, 0]
    return tf.ones_like(per_row) / total


def weighted_loss(
    losses: mtf.Tensor,
    correct: mtf.Tensor,
    weights: mtf.Tensor,
    scale: mtf.Tensor,
    predictions: dict[str, mtf.Tensor],
) -> Forward:
    """The loss of a step, and the sums from which the metrics are computed.

    Args:
      losses, correct, weights: float32 [batch] or [batch, places]. `correct` is 1 where
        the prediction is right, else 0. `losses` and `correct` are already weighted.
      scale: float32 [batch], from `loss_scale`.
      predictions: of the task.
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
    """A task whose answers are labels; see `Classification` and `Tagging`.

    Args:
      name: of the task. labels: in the order of their ids.
      sequence_length: tokens of every input.
      dropout: before the last layer, in training.
      label_smoothing: of the training loss; evaluation reports the plain loss.
    """

    metrics = {"loss": ("loss_sum", "weight"), "accuracy": ("hits", "weight")}

    def __init__(
        self,
        name: str,
        labels: Sequence[str],
        sequence_length: int,
        dropout: float,
        label_smoothing: float,
    ):
        self.name = name
        self.labels = labels
        self.sequence_length = sequence_length
        self._labels_dim = labels_dim(len(labels))
        self._dropout = dropout
        self._label_smoothing = label_smoothing

    def extra_dims(self) -> list[mtf.Dimension]:
        """The labels."""
        return [self._labels_dim]

    def _labelled(
        self,
        build: Builder,
        features: dict[str, mtf.Tensor],
        logits: mtf.Tensor,
        weights: mtf.Tensor,
        predictions: dict[str, mtf.Tensor],
    ) -> Forward:
        """Loss and sums of logits [batch, ..., labels] against `label_ids`."""
        losses, correct = softmax_cross_entropy(
            logits,
            features["label_ids"],
            self._labels_dim,
            weights=weights,
            label_smoothing=self._label_smoothing if build.training else 0.0,
        )
        scale = features["loss_scale"]
        return weighted_loss(losses, correct, weights, scale, predictions)
