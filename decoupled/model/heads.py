"""What sits on the encoder: the masked-LM head and the heads of tasks."""

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import labels_dim
from decoupled.model.embeddings import output_logits
from decoupled.model.layers import Builder
from decoupled.ops.bias import add_bias
from decoupled.ops.weight_product import weight_product

TRANSFORM = "cls/predictions/transform"
POOLER = "bert/pooler/dense"


def masked_lm_logits(build: Builder, x: mtf.Tensor) -> mtf.Tensor:
    """Scores of every piece at the masked positions only.

    H -> E_out, then, for the transform of the released model, activation and layer
    norm; then the output embedding (paper section 4.2, and its released checkpoint).

    Args:
      build: sizes and variables.
      x: [batch, predictions, hidden], the encoder's output at these positions.

    Returns:
      [batch, predictions, vocab] of the activation dtype.
    """
    config, dims = build.config, build.dims
    if config.mlm_transform == "dense_activation_norm":
        x = build.activated(x, f"{TRANSFORM}/dense", dims.hidden, dims.output_embedding)
        x = build.layer_norm(x, f"{TRANSFORM}/LayerNorm")
    elif config.hidden_size == config.output_embedding_size:
        x = mtf.rename_dimension(x, "hidden", "output_embedding")
    else:
        x = build.dense(x, f"{TRANSFORM}/dense", dims.hidden, dims.output_embedding)
    return output_logits(build, x)


def cls_positions(build: Builder) -> mtf.Tensor:
    """Where [CLS] is: int32 [batch], zeros."""
    return mtf.zeros(build.mesh, mtf.Shape([build.dims.batch]), tf.int32)


def sequence_logits(
    build: Builder, cls: mtf.Tensor, num_labels: int, dropout: float
) -> mtf.Tensor:
    """Scores of a whole sequence: pooled [CLS], dropout, linear layer.

    Args:
      build: sizes and variables.
      cls: [batch, hidden], the encoder's output at `cls_positions`.
      num_labels: classes.
      dropout: rate before the linear layer, in training only.

    Returns:
      float32 [batch, labels].
    """
    dims = build.dims
    pooled = mtf.tanh(build.dense(cls, POOLER, dims.hidden, dims.pooled))
    pooled = build.dropout(pooled, dropout, "classifier")
    labels = labels_dim(num_labels)
    kernel = build.kernel("output_weights", [labels, dims.pooled])
    bias = build.bias("output_bias", [labels])
    logits = add_bias(weight_product(pooled, kernel, [dims.batch, labels]), bias)
    return mtf.cast(logits, tf.float32)


def token_logits(
    build: Builder, encoded: mtf.Tensor, num_labels: int, dropout: float
) -> mtf.Tensor:
    """Scores of every token: dropout, linear layer.

    Args:
      build: sizes and variables.
      encoded: [batch, sequence, hidden].
      num_labels: classes.
      dropout: rate before the linear layer, in training only.

    Returns:
      float32 [batch, sequence, labels].
    """
    dims, labels = build.dims, labels_dim(num_labels)
    dropped = build.dropout(encoded, dropout, "classifier")
    kernel = build.kernel("output_weights", [labels, dims.hidden])
    bias = build.bias("output_bias", [labels])
    shape = [dims.batch, dims.sequence, labels]
    logits = add_bias(weight_product(dropped, kernel, shape), bias)
    return mtf.cast(logits, tf.float32)


def span_logits(build: Builder, encoded: mtf.Tensor, dropout: float) -> mtf.Tensor:
    """Scores of every token as the first (label 0) and the last (1) of an answer.

    Args:
      build: sizes and variables.
      encoded: [batch, sequence, hidden].
      dropout: rate before the linear layer, in training only.

    Returns:
      float32 [batch, labels, sequence]; the sequence is last, being what a softmax is
      over.
    """
    dims, labels = build.dims, labels_dim(2)
    dropped = build.dropout(encoded, dropout, "classifier")
    kernel = build.kernel("output_weights", [labels, dims.hidden])
    bias = build.bias("output_bias", [labels])
    shape = [dims.batch, labels, dims.sequence]
    logits = weight_product(dropped, kernel, shape) + bias
    return mtf.cast(logits, tf.float32)
