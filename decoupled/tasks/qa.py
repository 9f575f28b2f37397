"""Extractive question answering: where in a text an answer begins and ends."""

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import Dims, labels_dim
from decoupled.model.encoder import encode
from decoupled.model.heads import span_logits
from decoupled.model.layers import Builder
from decoupled.model.outputs import Forward
from decoupled.model.variables import SPANS
from decoupled.ops.cross_entropy import softmax_cross_entropy
from decoupled.tasks.task import Task, encoder_dims

START, END = 0, 1


class ExtractiveQA(Task):
    """Finds the first and last token of an answer (Devlin et al. 2019, section 4.2).

    Both are chosen among all positions of the sequence, padding included, as in BERT;
    0, the place of [CLS], says that the answer is not there.

    Args:
      name: of the task. sequence_length: tokens of every input.
      dropout: before the last layer, in training.
      label_smoothing: of the training loss; evaluation reports the plain loss.
    """

    metrics = {"loss": ("loss_sum", "weight"), "span_accuracy": ("hits", "weight")}
    head = SPANS

    def __init__(
        self, name: str, sequence_length: int, dropout: float, label_smoothing: float
    ):
        self.name = name
        self.sequence_length = sequence_length
        self._ends = labels_dim(SPANS.labels)
        self._dropout = dropout
        self._label_smoothing = label_smoothing

    def extra_dims(self) -> list[mtf.Dimension]:
        """Start and end."""
        return [self._ends]

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The encoder's inputs, both positions [batch, labels], weights [batch]."""
        return {
            **encoder_dims(dims),
            "span_positions": [dims.batch, self._ends],
            "example_weights": [dims.batch],
            "loss_scale": [dims.batch],
        }

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Joins the positions; adds weights (padding has 0) and 1 / (their sum)."""
        features = dict(features)
        starts, ends = features.pop("start_positions"), features.pop("end_positions")
        weights = features.get("example_weights")
        if weights is None:
            weights = tf.ones_like(starts, tf.float32)
        total = tf.maximum(tf.reduce_sum(weights), 1.0)
        return {
            **features,
            "span_positions": tf.stack([starts, ends], axis=1),
            "example_weights": weights,
            "loss_scale": tf.ones_like(weights) / total,
        }

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        """Mean of the losses of start and end, and both logits [batch, sequence]."""
        encoded = encode(build, features)
        logits = span_logits(build, encoded.output, self._dropout)
        losses, hits = softmax_cross_entropy(
            logits,
            features["span_positions"],
            build.dims.sequence,
            label_smoothing=self._label_smoothing if build.training else 0.0,
        )
        weights, batch = features["example_weights"], [build.dims.batch]
        losses = mtf.reduce_mean(losses, output_shape=batch) * weights
        # Right where both are.
        both = mtf.reduce_min(hits, output_shape=batch) * weights
        return Forward(
            loss=mtf.reduce_sum(losses * features["loss_scale"]),
            sums={
                "loss_sum": mtf.reduce_sum(losses),
                "hits": mtf.reduce_sum(both),
                "weight": mtf.reduce_sum(weights),
            },
            predictions={
                "start_logits": self._logits_of(START, logits),
                "end_logits": self._logits_of(END, logits),
            },
        )

    def _logits_of(self, end: int, logits: mtf.Tensor) -> mtf.Tensor:
        # A product, because labels may be split across the mesh, and slices may not.
        index = mtf.constant(logits.mesh, end, dtype=tf.int32)
        return mtf.einsum(
            [logits, mtf.one_hot(index, self._ends)],
            output_shape=[dim for dim in logits.shape.dims if dim != self._ends],
        )
