"""The encoder: embeddings and post-layer-norm Transformer layers (BERT)."""

import functools
from typing import NamedTuple

from decoupled.compat import mtf
from decoupled.model.attention import attention_bias, self_attention
from decoupled.model.embeddings import input_embedding
from decoupled.model.layers import Builder
from decoupled.ops.recompute import recompute


class Encoded(NamedTuple):
    """What the encoder gives: [batch, sequence, hidden] tensors.

    embedded: input of the first layer. layers: output of each layer, first to last.
    """

    embedded: mtf.Tensor
    layers: list[mtf.Tensor]

    @property
    def output(self) -> mtf.Tensor:
        """The last layer."""
        return self.layers[-1]


def encode(build: Builder, features: dict[str, mtf.Tensor]) -> Encoded:
    """Builds the encoder.

    Args:
      build: sizes and variables.
      features: `input_word_ids`, `input_mask`, `input_type_ids`, int32
        [batch, sequence].

    Returns:
      All layers' representations.
    """
    bias = attention_bias(build, features["input_mask"])
    x = embedded = input_embedding(
        build, features["input_word_ids"], features["input_type_ids"]
    )
    layers = []
    for index in range(build.config.num_layers):
        layer = functools.partial(
            _layer, build, bias=bias, name=f"bert/encoder/layer_{index}"
        )
        x = recompute(layer, x) if build.recompute_layers else layer(x)
        layers.append(x)
    return Encoded(embedded, layers)


def _layer(build, x, bias, name):
    config, dims = build.config, build.dims
    y = self_attention(build, x, bias, f"{name}/attention")
    y = build.dropout(y, config.hidden_dropout, f"{name}/attention")
    x = build.layer_norm(x + y, f"{name}/attention/output/LayerNorm")
    y = build.dense(x, f"{name}/intermediate/dense", dims.hidden, dims.intermediate)
    y = build.activation(y)
    y = build.dense(y, f"{name}/output/dense", dims.intermediate, dims.hidden)
    y = build.dropout(y, config.hidden_dropout, f"{name}/output")
    return build.layer_norm(x + y, f"{name}/output/LayerNorm")
