"""The interface that training and evaluation need from a task."""

import abc

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import Dims
from decoupled.model.heads import Forward
from decoupled.model.layers import Builder
from decoupled.model.variables import Head


class Task(abc.ABC):
    """Features, loss and metrics of one task.

    name: for files and messages. sequence_length: tokens of every input.
    metrics: name -> (numerator, denominator), names of `Forward.sums`; the metric of a
      batch or a data set is the quotient of the two totals.
    """

    name: str
    sequence_length: int
    metrics: dict[str, tuple[str, str]]

    @property
    @abc.abstractmethod
    def head(self) -> Head:
        """What the task's graph has on the encoder."""

    @abc.abstractmethod
    def extra_dims(self) -> list[mtf.Dimension]:
        """Dimensions of this task that the model does not have."""

    @abc.abstractmethod
    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The layout of every feature after `prepare`.

        Those that end as `model.dims.FLOAT_FEATURES` says are float32, others int32.
        """

    @abc.abstractmethod
    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Adds what depends on the whole batch, before it is cut into microbatches."""

    @abc.abstractmethod
    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        """Builds the encoder, the head, and the loss where there are labels."""


def encoder_dims(dims: Dims) -> dict[str, list[mtf.Dimension]]:
    """The layout of the encoder's inputs, int32 [batch, sequence] each."""
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return {name: [dims.batch, dims.sequence] for name in names}
