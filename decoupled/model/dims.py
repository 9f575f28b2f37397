"""Every dimension of the graph and its name: the vocabulary of the layout rules."""

import dataclasses

from decoupled.configs import ModelConfig
from decoupled.core.compat import mtf
from decoupled.model.variables import SIZES, dimension

# Features whose names end so are float32 in the graph; all others are int32.
FLOAT_FEATURES = ("weights", "scale", "shares", "targets")
# What a layout rule may split, and what the name stands for.
NAMES = {
    "batch": "sequences of a step",
    "sequence": "tokens of a sequence, as queries",
    "memory": "tokens of a sequence, as keys and values",
    "predictions": "masked positions of a sequence",
    "vocab": "pieces, in the input and output embedding and in the logits",
    "input_embedding": "E_in",
    "output_embedding": "E_out",
    "hidden": "H",
    "heads": "attention heads",
    "head_size": "width of a head",
    "intermediate": "width of the feed-forward layers",
    "positions": "rows of the position embedding",
    "token_types": "rows of the segment-type embedding",
    "pooled": "output of the pooler",
    "labels": "classes of a fine-tuning task",
}

_LENGTH = "MaskingConfig.sequence_length or FinetuningConfig.max_sequence_length"
# The setting that determines the size of a dimension.
SETTINGS = {
    **{name: f"ModelConfig.{SIZES[name]}" for name in NAMES if name in SIZES},
    "batch": "TrainingConfig.batch_size",
    "sequence": _LENGTH,
    "memory": _LENGTH,
    "predictions": "MaskingConfig.max_predictions",
    "labels": "the rule",
}


@dataclasses.dataclass(frozen=True)
class Dims:
    """The dimensions of one graph; see `NAMES`.

    `heads_and_size` are the attention kernels' columns, head index major. They are
    named "heads", so that the rule for heads splits the kernels of the checkpoint,
    which stay two-dimensional as in BERT.
    """

    batch: mtf.Dimension
    sequence: mtf.Dimension
    memory: mtf.Dimension
    vocab: mtf.Dimension
    input_embedding: mtf.Dimension
    output_embedding: mtf.Dimension
    hidden: mtf.Dimension
    heads: mtf.Dimension
    head_size: mtf.Dimension
    heads_and_size: mtf.Dimension
    intermediate: mtf.Dimension
    positions: mtf.Dimension
    token_types: mtf.Dimension
    pooled: mtf.Dimension


def make_dims(config: ModelConfig, batch_size: int, sequence_length: int) -> Dims:
    """The dimensions of a graph for batches of [batch_size, sequence_length]."""
    weight_dims = {name: mtf.Dimension(*dimension(config, name)) for name in SIZES}
    return Dims(
        batch=mtf.Dimension("batch", batch_size),
        sequence=mtf.Dimension("sequence", sequence_length),
        memory=mtf.Dimension("memory", sequence_length),
        **weight_dims,
    )


def predictions_dim(count: int) -> mtf.Dimension:
    """The dimension of the masked positions of a sequence."""
    return mtf.Dimension("predictions", count)


def examples_dim(count: int) -> mtf.Dimension:
    """The dimension of the examples of a packed row; no layout splits it."""
    return mtf.Dimension("examples", count)


def labels_dim(count: int) -> mtf.Dimension:
    """The dimension of a task's classes."""
    return mtf.Dimension("labels", count)
