"""Pieces that translate each other, and their ranks by hand and all at once."""

import collections
import itertools
import random
import types

import numpy as np
import pytest

from decoupled.analyses import word_translation
from decoupled.analyses.models import open_models
from decoupled.analyses.word_translation import (
    TranslatedPieces,
    translated_pieces,
    word_groups,
)
from decoupled.configs.analyses import WordTranslationSettings
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import SENTENCEPIECE
from decoupled.metrics.neighbours import mean_interval
from tests.analyses.sentences import write_trained_model
from tests.analyses.tiny_runs import show, write_finetuned_run

SETTINGS = WordTranslationSettings(
    whole_word_share=0.5,
    min_count=2,
    min_dice=0.0,
    min_candidate_count=1,
    centre=True,
)


class Pieces:
    """A vocabulary of given pieces; a text is written as its pieces, with spaces."""

    path, unk_id, special_ids, byte_ids = "toy.model", 0, (1,), (2,)
    kind = SENTENCEPIECE

    def __init__(self, pieces):
        self.pieces = ["<unk>", "[CLS]", "<0x0A>", *pieces]
        self.size = len(self.pieces)

    def id_to_piece(self, number):
        return self.pieces[number]

    def encode_batch(self, texts):
        return [[self.pieces.index(piece) for piece in text.split()] for text in texts]


def find(folder, texts, **changes):
    """Languages -> pairs of pieces, and candidates, of language -> id -> text."""
    place = folder / "parallel/train/sentences"
    place.mkdir(parents=True, exist_ok=True)
    for language, own in texts.items():
        lines = (f"{name}\t{text}\n" for name, text in own.items())
        (place / f"{language}.tsv").write_text("".join(lines), encoding="utf-8")
    everything = " ".join(text for own in texts.values() for text in own.values())
    vocabulary = Pieces(sorted(set(everything.split())))
    settings = WordTranslationSettings(**{**vars(SETTINGS), **changes})
    corpus = types.SimpleNamespace(folder=str(folder))
    found = translated_pieces(corpus, vocabulary, settings)
    return {
        entry.languages: (
            [tuple(map(vocabulary.id_to_piece, pair)) for pair in entry.pairs],
            [[*map(vocabulary.id_to_piece, own)] for own in entry.candidates],
        )
        for entry in found
    }


def numbered(*texts):
    return {f"s{number}": text for number, text in enumerate(texts)}


def test_words_that_stand_together_translate_each_other(tmp_path):
    found = find(
        tmp_path,
        {
            "ti": numbered("▁kalbi ▁wey", "▁kalbi ▁mai", "▁mai ▁wey", "▁mai"),
            "yo": numbered("▁aja ▁ati", "▁aja ▁omi", "▁omi ▁ati", "▁omi"),
        },
    )
    pairs, candidates = found["ti", "yo"]
    assert pairs == [("▁kalbi", "▁aja"), ("▁mai", "▁omi"), ("▁wey", "▁ati")]
    assert candidates == [["▁kalbi", "▁mai", "▁wey"], ["▁aja", "▁ati", "▁omi"]]


def test_a_word_ends_before_a_word_a_mark_or_the_end_and_nowhere_else(tmp_path):
    """A vowel sign (a mark in Unicode, no letter) goes on with the word."""
    others = numbered(*["▁aja ▁."] * 4)

    def words(text):
        given = {"hi": numbered(*[text] * 4), "yo": others}
        pairs, (candidates, _) = find(tmp_path, given)["hi", "yo"]
        assert len(pairs) == 1
        return candidates

    assert words("▁ab ▁cd . ▁12 ▁ef") == ["▁ab", "▁cd", "▁ef"]
    # Whatever the next sentence begins with.
    assert words("gh ▁ab") == ["▁ab"]
    assert words("▁ab » ▁cd gh ▁ef") == ["▁ab", "▁ef"]
    assert words("▁ab ा ▁cd <unk> ▁ef <0x0A> ▁gh") == ["▁gh"]


def test_pieces_that_are_mostly_a_beginning_are_no_words(tmp_path):
    """Of three occurrences one is a whole word."""
    texts = {
        "ti": numbered("▁ver ▁mai", "▁ver a ▁mai", "▁ver b ▁mai"),
        "yo": numbered("▁omi ▁ati", "▁omi", "▁omi"),
    }
    both = find(tmp_path, texts, min_count=1, whole_word_share=0.3)
    assert both["ti", "yo"][1][0] == ["▁mai", "▁ver"]
    assert both["ti", "yo"][0] == [("▁mai", "▁omi"), ("▁ver", "▁ati")]
    one = find(tmp_path, texts, min_count=1, whole_word_share=0.4)
    assert one["ti", "yo"][1][0] == ["▁mai"]


def test_names_do_not_translate_themselves(tmp_path):
    text = {"ti": numbered("▁Dan ▁mai", "▁Dan", "▁mai ▁Dan")}
    text["yo"] = numbered("▁Dan ▁omi", "▁Dan", "▁omi ▁Dan")
    pairs, candidates = find(tmp_path, text)["ti", "yo"]
    assert pairs == [("▁mai", "▁omi")]
    assert candidates == [["▁Dan", "▁mai"], ["▁Dan", "▁omi"]]


def test_pairs_are_those_of_a_count_by_hand(tmp_path):
    """Three languages of 12 words that lack different sentences."""
    draw = random.Random(0)
    texts = {}
    for language in ("sw", "ti", "yo"):
        words = [f"▁{language}{chr(97 + number)}" for number in range(12)]
        texts[language] = {
            f"s{number}": " ".join(
                words[place] if draw.random() < 0.8 else draw.choice(words)
                for place in (number % 12, number // 12, number * 7 % 12)
            )
            for number in range(144)
            if draw.random() < 0.9
        }
    found = find(tmp_path, texts, min_count=20, min_dice=0.4, min_candidate_count=10)
    assert list(found) == list(itertools.combinations(texts, 2))
    total = 0
    for (first, second), (pairs, candidates) in found.items():
        shared = set(texts[first]) & set(texts[second])
        sides = [
            collections.Counter(w for n in shared for w in set(texts[own][n].split()))
            for own in (first, second)
        ]
        for counts, own in zip(sides, candidates, strict=True):
            assert own == sorted(w for w in counts if counts[w] >= 10)
        dice = {}
        for a, b in itertools.product(*sides):
            if sides[0][a] >= 20 and sides[1][b] >= 20:
                both = sum(
                    a in texts[first][n].split() and b in texts[second][n].split()
                    for n in shared
                )
                dice[a, b] = 2 * both / (sides[0][a] + sides[1][b])
        expected = [
            (a, b)
            for (a, b), value in sorted(dice.items())
            if value >= 0.4
            and value == max(v for (x, _), v in dice.items() if x == a)
            and value == max(v for (_, y), v in dice.items() if y == b)
        ]
        assert pairs == expected
        total += len(pairs)
    # Neither none nor all.
    assert 6 < total < 36


def test_text_without_spaces_is_refused_in_a_line(tmp_path):
    texts = {
        "zh": numbered("▁起初 神 创造", "▁地 是 空虚", "▁神 说"),
        "yo": numbered("▁omi ▁ati", "▁omi", "▁omi"),
    }
    with pytest.raises(UserError, match="no two whole-word pieces of toy.model") as it:
        find(tmp_path, texts)
    assert "\n" not in str(it.value)
    assert "in yo, zh (text written without spaces has none" in str(it.value)
    # Other languages do not lack theirs.
    texts["ti"] = numbered("▁mai ▁wey", "▁mai", "▁mai")
    found = find(tmp_path, texts)
    assert found["ti", "yo"][0] == [("▁mai", "▁omi")]
    assert found["ti", "zh"][0] == found["yo", "zh"][0] == []


def test_a_corpus_without_ids_is_refused(tmp_path):
    corpus = types.SimpleNamespace(folder=str(tmp_path))
    with pytest.raises(UserError, match="train/sentences: missing; .* build it again"):
        translated_pieces(corpus, Pieces([]), SETTINGS)


def test_pairs_that_share_words_are_a_group(tmp_path):
    words = {"sw": "und die", "ti": "and the", "yo": "et die"}
    texts = {
        language: numbered(*(f"▁{word}" for word in own.split() for _ in range(2)))
        for language, own in words.items()
    }
    find(tmp_path, texts)
    corpus = types.SimpleNamespace(folder=str(tmp_path))
    vocabulary = Pieces(["▁und", "▁die", "▁and", "▁the", "▁et"])
    found = translated_pieces(corpus, vocabulary, SETTINGS)
    named = [
        tuple(vocabulary.id_to_piece(number)[1:] for number in pair)
        for entry in found
        for pair in entry.pairs
    ]
    groups = collections.defaultdict(set)
    for pair, number in zip(named, word_groups(found), strict=True):
        groups[number].add(pair)
    # "die" of sw and of yo are equal, hence no pair; both go with "the".
    assert list(groups) == [0, 1]
    assert sorted(map(sorted, groups.values())) == [
        [("and", "et"), ("und", "and"), ("und", "et")],
        [("die", "the"), ("the", "die")],
    ]
    assert word_groups([]).size == 0
    assert np.issubdtype(word_groups(found).dtype, np.integer)


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
    found = word_translation.reciprocal_ranks(table, pair, False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [(1 / 2 + 1) / 2])


def test_a_piece_of_both_languages_does_not_find_itself():
    table = np.array([[9.0], [1], [2]])
    found = word_translation.reciprocal_ranks(
        table, translated([[0, 1]], [0], [0, 1]), False
    )
    np.testing.assert_allclose(found, [1])


def test_of_equal_scores_half_are_better():
    """A table of equal rows is at the middle of a random order."""
    found = word_translation.reciprocal_ranks(
        np.ones([6, 3]), translated([[0, 3]], [0], [1, 2, 3, 4, 5]), False
    )
    np.testing.assert_allclose(found, [(1 / 3 + 1) / 2])


@pytest.mark.parametrize("centre", [True, False])
def test_ranks_are_those_of_sorted_scores(centre, monkeypatch):
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
                values[candidate] = value
            order = sorted(values, key=values.get, reverse=True)
            expected[place] += 0.5 / (1 + order.index(pair[other]))
    found = word_translation.reciprocal_ranks(table, translated(pairs, *sides), centre)
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
    names = ["input", "output"]
    assert sorted(arrays) == [f"{index}/{name}" for index in (0, 1) for name in names]
    for index, model in enumerate(models):
        for kind, name in (("input", "input"), ("output", "output")):
            if model.config.coupled:
                kind = "input"
            values = [
                word_translation.reciprocal_ranks(model.embedding(kind), entry, True)
                for entry in found_pieces[:2]
            ]
            together = np.concatenate(values)
            np.testing.assert_array_equal(arrays[f"{index}/{name}"], together)
            entry = next(
                entry
                for entry in result["models"][index]["embeddings"]
                if entry["embedding"] == name
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
    assert sorted(result["arrays"]) == ["0/input"]


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
    names = {"input embedding", "output embedding", "MRR x 100"}
    assert names <= set(drawn)
