"""Classification of a text or a pair of texts."""

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import Dims
from decoupled.model.encoder import encode
from decoupled.model.heads import cls_positions, sequence_logits
from decoupled.model.layers import Builder
from decoupled.model.outputs import Forward
from decoupled.model.variables import Head, classifier
from decoupled.ops.cross_entropy import softmax_cross_entropy
from decoupled.ops.softmax import softmax
from decoupled.tasks.labelling import Labelling
from decoupled.tasks.task import encoder_dims


class Classification(Labelling):
    """Gives a sequence one of a fixed set of labels."""

    @property
    def head(self) -> Head:
        """Pooler and last layer."""
        return classifier(len(self.labels))

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The encoder's inputs, and labels and weights [batch]."""
        names = ("label_ids", "example_weights", "loss_scale")
        return {**encoder_dims(dims), **{name: [dims.batch] for name in names}}

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Adds weights (padding has 0) and 1 / (their sum over the batch)."""
        weights = features.get("example_weights")
        if weights is None:
            weights = tf.ones_like(features["label_ids"], tf.float32)
        total = tf.maximum(tf.reduce_sum(weights), 1.0)
        return {
            **features,
            "example_weights": weights,
            "loss_scale": tf.ones_like(weights) / total,
        }

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        """Loss, hits and probabilities [batch, labels]."""
        cls = encode(build, features, cls_positions(build)).output
        logits = sequence_logits(build, cls, self._labels_dim.size, self._dropout)
        losses, hits = softmax_cross_entropy(
            logits,
            features["label_ids"],
            self._labels_dim,
            weights=features["example_weights"],
            label_smoothing=self._label_smoothing if build.training else 0.0,
        )
        return Forward(
            loss=mtf.reduce_sum(losses * features["loss_scale"]),
            sums={
                "loss_sum": mtf.reduce_sum(losses),
                "hits": mtf.reduce_sum(hits),
                "weight": mtf.reduce_sum(features["example_weights"]),
            },
            predictions={"probabilities": softmax(logits)},
        )
