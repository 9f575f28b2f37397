"""The encoder: embeddings and post-layer-norm Transformer layers (BERT)."""

import functools
from typing import NamedTuple

from decoupled.core.compat import mtf
from decoupled.model.attention import attention, attention_bias
from decoupled.model.embeddings import InputEmbedding
from decoupled.model.layers import Builder
from decoupled.model.variables import layer_name
from decoupled.ops.gather import gather_positions
from decoupled.ops.recompute import recompute


class Encoded(NamedTuple):
    """What the encoder gives: [batch, sequence, hidden] tensors.

    embedded: input of the first layer. layers: output of each layer, first to last; of
    the last one [positions' dimensions, hidden] where `encode` was given positions.
    """

    embedded: mtf.Tensor
    layers: list[mtf.Tensor]

    @property
    def output(self) -> mtf.Tensor:
        """The last layer."""
        return self.layers[-1]


def encode(
    build: Builder,
    features: dict[str, mtf.Tensor],
    positions: mtf.Tensor | None = None,
) -> Encoded:
    """Builds the encoder.

    Args:
      build: sizes and variables.
      features: `input_word_ids`, `input_mask`, `input_type_ids`, int32
        [batch, sequence].
      positions: int32 [batch, ...], the tokens whose output is needed; None for all
        of them. A masked-LM head reads a few tokens of a sequence and a classifier one,
        and nothing else reads the last layer: that computes keys and values for all
        tokens, and everything else for these only.

    Returns:
      All layers' representations.
    """
    bias = attention_bias(build, features["input_mask"])
    x = embedded = InputEmbedding(build).hidden(
        features["input_word_ids"], features["input_type_ids"]
    )
    layers = []
    for index in range(build.config.num_layers):
        last = index == build.config.num_layers - 1
        layer = functools.partial(
            _layer,
            build,
            bias=bias,
            positions=positions if last else None,
            name=layer_name(index),
        )
        x = recompute(layer, x) if build.recompute_layers else layer(x)
        layers.append(x)
    return Encoded(embedded, layers)


def _layer(
    build: Builder,
    x: mtf.Tensor,
    bias: mtf.Tensor,
    positions: mtf.Tensor | None,
    name: str,
) -> mtf.Tensor:
    config = build.config
    context = x
    if positions is not None:
        x = gather_positions(x, positions, build.dims.sequence)
    y = attention(build, x, context, bias, f"{name}/attention")
    y = build.dropout(y, config.hidden_dropout, f"{name}/attention")
    x = build.layer_norm(x + y, f"{name}/attention/output/LayerNorm")
    y = build.activated(x, f"{name}/intermediate/dense")
    y = build.dense(y, f"{name}/output/dense")
    y = build.dropout(y, config.hidden_dropout, f"{name}/output")
    return build.layer_norm(x + y, f"{name}/output/LayerNorm")
