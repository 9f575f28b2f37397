"""The outputs of all layers of a checkpoint's encoder, and texts in batches for it."""

from collections.abc import Iterator

import numpy as np

from decoupled.analyses.models import AnalysedModel
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import Encoder

_INPUTS = ("input_word_ids", "input_mask", "input_type_ids")


class LayerEncoder:
    """A frozen encoder that gives every layer's output.

    Attributes:
      num_layers: of the network; there is one output more, see `__call__`.
      encoder: the network.
    """

    def __init__(self, model: AnalysedModel):
        self.encoder = Encoder(model.config, model.weights)
        self.num_layers = model.config.num_layers
        specs = [tf.TensorSpec([None, None], tf.int32) for _ in _INPUTS]
        self._function = tf.function(self._encode, specs, autograph=False)

    def __call__(self, batch: dict[str, np.ndarray]) -> tf.Tensor:
        """Runs the network without dropout.

        Args:
          batch: `input_word_ids`, `input_mask`, `input_type_ids`, int32
            [batch, length]; other entries are not read.

        Returns:
          float32 [layers + 1, batch, length, H]: number 0 is the input embedding after
          its projection to H, number l the output of the l-th layer.
        """
        return self._function(*(tf.constant(batch[name]) for name in _INPUTS))

    def _encode(self, word_ids, mask, type_ids):
        inputs = dict(zip(_INPUTS, (word_ids, mask, type_ids), strict=True))
        outputs = self.encoder(inputs)["encoder_outputs"]
        length = tf.shape(word_ids)[1]
        embedded = self.encoder.embeddings(word_ids, type_ids, length, False)
        return tf.stack([tf.reshape(embedded, tf.shape(outputs[0])), *outputs])


def batches(
    arrays: dict[str, np.ndarray], batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Rows of similar length together, without the columns that are padding only.

    Args:
      arrays: with `input_mask` [rows, length] among them; those of its shape lose
        columns, others keep theirs.
    """
    mask = arrays["input_mask"]
    lengths = mask.sum(1)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        longest = int(lengths[rows].max())
        yield {
            name: values[rows, :longest] if values.shape == mask.shape else values[rows]
            for name, values in arrays.items()
        }
