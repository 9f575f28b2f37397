"""The encoder: embeddings, multi-head attention (Vaswani et al. 2017) and
post-layer-norm Transformer layers, as in BERT."""

import functools

from decoupled.core.compat import mtf, tf
from decoupled.model.embeddings import InputEmbedding
from decoupled.model.layers import Builder
from decoupled.model.variables import layer_name
from decoupled.ops.attention import attention_by_name
from decoupled.ops.bias import merge_heads, split_heads
from decoupled.ops.gather import gather_positions
from decoupled.ops.normalization import softmax
from decoupled.ops.recompute import recompute

# Added to the scores of padding; its magnitude is far above that of any score.
_MASK_BIAS = -1e9


def attention_bias(
    build: Builder, mask: mtf.Tensor, query_examples: mtf.Tensor | None = None
) -> mtf.Tensor:
    """0 for tokens that are attended to, a large negative number for the others.

    float32 [batch, memory]; of packed rows [batch, queries, memory]. `mask` is 1 for
    real tokens, in packed rows the number of each token's example, from 1, and
    `query_examples` [..., queries] the example of each query. Without these, queries
    attend to all real tokens.
    """
    memory = mtf.rename_dimension(mask, "sequence", build.dims.memory.name)
    if query_examples is None:
        return (1.0 - mtf.cast(memory, tf.float32)) * _MASK_BIAS
    # Either may be a float; all numbers are exact in float32.
    is_other = mtf.not_equal(
        mtf.cast(query_examples, tf.float32),
        mtf.cast(memory, tf.float32),
        output_shape=[
            build.dims.batch,
            query_examples.shape.dims[-1],
            build.dims.memory,
        ],
    )
    return mtf.cast(is_other, tf.float32) * _MASK_BIAS


def example_numbers(
    build: Builder, mask: mtf.Tensor, is_packed: bool
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """The mask of `attention_bias` as segment ids: the example of each query, int32
    [batch, sequence], and of each key, [batch, memory]. A query attends to equal ids.

    In a row that is all padding, which no head reads, queries attend to the padding.
    """
    memory = mtf.rename_dimension(mask, "sequence", build.dims.memory.name)
    if is_packed:
        return mask, memory
    example = mtf.reduce_max(mask, reduced_dim=build.dims.sequence)
    return mtf.broadcast(example, mask.shape), memory


def attention(
    build: Builder,
    x: mtf.Tensor,
    context: mtf.Tensor,
    bias: mtf.Tensor,
    name: str,
    numbers: tuple[mtf.Tensor, mtf.Tensor] | None = None,
) -> mtf.Tensor:
    """Attention of tokens to the tokens of their example, heads joined and projected.

    `x` [batch, ..., hidden] has the tokens that attend: all of a sequence (then it is
    `context`), some of them, or one. `numbers` are `example_numbers`, where attention
    is called by name: then the kernel of a device computes it, which has no `bias`. The
    result is like `x`, before dropout and residual.
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
    scale = config.head_size**-0.5
    if numbers is None:
        scores = mtf.einsum(
            [query, key], output_shape=[*query.shape.dims[:-1], dims.memory]
        )
        weights = softmax(scores, bias, scale)
        weights = build.dropout(weights, config.attention_dropout, f"{name}/weights")
        heads = mtf.einsum([weights, value], output_shape=query.shape)
    else:
        heads = attention_by_name(query, key, value, *numbers, scale)
    columns = merge_heads(heads, dims.heads_and_size)
    return build.dense(columns, f"{name}/output/dense")


def _identity(x: mtf.Tensor) -> mtf.Tensor:
    return mtf.cwise(tf.identity, [x], grad_function=_gradient, name="identity")


def _gradient(operation: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
    del operation
    return [dy]


def encode(
    build: Builder,
    features: dict[str, mtf.Tensor],
    positions: mtf.Tensor | None = None,
) -> list[mtf.Tensor]:
    """The output of each layer, [batch, sequence, hidden].

    Packed rows (`decoupled.data.packing`) have `position_ids`. `positions`, int32
    [batch, ...], are those that the head reads; None for all. A masked-LM head reads a
    few tokens of a sequence, and a classifier one, or one of each example of a packed
    row. The last layer computes keys and values for all tokens, and everything else
    only there: it is [positions' dimensions, hidden].
    """
    mask, position_ids = features["input_mask"], features.get("position_ids")
    is_packed = position_ids is not None
    bias = last_bias = attention_bias(build, mask, mask if is_packed else None)
    if is_packed and positions is not None:
        # Query i of a row belongs to its example i + 1, as the mask counts them.
        queries = mtf.range(build.mesh, positions.shape.dims[-1], tf.float32) + 1.0
        last_bias = attention_bias(build, mask, queries)
    numbers = example_numbers(build, mask, is_packed) if build.names_attention else None
    x = InputEmbedding(build).hidden(
        features["input_word_ids"], features["input_type_ids"], position_ids
    )
    layers = []
    for index in range(build.config.num_layers):
        is_last = index == build.config.num_layers - 1
        layer = functools.partial(
            _layer,
            build,
            bias=last_bias if is_last else bias,
            # Few queries are products of small matrices.
            numbers=None if is_last and positions is not None else numbers,
            positions=positions if is_last else None,
            name=layer_name(index),
        )
        x = recompute(layer, x) if build.recompute_layers else layer(x)
        layers.append(x)
    return layers


def _layer(
    build: Builder,
    x: mtf.Tensor,
    bias: mtf.Tensor,
    numbers: tuple[mtf.Tensor, mtf.Tensor] | None,
    positions: mtf.Tensor | None,
    name: str,
) -> mtf.Tensor:
    config = build.config
    context = x
    if positions is not None:
        x = gather_positions(x, positions, build.dims.sequence)
    y = attention(build, x, context, bias, f"{name}/attention", numbers)
    y = build.dropout(y, config.hidden_dropout, f"{name}/attention")
    x = build.layer_norm(x + y, f"{name}/attention/output/LayerNorm")
    y = build.dense_activation(x, f"{name}/intermediate/dense")
    y = build.dense(y, f"{name}/output/dense")
    y = build.dropout(y, config.hidden_dropout, f"{name}/output")
    return build.layer_norm(x + y, f"{name}/output/LayerNorm")
