"""A vector for each text from chosen layers: for retrieval and analyses.

There is nothing to train: the task only predicts.
"""

import dataclasses
from collections.abc import Sequence

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import Dims
from decoupled.model.embeddings import InputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.layers import Builder
from decoupled.model.outputs import Forward
from decoupled.model.variables import NO_HEAD
from decoupled.tasks.task import Task, encoder_dims


class PooledLayers(Task):
    """The mean over the tokens of a text, in each of some layers.

    Layer 0 is the embedding output, the input of the first Transformer layer; layers
    1 to L are the outputs of these. Layers above the highest one asked for are not
    built.

    Features beside the encoder's: `pooled_tokens`, int32 [batch, sequence], 1 for the
    tokens that count.

    Predictions: `layer_name(l)`, float32 [batch, hidden], for every layer l; zeros
    where no token counts.

    Args:
      layers: indices of layers, none of them twice.
      sequence_length: tokens of every input.
    """

    name = "pooled_layers"
    head = NO_HEAD
    metrics = {}

    def __init__(self, layers: Sequence[int], sequence_length: int):
        self._layers = layers
        self.sequence_length = sequence_length

    def extra_dims(self) -> list[mtf.Dimension]:
        """None."""
        return []

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The encoder's inputs, and the share of every token in the mean."""
        return {**encoder_dims(dims), "token_shares": [dims.batch, dims.sequence]}

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Turns `pooled_tokens` into shares that add up to 1."""
        features = dict(features)
        counted = tf.cast(features.pop("pooled_tokens"), tf.float32)
        total = tf.reduce_sum(counted, axis=1, keepdims=True)
        return {**features, "token_shares": counted / tf.maximum(total, 1.0)}

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        """Means in float32, also where activations are bfloat16."""
        features = dict(features)
        shares = features.pop("token_shares")
        outputs = self._outputs(build, features)
        shape = [build.dims.batch, build.dims.hidden]
        return Forward(
            loss=mtf.zeros(build.mesh, mtf.Shape([]), tf.float32),
            sums={},
            predictions={
                layer_name(layer): mtf.einsum(
                    [mtf.cast(outputs[layer], tf.float32), shares], output_shape=shape
                )
                for layer in self._layers
            },
        )

    def _outputs(self, build, features):
        """The outputs of layers 0, 1, ... as far as they are needed."""
        highest = max(self._layers)
        if highest == 0:
            ids, types = features["input_word_ids"], features["input_type_ids"]
            return [InputEmbedding(build).hidden(ids, types)]
        config = dataclasses.replace(build.config, num_layers=highest)
        encoded = encode(dataclasses.replace(build, config=config), features)
        return [encoded.embedded, *encoded.layers]


def layer_name(layer: int) -> str:
    """The prediction that holds the vectors of a layer."""
    return f"layer_{layer:02d}"
