"""Tables, text and head in closed form; whole results of tiny models."""

import numpy as np
import pytest

from decoupled.analyses import geometry
from decoupled.analyses.geometry import (
    OutputPath,
    centred_values,
    masked_text,
    triangle,
)
from decoupled.analyses.models import open_models
from decoupled.configs.analyses import GeometrySettings
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.corpora.corpus import Corpus
from decoupled.corpora.corpus_writer import write_corpus
from decoupled.exports.interop import surgery
from decoupled.exports.serving.encoder import Encoder, MaskedLm
from decoupled.model import variables as names
from tests.analyses.tiny_runs import MASKING, show, write_run
from tests.exports.models import model_config, pretrained_weights
from tests.exports.reference import Reference

SETTINGS = GeometrySettings(MASKING, sequences=6, batch_size=4, gradients=20, seed=3)
GERMAN = "Show the page"
SENTENCES = [
    f"{verb} the {colour} page and {count} other objects"
    for verb in ("Select", "Delete", "Show")
    for colour in ("blue", "green")
    for count in range(4)
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Held-out text in two languages, one of them short, and none in a third."""
    texts = {
        "de": [("train", ["Show the image"]), ("eval", [GERMAN])],
        "en": [("train", ["Select the page"]), *(("eval", [s]) for s in SENTENCES)],
        "fr": [("train", ["Delete the image"])],
    }
    folder = str(tmp_path_factory.mktemp("corpus") / "corpus")
    write_corpus(folder, "invented", {}, list(texts.items()), {}, {}, {})
    return Corpus(folder)


def test_text_is_held_out_and_masked(corpus, vocabulary):
    arrays = masked_text(corpus, vocabulary, SETTINGS)
    ids, mask = arrays["input_word_ids"], arrays["input_mask"].astype(bool)
    # German fits in one sequence; of English the first six.
    assert ids.shape == (7, 16)
    weights = arrays["masked_lm_weights"]
    assert weights.sum() > 20
    german = [vocabulary.cls_id, *vocabulary.encode(GERMAN), vocabulary.sep_id]
    used = weights[0] > 0
    seen = ids[0].copy()
    seen[arrays["masked_lm_positions"][0][used]] = arrays["masked_lm_ids"][0][used]
    assert seen[mask[0]].tolist() == german


def test_no_held_out_text(vocabulary, tmp_path):
    texts = [("en", [("train", ["Select the page"])])]
    folder = str(tmp_path / "corpus")
    write_corpus(folder, "invented", {}, texts, {}, {}, {})
    with pytest.raises(UserError, match="corpus: no two sequences of held-out text"):
        masked_text(Corpus(folder), vocabulary, SETTINGS)


@pytest.fixture(scope="module")
def low_rank_dir(vocabulary, tmp_path_factory):
    """E_out = 10 > H = 8, and the table in two factors of rank 5."""
    sizes = {"mlm_transform": "projection", "output_embedding_rank": 5}
    return write_run(tmp_path_factory.mktemp("runs") / "low_rank", vocabulary, sizes)


@pytest.fixture(scope="module")
def result(pretrained_dir, coupled_dir, low_rank_dir, corpus):
    """Of a decoupled model with BERT's head, a coupled one and one of low rank."""
    models = open_models([pretrained_dir, coupled_dir, low_rank_dir], masked_lm=True)
    return geometry.measure(models, corpus, SETTINGS)


def predicted_vectors(model, arrays):
    """Hidden vectors and targets of all masked positions, by the network in numpy."""
    reference = Reference(model.config, {n: model.weights[n] for n in model.weights})
    layers = reference.encode(arrays)
    rows, places = np.nonzero(arrays["masked_lm_weights"])
    last = layers[-1][rows, arrays["masked_lm_positions"][rows, places]]
    return last, arrays["masked_lm_ids"][rows, places]


@pytest.mark.parametrize("index", range(3))
def test_results_are_those_of_whole_matrices(
    result, index, pretrained_dir, coupled_dir, low_rank_dir, corpus
):
    [model] = open_models([[pretrained_dir, coupled_dir, low_rank_dir][index]])
    found = result["models"][index]
    arrays = masked_text(corpus, model.vocabulary, SETTINGS)
    hidden, targets = predicted_vectors(model, arrays)
    assert found["sequences"] == 7
    assert found["predictions"] == len(targets)
    serving = MaskedLm(
        model.config, model.weights, Encoder(model.config, model.weights)
    )
    logits = serving(
        hidden[:, np.newaxis].astype(np.float32), np.zeros([len(hidden), 1], np.int32)
    ).numpy()[:, 0]
    for entry, matrix in [
        (found["logits"], logits - logits.mean(1, keepdims=True)),
        *zip(found["embeddings"], map(model.embedding, model.embeddings), strict=True),
    ]:
        values = np.linalg.svd(matrix - matrix.mean(0), compute_uv=False)
        shares = values[values > 1e-6 * values[0]]
        shares = shares / shares.sum()
        expected = np.exp(-(shares * np.log(shares)).sum())
        assert entry["effective_rank"] == pytest.approx(expected, rel=1e-3)


def test_ranks_and_bounds(result):
    nonlinear, coupled, low_rank = (model["logits"] for model in result["models"])
    # With E_out = 10 and an activation more than H = 8 would allow.
    assert (nonlinear["bound"], nonlinear["rank"]) == (9, 9)
    assert (coupled["bound"], coupled["rank"]) == (5, 5)
    assert (low_rank["bound"], low_rank["rank"]) == (5, 5)
    for model in result["models"]:
        gradient = model["gradient"]
        assert gradient["positions"] == 20
        assert gradient["random_share"] == pytest.approx(gradient["rank"] / 48)
        assert 0 < gradient["share"] < 1
    assert result["models"][2]["gradient"]["rank"] == 5


def test_a_result_is_shown_drawn_and_written(result, tmp_path, capsys):
    shown, drawn = show(geometry, result, tmp_path / "out", capsys)
    titles = "reaches the encoder", "Effective rank of the embeddings"
    assert all(title in shown for title in titles)
    assert {"pretrained", "coupled", "low_rank"} <= set(drawn)


# E_out is above H = 8 but for the last three.
HEADS = {
    "nonlinear": {},
    "linear": dict(mlm_transform="projection"),
    "low rank": dict(mlm_transform="projection", output_embedding_rank=5),
    "nonlinear, low rank": dict(output_embedding_rank=9, activation="relu"),
    "coupled": dict(mlm_transform="projection", coupled=True, output_embedding_size=6),
    "no projection": dict(mlm_transform="projection", output_embedding_size=8),
    "square projection": dict(
        mlm_transform="projection",
        output_embedding_size=8,
        project_equal_output_widths=True,
    ),
}
RANKS = dict(zip(HEADS, (8, 8, 5, 8, 6, 8, 8), strict=True))


def small_blocks(monkeypatch):
    monkeypatch.setattr(surgery, "_ROWS", 7)


@pytest.fixture(params=HEADS)
def head(request, monkeypatch):
    """(name, config, weights); tables are read in several blocks."""
    small_blocks(monkeypatch)
    config = model_config(**HEADS[request.param])
    return request.param, config, pretrained_weights(config)


def hidden_vectors(count, width=8):
    """As a layer norm leaves them: the elements of each sum to 0."""
    found = np.random.default_rng(5).normal(size=[count, width])
    return (found - found.mean(1, keepdims=True)).astype(np.float32)


def whole_jacobians(config, weights, hidden):
    """[n, V, H], by automatic differentiation of the network of the tests."""
    reference = Reference(config, weights)
    x = tf.constant(hidden.astype(np.float64))
    with tf.GradientTape() as tape:
        tape.watch(x)
        places = np.zeros([len(hidden), 1], np.int32)
        logits = reference.logits(x[:, tf.newaxis], places)[:, 0]
    return tape.batch_jacobian(logits, x).numpy()


def test_logits_are_those_of_the_serving_head(head):
    _, config, weights = head
    hidden = hidden_vectors(9)
    serving = MaskedLm(config, weights, Encoder(config, weights))
    expected = serving(hidden[:, np.newaxis], np.zeros([9, 1], np.int32))[:, 0]
    found = OutputPath(config, weights).logits(hidden)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_loss(head):
    _, config, weights = head
    hidden, targets = hidden_vectors(9), np.arange(9)
    path = OutputPath(config, weights)
    logits = tf.constant(path.logits(hidden))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    expected = tape.gradient(loss, logits)
    found = path.loss_gradients(hidden, targets)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_what_is_passed_on_is_that_of_whole_matrices(head):
    name, config, weights = head
    hidden, targets = hidden_vectors(9), np.arange(9)
    path = OutputPath(config, weights)
    gradients = path.loss_gradients(hidden, targets)
    shares, ranks = path.passed_on(hidden, gradients)
    jacobians = whole_jacobians(config, weights, hidden)
    for index, (matrix, g) in enumerate(zip(jacobians, gradients, strict=True)):
        projected = matrix @ np.linalg.pinv(matrix, rcond=1e-10) @ g
        assert shares[index] == pytest.approx((projected @ projected) / (g @ g))
        assert ranks[index] == np.linalg.matrix_rank(
            matrix, tol=1e-10 * np.linalg.norm(matrix, 2)
        )
    if "nonlinear" not in name:
        assert set(ranks) == {RANKS[name]}
    assert (shares < 1).all()


def coupled_path(table, bias=0.0):
    """Logits are `table @ h + bias`."""
    vocab, width = table.shape
    config = model_config(
        vocab_size=vocab,
        coupled=True,
        input_embedding_size=width,
        output_embedding_size=width,
        hidden_size=width,
        num_heads=1,
        head_size=width,
        mlm_transform="projection",
    )
    weights = {
        names.WORD_EMBEDDINGS: table.astype(np.float32),
        names.OUTPUT_BIAS: np.full([vocab], bias, np.float32),
    }
    return OutputPath(config, weights)


def test_a_certain_prediction_has_no_gradient_and_no_error():
    path = coupled_path(np.eye(2))
    hidden = np.array([[5000.0, 0]])
    shares, _ = path.passed_on(hidden, path.loss_gradients(hidden, np.array([0])))
    assert shares.tolist() == [0]


def test_the_spectrum_is_that_of_all_centred_logits(head):
    _, config, weights = head
    hidden = hidden_vectors(60)
    path = OutputPath(config, weights)
    whole = path.logits(hidden)
    whole -= whole.mean(1, keepdims=True)
    whole -= whole.mean(0)
    expected = np.linalg.svd(whole, compute_uv=False)
    found = path.spectrum(hidden)
    np.testing.assert_allclose(found, expected[: len(found)], atol=1e-10)
    np.testing.assert_allclose(expected[len(found) :], 0, atol=1e-10)


@pytest.mark.parametrize("shape", [(50, 7), (16, 16), (5, 9)])
def test_the_triangle_has_the_singular_values_of_the_table(shape, monkeypatch):
    small_blocks(monkeypatch)
    table = np.random.default_rng(0).normal(3, 1, shape).astype(np.float32)
    values = np.linalg.svd(table.astype(np.float64), compute_uv=False)
    found = np.linalg.svd(triangle(table)[:, 1:], compute_uv=False)
    np.testing.assert_allclose(found[: len(values)], values, rtol=1e-6)
    centred = table.astype(np.float64) - table.mean(0, dtype=np.float64)
    values = np.linalg.svd(centred, compute_uv=False)
    found = centred_values(table)
    np.testing.assert_allclose(
        found, values[: len(found)], rtol=1e-5, atol=1e-6 * values[0]
    )
