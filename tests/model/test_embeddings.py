"""The input embedding against hand-made tables, and the output embedding's logits."""

import numpy as np

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import predictions_dim
from decoupled.model.embeddings import InputEmbedding, OutputEmbedding
from tests.helpers import tiny_model
from tests.model.graphs import encoder_features, random_weights, run_model

WORDS = "bert/embeddings/word_embeddings"
POSITIONS = "bert/embeddings/position_embeddings"
TYPES = "bert/embeddings/token_type_embeddings"
PROJECTION = "bert/encoder/embedding_hidden_mapping_in"


def embed(build, tensors):
    ids, types = tensors["input_word_ids"], tensors["input_type_ids"]
    return [InputEmbedding(build).hidden(ids, types)]


def two_wide(hidden):
    """V 3, E_in 2, four positions, two types, an epsilon that rounds away."""
    return tiny_model(
        vocab_size=3, input_embedding_size=2, hidden_size=hidden, num_heads=1,
        head_size=hidden, max_positions=4, layer_norm_epsilon=1e-12,
    )  # fmt: skip


TOKENS = {
    "input_word_ids": np.array([[2, 0, 2]], np.int32),
    "input_type_ids": np.array([[0, 0, 1]], np.int32),
    "input_mask": np.array([[1, 1, 1]], np.int32),
}
TABLES = {
    WORDS: np.float32([[1, 0], [9, 9], [0, 3]]),
    POSITIONS: np.float32([[0, 0], [0, 5], [4, 0], [9, 9]]),
    TYPES: np.float32([[0, 0], [0, 1]]),
    "bert/embeddings/LayerNorm/gamma": np.float32([1, 2]),
    "bert/embeddings/LayerNorm/beta": np.float32([0, 10]),
}
# Sums of the three rows: [0, 3], [1, 5], [4, 4]; a layer norm over two numbers gives
# -1 to the smaller, 1 to the larger, 0 to equals.
NORMED = [[-1, 12], [-1, 12], [0, 10]]


def test_words_positions_and_types_are_added_and_normed():
    found = run_model(two_wide(2), TOKENS, embed, TABLES)
    np.testing.assert_allclose(found[0], [NORMED], atol=1e-5)


def test_another_width_is_projected_with_a_bias_after_the_norm():
    weights = {
        **TABLES,
        f"{PROJECTION}/kernel": np.float32([[1, 0, 2], [0, 1, 1]]),
        f"{PROJECTION}/bias": np.float32([0, 0, 100]),
    }
    found = run_model(two_wide(3), TOKENS, embed, weights)
    wanted = [[a, b, 2 * a + b + 100] for a, b in NORMED]
    np.testing.assert_allclose(found[0], [wanted], atol=1e-5)


def test_every_piece_is_scored_by_its_row_and_its_bias():
    """[1, 2, 3] against three rows: 1, 2 + 3 = 5 and 6, plus 10, 20 and 30."""
    config = tiny_model(vocab_size=3, output_embedding_size=3)
    weights = {
        "cls/predictions/output_embedding": np.float32(
            [[1, 0, 0], [0, 1, 1], [1, 1, 1]]
        ),
        "cls/predictions/output_bias": np.float32([10, 20, 30]),
    }

    def outputs(build, tensors):
        x = tf.constant([[[1.0, 2.0, 3.0]]])
        dims = [build.dims.batch, predictions_dim(1), build.dims.output_embedding]
        x = mtf.import_tf_tensor(build.mesh, x, mtf.Shape(dims))
        return [OutputEmbedding(build).scores(x)]

    found = run_model(config, encoder_features(batch=1), outputs, weights)
    np.testing.assert_allclose(found[0], [[[11, 25, 36]]], atol=1e-5)


def read_and_scored(build, tensors):
    """The input embedding, and the logits of it in place of the encoder's output."""
    (x,) = embed(build, tensors)
    y = mtf.rename_dimension(x, "sequence", "predictions")
    y = mtf.rename_dimension(y, "hidden", "output_embedding")
    return [x, OutputEmbedding(build).scores(mtf.stop_gradient(y))]


def test_a_coupled_table_collects_the_gradients_of_both_uses():
    config = tiny_model(coupled=True, input_embedding_size=16, output_embedding_size=16)
    weights = random_weights(config, read_and_scored)
    assert "cls/predictions/output_embedding" not in weights

    def gradient(*uses):
        def outputs(build, tensors):
            squares = [mtf.square(t) for t in read_and_scored(build, tensors)]
            loss = mtf.add_n([mtf.reduce_sum(squares[use]) for use in uses])
            variables = build.mesh.graph.all_variables
            table = next(v for v in variables if v.name == WORDS)
            return mtf.gradients([loss], [table.value])

        return run_model(config, encoder_features(batch=2), outputs, weights)[0]

    read, scored = gradient(0), gradient(1)
    assert np.abs(read).max() > 1e-1
    assert np.abs(scored).max() > 1e-1
    np.testing.assert_allclose(gradient(0, 1), read + scored, rtol=1e-4, atol=1e-3)
