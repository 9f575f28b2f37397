"""One rule that makes a small model of a paper's: every width and depth divided."""

import dataclasses
import math

from decoupled.configs import ModelConfig, ScaleConfig
from decoupled.core.errors import UserError

# H = heads * head size: their divisors multiply to the widths'.
_WIDTHS = (
    "input_embedding_size",
    "output_embedding_size",
    "output_embedding_rank",
    "hidden_size",
    "intermediate_size",
)


def scaled_model(
    model: ModelConfig, scale: ScaleConfig, vocab_size: int
) -> ModelConfig:
    """The model with the vocabulary at hand and its sizes divided.

    Args:
      model: of the paper. scale: divisors. vocab_size: pieces of the vocabulary.

    Raises:
      UserError: a width is not divisible.
    """
    widths = {
        name: _divided(name, getattr(model, name), scale.width_divisor)
        for name in _WIDTHS
    }
    head_size = _divided("head_size", model.head_size, scale.head_size_divisor)
    return dataclasses.replace(
        model,
        **widths,
        vocab_size=vocab_size,
        head_size=head_size,
        num_heads=widths["hidden_size"] // head_size,
        num_layers=scaled_layers(model.num_layers, scale),
        # Sums over fewer inputs get terms that are larger, as in the original.
        initializer_range=model.initializer_range * math.sqrt(scale.width_divisor),
    )


def scaled_layers(layers: int, scale: ScaleConfig) -> int:
    """A number of layers divided, rounded to the nearest (half up), at least 1."""
    return max(1, int(layers / scale.depth_divisor + 0.5))


def _divided(name, size, divisor):
    if size % divisor:
        raise UserError(
            f"ScaleConfig: {name} = {size} cannot be divided by {divisor}; choose "
            "divisors of every model's widths"
        )
    return size // divisor


def model_bindings(model: ModelConfig) -> list[str]:
    """Every field as a gin binding, e.g. "ModelConfig.hidden_size = 96"."""
    return [f"ModelConfig.{name} = {value!r}" for name, value in vars(model).items()]
