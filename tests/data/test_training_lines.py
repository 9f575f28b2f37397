"""Lines for the trainer: whole text, short lines, nothing reserved."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoupled.data.training_lines import TrainingLines, cut_text, valid_text


def lines(*sentences, max_line=2000):
    return [line.decode() for line in TrainingLines(sentences, max_line)]


def test_white_space_is_one_space_and_empty_sentences_are_left_out():
    made = TrainingLines([" one\ttwo\r\nthree\u2028four ", "", " \n\0"])
    assert list(made) == [b"one two three four"]
    assert (made.lines, made.empty, made.cut) == (1, 2, 0)


def test_reserved_characters_are_spaces():
    made = TrainingLines(["one\0two▅three", "▅"])
    assert list(made) == [b"one two three"]
    assert (made.reserved, made.empty) == (2, 1)


def test_half_a_surrogate_pair_is_a_replacement_character():
    assert lines("a\ud800b") == ["a\ufffdb"]
    assert valid_text("\udfff") == "\ufffd"


def test_lengths_are_counted():
    made = TrainingLines(["añb", "漢字 " * 5], max_line=8)
    assert [line.decode() for line in made] == ["añb", "漢字 漢字 漢字", "漢字 漢字"]
    assert (made.lines, made.characters, made.bytes, made.cut) == (3, 16, 37, 1)


@pytest.mark.parametrize(
    "text, first",
    [
        # A sentence ends; the full stop in a number ends none.
        ("One two. Three four 3.14 five", "One two."),
        ("我們去看看。他們也去，因為他們", "我們去看看。"),
        # No sentence ends in the second half: a word does.
        ("a. b c d e f g h i j k l m n", "a. b c d e"),
        # Neither: a clause ends.
        ("abcde、fghijklmnopq", "abcde、"),
        ("abcdefghijklmno", "abcdefghij"),
        # Never between a letter and its accent, or within a joined emoji.
        ("abcdefghie\u0301xyz", "abcdefghi"),
        ("abcdefgh👩\u200d👧xyz", "abcdefgh"),
        ("a" + "\u0301" * 20, "a" + "\u0301" * 9),
    ],
)
def test_where_a_long_line_is_cut(text, first):
    assert next(cut_text(text, 10)) == first


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("ab .。,\u0301\u200d👩漢 "), max_size=60))
def test_only_spaces_are_lost(text):
    text = " ".join(text.split())
    parts = list(cut_text(text, 7))
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")
    assert all(0 < len(part) <= 7 for part in parts)
    assert all(part == part.strip(" ") for part in parts)


def test_devanagari_clusters_stay_whole():
    # KA + virama + SSA is one cluster, the vowel sign belongs to it.
    text = "क्षि" * 10
    for part in cut_text(text, 6):
        assert unicodedata.category(part[0]) == "Lo"
        assert unicodedata.combining(part[-1]) != 9
