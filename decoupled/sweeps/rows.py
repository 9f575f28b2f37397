"""The models of a sweep, and the one rule that makes small models of a paper's.

At a scale every width and depth is divided by the same numbers for all models.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from decoupled.configs import ModelConfig, ScaleConfig, SweepConfig, sweep_row
from decoupled.core.errors import UserError
from decoupled.launch import gin_files

# H = heads * head size: their divisors multiply to the widths'.
_WIDTHS = (
    "input_embedding_size",
    "output_embedding_size",
    "output_embedding_rank",
    "hidden_size",
    "intermediate_size",
)


class Row(NamedTuple):
    """A model of the sweep.

    name: of its gin file in models/. model: sizes. keep_layers: in fine-tuning, 0: all.
    """

    name: str
    model: ModelConfig
    keep_layers: int


def make_rows(
    sweep: SweepConfig,
    scale: ScaleConfig,
    pieces: int,
    read_model: Callable[[str], ModelConfig],
) -> list[Row]:
    """The models with their sizes at this scale.

    Args:
      sweep: names the models. scale: divisors. pieces: of the vocabulary.
      read_model: name of a row -> the paper's sizes.

    Raises:
      UserError: a row has no gin file, or sizes that the scale cannot divide.
    """
    rows = []
    for name in sweep.rows:
        model = scaled_model(read_model(name), scale, pieces)
        keep = sweep.keep_layers.get(name, 0)
        rows.append(Row(name, model, scaled_layers(keep, scale) if keep else 0))
    return rows


def read_model(name: str) -> ModelConfig:
    """The paper's sizes of a row, from its gin file in models/.

    Raises:
      UserError: there is no such file.
    """
    names = ["runs/sweep_row.gin", f"models/{name}.gin"]
    return gin_files.configure(sweep_row, names, [])


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
