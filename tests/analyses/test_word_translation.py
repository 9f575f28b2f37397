"""Reciprocal ranks of translations, by hand and against all ranks at once."""

import types

import numpy as np
import pytest

from decoupled.analyses import word_translation
from decoupled.analyses.models import open_models
from decoupled.analyses.word_translation import TranslatedPieces
from decoupled.core.errors import UserError
from decoupled.metrics.neighbours import mean_interval
from tests.analyses.sentences import write_trained_model
from tests.analyses.test_translated_pieces import SETTINGS
from tests.analyses.tiny_runs import show, write_finetuned_run


def translated(pairs, first, second, languages=("ti", "yo")):
    return TranslatedPieces(
        languages,
        9,
        np.array(pairs, np.int64),
        (np.array(first, np.int64), np.array(second, np.int64)),
    )


def test_ranks_of_a_table_by_hand():
    table = np.array([[2.0, 0], [1, 0], [3, 1], [0, 1]])
    pair = translated([[0, 1]], [0], [1, 2, 3])
    # Row 0 finds row 2 (6), row 1 (2), row 3 (0); row 1 has row 0 alone to find.
    found = word_translation.reciprocal_ranks(table, pair, "dot", False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [(1 / 2 + 1) / 2])
    # By cosine row 1 is the nearest.
    found = word_translation.reciprocal_ranks(table, pair, "cosine", False)
    np.testing.assert_allclose(found, [1])


def test_a_piece_of_both_languages_does_not_find_itself():
    table = np.array([[9.0], [1], [2]])
    found = word_translation.reciprocal_ranks(
        table, translated([[0, 1]], [0], [0, 1]), "dot", False
    )
    np.testing.assert_allclose(found, [1])


def test_of_equal_scores_half_are_better():
    """A table of equal rows is at the middle of a random order."""
    found = word_translation.reciprocal_ranks(
        np.ones([6, 3]), translated([[0, 3]], [0], [1, 2, 3, 4, 5]), "dot", False
    )
    np.testing.assert_allclose(found, [(1 / 3 + 1) / 2])


@pytest.mark.parametrize("score", word_translation.SCORES)
@pytest.mark.parametrize("centre", [True, False])
def test_ranks_are_those_of_sorted_scores(score, centre, monkeypatch):
    monkeypatch.setattr(word_translation, "_QUERIES", 7)
    generator = np.random.default_rng(0)
    table = generator.normal(0.5, 1, [60, 5]).astype(np.float32)
    sides = [np.sort(generator.choice(60, 40, replace=False)) for _ in range(2)]
    pairs = np.stack([generator.permutation(own)[:20] for own in sides], 1)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    expected = np.zeros(len(pairs))
    for own, other in ((0, 1), (1, 0)):
        means = [table[ids].mean(0) * centre for ids in sides]
        for place, pair in enumerate(pairs):
            asking = table[pair[own]] - means[own]
            values = {}
            for candidate in set(sides[other]) - {pair[own]}:
                row = table[candidate] - means[other]
                value = asking @ row
                if score == "cosine":
                    value /= np.linalg.norm(asking) * np.linalg.norm(row)
                values[candidate] = value
            order = sorted(values, key=values.get, reverse=True)
            expected[place] += 0.5 / (1 + order.index(pair[other]))
    found = word_translation.reciprocal_ranks(
        table, translated(pairs, *sides), score, centre
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.fixture
def found_pieces(monkeypatch, vocabulary):
    """Two pairs of languages: one with two pairs that share a word, one without any."""
    ids = [
        number
        for number in range(vocabulary.size)
        if number not in (vocabulary.unk_id, *vocabulary.special_ids)
    ]
    found = [
        translated([[ids[0], ids[1]], [ids[2], ids[3]]], ids[:9], ids[:9]),
        translated([[ids[0], ids[4]]], ids[:9], ids[:9], ("ti", "zh")),
        translated(np.zeros([0, 2]), ids[:9], [], ("yo", "zh")),
    ]
    monkeypatch.setattr(word_translation, "translated_pieces", lambda *_: found)
    return found


CORPUS = types.SimpleNamespace(folder="corpus", fingerprint="abc")


def test_arrays_and_means(found_pieces, pretrained_dir, coupled_dir, vocabulary):
    models = open_models([pretrained_dir, coupled_dir])
    result = word_translation.measure(models, CORPUS, SETTINGS)
    assert [entry["languages"] for entry in result["pairs"]] == ["ti-yo", "ti-zh"]
    assert result["pairs"][0]["random_order"] == pytest.approx(
        100 * np.mean([1 / rank for rank in range(1, 10)])
    )
    pieces = [vocabulary.id_to_piece(n) for n in found_pieces[1].pairs[0]]
    assert result["items"][2] == [*pieces, "ti-zh"]
    assert result["groups"] == [0, 1, 0]
    arrays = result["arrays"]
    names = ["input", "input_cosine", "output", "output_cosine"]
    assert sorted(arrays) == [f"{index}/{name}" for index in (0, 1) for name in names]
    for index, model in enumerate(models):
        for kind, name in (("input", "input"), ("output", "output")):
            if model.config.coupled:
                kind = "input"
            values = [
                word_translation.reciprocal_ranks(
                    model.embedding(kind), entry, "dot", True
                )
                for entry in found_pieces[:2]
            ]
            together = np.concatenate(values)
            np.testing.assert_array_equal(arrays[f"{index}/{name}"], together)
            entry = next(
                entry
                for entry in result["models"][index]["embeddings"]
                if (entry["embedding"], entry["score"]) == (name, "dot")
            )
            assert entry["mrr"] == pytest.approx(100 * together.mean())
            assert entry["interval"] == pytest.approx(
                mean_interval(100 * together.astype(float), np.array([0, 1, 0]))
            )
            assert entry["pairs"]["ti-yo"] == pytest.approx(100 * values[0].mean())
    np.testing.assert_array_equal(arrays["1/input"], arrays["1/output"])
    assert not np.array_equal(arrays["0/input"], arrays["0/output"])


def test_a_finetuned_model_has_its_input_embedding(found_pieces, tmp_path, vocabulary):
    folder = write_finetuned_run(tmp_path / "tuned", vocabulary)
    result = word_translation.measure(open_models([folder]), CORPUS, SETTINGS)
    assert sorted(result["arrays"]) == ["0/input", "0/input_cosine"]


def test_models_of_two_vocabularies_are_refused(pretrained_dir, tmp_path):
    other = write_trained_model(tmp_path)
    with pytest.raises(UserError, match="model: has another vocabulary than .*pretr"):
        word_translation.measure(open_models([pretrained_dir, other]), CORPUS, SETTINGS)


def test_tables_and_plots(found_pieces, pretrained_dir, coupled_dir, tmp_path, capsys):
    result = word_translation.measure(
        open_models([pretrained_dir, coupled_dir]), CORPUS, SETTINGS
    )
    shown, drawn = show(word_translation, result, tmp_path / "out", capsys)
    assert "MRR x 100 (95% interval) of 3 pairs" in shown
    entry = result["models"][0]["embeddings"][0]
    assert f"{entry['mrr']:.1f} (" in shown
    names = {"input embedding", "output embedding", "cosine", "MRR x 100"}
    assert names <= set(drawn)
