"""Multi-head self-attention (Vaswani et al. 2017, as in BERT)."""

from decoupled.compat import mtf, tf
from decoupled.model.layers import Builder
from decoupled.ops.softmax import softmax

# Added to the scores of padding. Representable in bfloat16, and far below any score.
_MASKED = -1e9


def attention_bias(build: Builder, mask: mtf.Tensor) -> mtf.Tensor:
    """0 for real tokens, a large negative number for padding.

    Args:
      build: sizes.
      mask: int32 [batch, sequence], 1 for real tokens.

    Returns:
      float32 [batch, memory].
    """
    memory = mtf.rename_dimension(mask, "sequence", build.dims.memory.name)
    return (1.0 - mtf.cast(memory, tf.float32)) * _MASKED


def self_attention(
    build: Builder, x: mtf.Tensor, bias: mtf.Tensor, name: str
) -> mtf.Tensor:
    """Attention of every token to every real token, heads joined and projected.

    Args:
      build: sizes and variables.
      x: [batch, sequence, hidden].
      bias: float32 [batch, memory], from `attention_bias`.
      name: of the layer's attention scope.

    Returns:
      [batch, sequence, hidden], before dropout and residual.
    """
    dims, config = build.dims, build.config
    # Where heads are split, the gradients of the three projections are parts of sums.
    # They are added to each other before the residual's, so that one sum crosses the
    # mesh instead of three.
    x = mtf.cwise(tf.identity, [x], grad_function=_same, name="identity")

    def project(part, length):
        y = build.dense(x, f"{name}/self/{part}", dims.hidden, dims.heads_and_size)
        shape = [dims.batch, dims.sequence, dims.heads, dims.head_size]
        # Heads before tokens, so that what follows, and its gradient, are products of
        # matrices as they lie in memory.
        order = [dims.batch, dims.heads, dims.sequence, dims.head_size]
        y = mtf.transpose(mtf.reshape(y, shape), order)
        return mtf.rename_dimension(y, "sequence", length) if length else y

    query = project("query", None) * config.head_size**-0.5
    key = project("key", dims.memory.name)
    value = project("value", dims.memory.name)
    scores = mtf.einsum(
        [query, key],
        output_shape=[dims.batch, dims.heads, dims.sequence, dims.memory],
    )
    scores = mtf.cast(scores, tf.float32) + bias
    weights = build.cast(softmax(scores))
    weights = build.dropout(weights, config.attention_dropout, f"{name}/weights")
    context = mtf.einsum(
        [weights, value],
        output_shape=[dims.batch, dims.heads, dims.sequence, dims.head_size],
    )
    context = mtf.transpose(
        context, [dims.batch, dims.sequence, dims.heads, dims.head_size]
    )
    joined = mtf.reshape(context, [dims.batch, dims.sequence, dims.heads_and_size])
    return build.dense(joined, f"{name}/output/dense", dims.heads_and_size, dims.hidden)


def _same(operation, dy):
    del operation
    return [dy]
