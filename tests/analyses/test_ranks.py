"""Ranks of logits and embeddings, beside those of whole matrices by numpy."""

import numpy as np
import pytest

from decoupled.analyses import ranks
from decoupled.analyses.models import open_models
from decoupled.analyses.ranks import centred_triangle, effective_rank
from decoupled.exports.interop import surgery
from decoupled.exports.serving.encoder import Encoder, MaskedLm
from tests.analyses.tiny_runs import write_run

# E_out = 10 is above H = 8 unless sizes say otherwise. Name -> sizes, and the rank that
# the head allows: with an activation it may be above H.
HEADS = {
    "nonlinear": ({}, 9),
    "linear": ({"mlm_transform": "projection"}, 7),
    "narrow": ({"mlm_transform": "projection", "output_embedding_size": 5}, 5),
    "nonlinear, relu": ({"activation": "relu"}, 9),
    "coupled": (
        dict(mlm_transform="projection", coupled=True, output_embedding_size=6),
        6,
    ),
    "no projection": (dict(mlm_transform="projection", output_embedding_size=8), 7),
    "square projection": (
        dict(
            mlm_transform="projection",
            output_embedding_size=8,
            project_equal_output_widths=True,
        ),
        7,
    ),
}


def small_blocks(monkeypatch):
    monkeypatch.setattr(surgery, "_ROWS", 7)


def hidden_vectors(count, width=8):
    """As a layer norm leaves them: the elements of each sum to 0."""
    drawn = np.random.default_rng(5).normal(size=[count, width])
    return (drawn - drawn.mean(1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("name", HEADS)
def test_ranks_are_those_of_all_centred_logits(name, vocabulary, tmp_path, monkeypatch):
    small_blocks(monkeypatch)
    sizes, bound = HEADS[name]
    [model] = open_models([write_run(tmp_path / "run", vocabulary, sizes)])
    hidden = hidden_vectors(60)
    serving = MaskedLm(
        model.config, model.weights, Encoder(model.config, model.weights)
    )
    logits = serving(hidden[:, np.newaxis], np.zeros([60, 1], np.int32))[:, 0]
    logits = logits.numpy().astype(np.float64)
    logits -= logits.mean(1, keepdims=True)
    values = np.linalg.svd(logits - logits.mean(0), compute_uv=False)
    result = ranks.of_logits(model, hidden)
    # The serving head computes in float32, which adds noise to what a bound excludes.
    expected = effective_rank(values[values > 1e-5 * values[0]])
    assert result["effective_rank"] == pytest.approx(expected, rel=1e-3)
    assert (result["bound"], result["rank"]) == (bound, bound)


def test_few_positions_and_few_pieces_bound_the_rank(vocabulary, tmp_path):
    sizes = {"output_embedding_size": 64}
    [model] = open_models([write_run(tmp_path / "run", vocabulary, sizes)])
    for positions, bound in ((0, 0), (1, 0), (3, 2), (200, 47)):
        result = ranks.of_logits(model, hidden_vectors(positions))
        assert (result["positions"], result["bound"]) == (positions, bound)
        assert result["rank"] <= bound


def test_embeddings_without_their_mean_row(pretrained_dir, coupled_dir):
    decoupled, coupled = open_models([pretrained_dir, coupled_dir])
    for model, kinds in ((decoupled, ["input", "output"]), (coupled, ["input"])):
        entries = ranks.of_embeddings(model)
        assert [entry["embedding"] for entry in entries] == kinds
        for entry in entries:
            table = model.embedding(entry["embedding"])
            values = np.linalg.svd(table - table.mean(0), compute_uv=False)
            assert entry["width"] == table.shape[1]
            assert entry["effective_rank"] == pytest.approx(
                effective_rank(values), rel=1e-4
            )


def test_effective_ranks_by_hand():
    assert effective_rank(np.ones(5)) == pytest.approx(5)
    assert effective_rank(np.array([3.0, 0, 0])) == 1
    assert effective_rank(np.zeros(3)) == 0


@pytest.mark.parametrize("shape", [(50, 7), (16, 16), (5, 9)])
def test_the_triangle_has_the_singular_values_of_the_table(shape, monkeypatch):
    small_blocks(monkeypatch)
    table = np.random.default_rng(0).normal(3, 1, shape).astype(np.float32)
    centred = table.astype(np.float64) - table.mean(0, dtype=np.float64)
    values = np.linalg.svd(centred, compute_uv=False)
    of_triangle = np.linalg.svd(centred_triangle(table), compute_uv=False)
    np.testing.assert_allclose(
        of_triangle, values[: len(of_triangle)], rtol=1e-5, atol=1e-6 * values[0]
    )
