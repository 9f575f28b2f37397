"""Input and output embeddings, coupled or decoupled: the subject of the paper.

Input (paper section 3): word, position and type embeddings of width E_in, layer norm,
then a linear projection to H, which models of one width do without. Output (section
4.2): a table of width E_out, used in pre-training only; when coupled it is the word
embedding.
"""

from decoupled.core.compat import mtf, tf
from decoupled.model.layers import Builder
from decoupled.ops.bias import add_bias
from decoupled.ops.weight_product import weight_product

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
PROJECTION = "bert/encoder/embedding_hidden_mapping_in"
OUTPUT_EMBEDDING = "cls/predictions/output_embedding"
OUTPUT_BIAS = "cls/predictions/output_bias"


def input_embedding(
    build: Builder, word_ids: mtf.Tensor, type_ids: mtf.Tensor
) -> mtf.Tensor:
    """Embeds tokens.

    Args:
      build: sizes and variables.
      word_ids, type_ids: int32 [batch, sequence].

    Returns:
      [batch, sequence, hidden] of the activation dtype.
    """
    dims, config = build.dims, build.config
    width = dims.input_embedding
    words = build.embedding(WORD_EMBEDDINGS, [dims.vocab, width])
    positions = build.embedding(
        "bert/embeddings/position_embeddings", [dims.positions, width]
    )
    types = build.embedding(
        "bert/embeddings/token_type_embeddings", [dims.token_types, width]
    )
    position_ids = mtf.range(build.mesh, dims.sequence, tf.int32)
    x = (
        build.lookup(words, word_ids, dims.vocab)
        + build.lookup(types, type_ids, dims.token_types)
        + build.lookup(positions, position_ids, dims.positions)
    )
    x = build.cast(build.layer_norm(x, "bert/embeddings/LayerNorm"))
    x = build.dropout(x, config.hidden_dropout, "embeddings")
    if not config.projects_input:
        return mtf.rename_dimension(x, width.name, dims.hidden.name)
    return build.dense(x, PROJECTION, width, dims.hidden)


def output_logits(build: Builder, x: mtf.Tensor) -> mtf.Tensor:
    """Scores every piece against the output embedding.

    Args:
      build: sizes and variables.
      x: [batch, predictions, output_embedding].

    Returns:
      [batch, predictions, vocab] of the activation dtype.
    """
    dims = build.dims
    if build.config.coupled:
        # The variable that `input_embedding` made; a graph has one table.
        table = build.embedding(WORD_EMBEDDINGS, [dims.vocab, dims.input_embedding])
        x = mtf.rename_dimension(x, "output_embedding", "input_embedding")
    else:
        table = build.kernel(OUTPUT_EMBEDDING, [dims.vocab, dims.output_embedding])
    bias = build.bias(OUTPUT_BIAS, [dims.vocab])
    return add_bias(weight_product(x, table, x.shape.dims[:-1] + [dims.vocab]), bias)
