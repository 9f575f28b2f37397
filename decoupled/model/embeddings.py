"""Input and output embeddings, coupled or decoupled: the subject of the paper.

Input: word, position and type embeddings of width E_in and layer norm, as in BERT, then
a linear projection to H (paper footnote 3), which models with equal widths may lack.
Output: H -> E_out (the same footnote), then the rows of the output embedding, used in
pre-training only. The variants of the output embedding differ only in their matrix,
`decoupled.model.variables.output_matrix`.
"""

from decoupled.core.compat import mtf, tf
from decoupled.model import variables as names
from decoupled.model.layers import Builder
from decoupled.ops.bias import add_bias
from decoupled.ops.cross_entropy import softmax_cross_entropy
from decoupled.ops.gather import embedding_lookup
from decoupled.ops.weight_product import weight_product


class InputEmbedding:
    """Ids to hidden vectors."""

    def __init__(self, build: Builder):
        self._build = build

    def hidden(
        self,
        word_ids: mtf.Tensor,
        type_ids: mtf.Tensor,
        position_ids: mtf.Tensor | None = None,
    ) -> mtf.Tensor:
        """[batch, sequence, hidden] of int32 [batch, sequence]. `position_ids` None
        counts from a row's start."""
        build, dims = self._build, self._build.dims
        words = build.embedding(names.WORD_EMBEDDINGS)
        positions = build.embedding(names.POSITION_EMBEDDINGS)
        types = build.embedding(names.TYPE_EMBEDDINGS)
        if position_ids is None:
            position_ids = mtf.range(build.mesh, dims.sequence, tf.int32)
        x = (
            embedding_lookup(words, word_ids, dims.vocab)
            + embedding_lookup(types, type_ids, dims.token_types)
            + embedding_lookup(positions, position_ids, dims.positions)
        )
        x = build.cast(build.layer_norm(x, names.EMBEDDING_NORM))
        x = build.dropout(x, build.config.hidden_dropout, "embeddings")
        if not build.has_dense(names.PROJECTION):
            return mtf.rename_dimension(x, dims.input_embedding.name, dims.hidden.name)
        return build.dense(x, names.PROJECTION)


class OutputEmbedding:
    """Hidden vectors to a score for every piece."""

    def __init__(self, build: Builder):
        self._build = build.with_head(names.MASKED_LM)

    def logits(self, x: mtf.Tensor) -> mtf.Tensor:
        """Scores of every piece, [batch, predictions, vocab], of vectors
        [batch, predictions, hidden]."""
        return self.scores(self._transform(x))

    def cross_entropy(
        self, x: mtf.Tensor, targets: mtf.Tensor
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """The `softmax_cross_entropy` of `logits`."""
        logits = self.logits(x)
        return softmax_cross_entropy(logits, targets, logits.shape.dims[-1])

    def scores(self, x: mtf.Tensor) -> mtf.Tensor:
        """Vectors of width E_out times the output embedding, + bias."""
        matrix = self._matrix(names.output_matrix(self._build.config))
        outputs, inputs = matrix.shape.dims
        if x.shape.dims[-1] != inputs:
            x = mtf.rename_dimension(x, x.shape.dims[-1].name, inputs.name)
        x = weight_product(x, matrix, [*x.shape.dims[:-1], outputs])
        return add_bias(x, self._build.bias(names.OUTPUT_BIAS))

    def _transform(self, x: mtf.Tensor) -> mtf.Tensor:
        """[batch, predictions, hidden] to [batch, predictions, output_embedding]."""
        build = self._build
        if not build.has_dense(names.TRANSFORM):
            return mtf.rename_dimension(x, "hidden", "output_embedding")
        if build.config.mlm_transform == "dense_activation_norm":
            x = build.dense_activation(x, names.TRANSFORM)
            return build.layer_norm(x, names.TRANSFORM_NORM)
        return build.dense(x, names.TRANSFORM)

    def _matrix(self, variable: names.Variable) -> mtf.Tensor:
        if variable.role is names.Role.INPUT_EMBEDDING:
            # The variable that `InputEmbedding` made; a graph has one table.
            return self._build.embedding(variable.name)
        return self._build.kernel(variable.name)
