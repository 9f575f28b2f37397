"""What tasks share that give one of a fixed set of labels."""

from collections.abc import Sequence

from decoupled.core.compat import mtf
from decoupled.model.dims import labels_dim
from decoupled.tasks.task import Task


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
