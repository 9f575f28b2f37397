"""Tagging: a label for every word, predicted at the word's first piece."""

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import Dims
from decoupled.model.encoder import encode
from decoupled.model.heads import token_logits
from decoupled.model.layers import Builder
from decoupled.model.outputs import Forward
from decoupled.model.variables import Head, token_classifier
from decoupled.ops.cross_entropy import softmax_cross_entropy
from decoupled.tasks.labelling import Labelling
from decoupled.tasks.task import encoder_dims


class Tagging(Labelling):
    """Gives each word of a sentence one of a fixed set of labels.

    Features beside the encoder's inputs: `label_ids` int32 [batch, sequence], in
    [0, labels) everywhere, and `word_starts` int32 [batch, sequence], 1 at the first
    piece of a word. Loss and sums are those of first pieces only (Devlin et al. 2019,
    section 5.3).
    """

    @property
    def head(self) -> Head:
        """The last layer."""
        return token_classifier(len(self.labels))

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The encoder's inputs, labels and weights [batch, sequence], and a scale."""
        names = ("label_ids", "label_weights")
        tokens = {name: [dims.batch, dims.sequence] for name in names}
        return {**encoder_dims(dims), **tokens, "loss_scale": [dims.batch]}

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Adds weights (1 at first pieces, 0 in padding) and 1 / (their sum)."""
        features = dict(features)
        weights = tf.cast(features.pop("word_starts"), tf.float32)
        examples = features.pop("example_weights", None)
        if examples is not None:
            weights *= tf.expand_dims(examples, 1)
        total = tf.maximum(tf.reduce_sum(weights), 1.0)
        return {
            **features,
            "label_weights": weights,
            "loss_scale": tf.ones_like(weights[:, 0]) / total,
        }

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        """Loss, hits, and the best label of each piece, int32 [batch, sequence]."""
        encoded = encode(build, features)
        logits = token_logits(
            build, encoded.output, self._labels_dim.size, self._dropout
        )
        losses, hits = softmax_cross_entropy(
            logits,
            features["label_ids"],
            self._labels_dim,
            weights=features["label_weights"],
            label_smoothing=self._label_smoothing if build.training else 0.0,
        )
        return Forward(
            loss=mtf.reduce_sum(losses * features["loss_scale"]),
            sums={
                "loss_sum": mtf.reduce_sum(losses),
                "hits": mtf.reduce_sum(hits),
                "weight": mtf.reduce_sum(features["label_weights"]),
            },
            predictions={"best_labels": mtf.argmax(logits, self._labels_dim)},
        )
