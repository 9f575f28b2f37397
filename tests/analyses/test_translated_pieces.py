"""Pieces that translate each other: against a count by hand, on languages made up."""

import collections
import itertools
import random
import types

import numpy as np
import pytest

from decoupled.analyses.word_translation import translated_pieces, word_groups
from decoupled.configs.analyses import WordTranslationSettings
from decoupled.core.errors import UserError

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
