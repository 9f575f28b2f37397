"""The probe: a small network on frozen vectors of spans (Tenney et al. 2019).

A learned mix of the layers, a projection, self-attentive pooling over each span, and a
network of two layers; every label is a yes-or-no question of its own.
"""

import numpy as np

from decoupled.configs.analyses import ProbeSettings
from decoupled.core.release import tf


class Probe(tf.Module):
    """The network.

    Args:
      layers, width: of the vectors. labels: how many. spans: 1 or 2 per target.
      settings: sizes and seed.
    """

    def __init__(
        self, layers: int, width: int, labels: int, spans: int, settings: ProbeSettings
    ):
        super().__init__()
        self._settings = settings
        self._generator = np.random.default_rng(settings.seed)
        size = settings.projection_size
        self.mix_weights = tf.Variable(np.zeros(layers, np.float32))
        self.mix_scale = tf.Variable(np.float32(1))
        self.projections = [self._dense(width, size) for _ in range(spans)]
        self.attention = [self._dense(size, 1) for _ in range(spans)]
        self.hidden = self._dense(spans * size, settings.hidden_size)
        self.output = self._dense(settings.hidden_size, labels)

    def __call__(self, vectors, spans, step=None) -> tf.Tensor:
        """Scores of all labels.

        Args:
          vectors: float32 [pieces, layers, H]. spans: see `Batch`.
          step: int32 scalar, draws the dropout; None drops nothing.

        Returns:
          float32 [targets, labels]; above 0 is yes.
        """
        mixed = tf.einsum("plh,l->ph", vectors, tf.nn.softmax(self.mix_weights))
        mixed *= self.mix_scale
        pooled = [
            self._pool(_apply(projection, mixed), attention, rows, segments)
            for projection, attention, (rows, segments) in zip(
                self.projections, self.attention, spans, strict=True
            )
        ]
        x = self._drop(tf.concat(pooled, -1), step, 0)
        x = self._drop(tf.tanh(_apply(self.hidden, x)), step, 1)
        return _apply(self.output, x)

    def _dense(self, inputs, outputs):
        bound = np.sqrt(6 / (inputs + outputs))
        kernel = self._generator.uniform(-bound, bound, [inputs, outputs])
        return (
            tf.Variable(kernel.astype(np.float32)),
            tf.Variable(np.zeros(outputs, np.float32)),
        )

    def _pool(self, x, attention, rows, segments):
        """The mean of each span's vectors, weighted by a softmax of their scores."""
        scores = tf.gather(_apply(attention, x)[:, 0], rows)
        highest = tf.math.segment_max(scores, segments)
        shares = tf.exp(scores - tf.gather(highest, segments))
        shares /= tf.gather(tf.math.segment_sum(shares, segments), segments)
        weighted = tf.gather(x, rows) * shares[:, tf.newaxis]
        return tf.math.segment_sum(weighted, segments)

    def _drop(self, x, step, place):
        if step is None or not self._settings.dropout:
            return x
        seed = tf.stack([self._settings.seed * 2 + place, step])
        return tf.nn.experimental.stateless_dropout(x, self._settings.dropout, seed)


def _apply(dense, x):
    kernel, bias = dense
    return tf.matmul(x, kernel) + bias
