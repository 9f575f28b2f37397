"""Multi-head attention (Vaswani et al. 2017, as in BERT)."""

from decoupled.core.compat import mtf, tf
from decoupled.model.layers import Builder
from decoupled.ops.bias import merge_heads, split_heads
from decoupled.ops.normalization import softmax

# Added to the scores of padding; far below any score.
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


def attention(
    build: Builder, x: mtf.Tensor, context: mtf.Tensor, bias: mtf.Tensor, name: str
) -> mtf.Tensor:
    """Attention of tokens to every real token, heads joined and projected.

    Args:
      build: sizes and variables.
      x: [batch, ..., hidden], the tokens that attend: all of a sequence (then it is
        `context`), some of them, or one.
      context: [batch, sequence, hidden].
      bias: float32 [batch, memory], from `attention_bias`.
      name: of the layer's attention scope.

    Returns:
      A tensor like `x`, before dropout and residual.
    """
    dims, config = build.dims, build.config
    attends_to_itself = x is context
    # Where heads are split, the gradients of the three projections are partial sums.
    # They are added to each other before the residual's, so that the mesh does one
    # all-reduce instead of three.
    context = _identity(context)
    x = context if attends_to_itself else _identity(x)

    def project(tokens: mtf.Tensor, part: str) -> mtf.Tensor:
        y = build.product_and_bias(tokens, f"{name}/self/{part}")
        return split_heads(*y, dims.heads, dims.head_size)

    def project_memory(part: str) -> mtf.Tensor:
        y = project(context, part)
        return mtf.rename_dimension(y, "sequence", dims.memory.name)

    query = project(x, "query")
    key, value = project_memory("key"), project_memory("value")
    scores = mtf.einsum(
        [query, key], output_shape=[*query.shape.dims[:-1], dims.memory]
    )
    weights = softmax(scores, bias, scale=config.head_size**-0.5)
    weights = build.dropout(weights, config.attention_dropout, f"{name}/weights")
    heads = mtf.einsum([weights, value], output_shape=query.shape)
    joined = merge_heads(heads, dims.heads_and_size)
    return build.dense(joined, f"{name}/output/dense")


def _identity(x: mtf.Tensor) -> mtf.Tensor:
    return mtf.cwise(tf.identity, [x], grad_function=_same, name="identity")


def _same(operation: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
    del operation
    return [dy]
