"""What a task adds to the encoder, and what its forward pass gives.

Pre-training adds the output embedding (`decoupled.model.embeddings`).
"""

from typing import NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.model import variables as names
from decoupled.model.layers import Builder
from decoupled.ops.bias import add_bias
from decoupled.ops.weight_product import weight_product


class Forward(NamedTuple):
    """A task's forward pass.

    loss: float32 scalar; microbatches' losses add up to the batch's.
    sums: float32 scalars that add up over batches, e.g. correct predictions.
    predictions: tensors [batch, ...].
    """

    loss: mtf.Tensor
    sums: dict[str, mtf.Tensor]
    predictions: dict[str, mtf.Tensor]


def cls_positions(build: Builder) -> mtf.Tensor:
    """Where [CLS] is: int32 [batch], zeros."""
    return mtf.zeros(build.mesh, mtf.Shape([build.dims.batch]), tf.int32)


def sequence_logits(
    build: Builder, cls: mtf.Tensor, num_labels: int, dropout: float
) -> mtf.Tensor:
    """Float32 scores of sequences: pooler, dropout in training, linear layer.

    `cls` is [batch, hidden], or of packed rows [batch, examples, hidden].
    """
    build = build.with_head(names.Head(pooler=True, labels=num_labels))
    return _scores(build, mtf.tanh(build.dense(cls, names.POOLER)), dropout)


def token_logits(
    build: Builder, hidden: mtf.Tensor, num_labels: int, dropout: float
) -> mtf.Tensor:
    """Scores of every token, float32 [batch, sequence, labels]: dropout, linear layer,
    of `hidden` [batch, sequence, hidden]."""
    build = build.with_head(names.Head(labels=num_labels))
    return _scores(build, hidden, dropout)


def _scores(build: Builder, x: mtf.Tensor, dropout: float) -> mtf.Tensor:
    x = build.dropout(x, dropout, "classifier")
    kernel, bias = build.kernel(names.TASK_WEIGHTS), build.bias(names.TASK_BIAS)
    shape = [*x.shape.dims[:-1], *bias.shape.dims]
    return mtf.cast(add_bias(weight_product(x, kernel, shape), bias), tf.float32)


def span_logits(build: Builder, hidden: mtf.Tensor, dropout: float) -> mtf.Tensor:
    """Scores of every token as the first (label 0) and the last (1) of an answer.

    float32 [batch, labels, sequence]; the softmax is over the last dimension.
    """
    build = build.with_head(names.SPANS)
    hidden = build.dropout(hidden, dropout, "classifier")
    kernel, bias = build.kernel(names.TASK_WEIGHTS), build.bias(names.TASK_BIAS)
    shape = [build.dims.batch, *bias.shape.dims, build.dims.sequence]
    logits = weight_product(hidden, kernel, shape) + bias
    return mtf.cast(logits, tf.float32)
