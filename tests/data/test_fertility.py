"""Tokens per word, with words where a language has them."""

import re

import pytest

from decoupled.data.vocabulary_build import measure_fertility, plot_fertility

UNKNOWN, BYTE = 2, 7


class Letters:
    """A vocabulary whose tokens are letters; "?" is unknown, "#" a single byte."""

    unk_id = UNKNOWN

    def __init__(self, byte_ids=()):
        self.byte_ids = byte_ids

    def encode_batch(self, texts):
        ids = {"?": UNKNOWN, "#": BYTE}
        return [[ids.get(c, 99) for c in text if c != " "] for text in texts]


def test_counts_by_hand():
    measured = measure_fertility(Letters(), ["one two?", "six"])
    # 10 letters in 3 words and 11 characters; one of them unknown.
    assert measured._asdict() == {
        "sentences": 2,
        "tokens": 10,
        "tokens_per_word": 3.3333,
        "tokens_per_character": 0.9091,
        "unknown_rate": 0.1,
        "byte_rate": None,
    }


def test_single_bytes_are_counted_where_there_are_such_pieces():
    assert measure_fertility(Letters((BYTE,)), ["ab##"]).byte_rate == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "今天天气很好。",
        "今日はいい天気です",
        "วันนี้อากาศดี",
        "ມື້ນີ້ອາກາດດີ",
        "ယနေ့ရာသီဥတုကောင်း",
        "ថ្ងៃនេះ",
    ],
)
def test_scripts_without_spaces_have_no_words(text):
    measured = measure_fertility(Letters(), [text])
    assert measured.tokens_per_word is None
    assert measured.tokens_per_character == 1.0


@pytest.mark.parametrize("text", ["오늘 날씨가 좋다", "आज मौसम", "a 今天 among others"])
def test_scripts_with_spaces_have_words(text):
    words = len(text.split())
    measured = measure_fertility(Letters(), [text])
    assert measured.tokens_per_word == pytest.approx(measured.tokens / words, abs=1e-4)


def test_more_sentences_than_are_encoded_at_once():
    assert measure_fertility(Letters(), iter(["ab cd"] * 2500)).tokens == 10_000


def test_no_text():
    assert measure_fertility(Letters(), []).tokens_per_character == 0


# The picture: rows of languages.


def measured(words=1.5, unknown=0.01, **more):
    values = {"tokens_per_word": words, "tokens_per_character": 0.4}
    return {**values, "unknown_rate": unknown, **more}


def texts(path):
    with open(path, encoding="utf-8") as file:
        return re.findall(r"<text [^>]*>([^<]+)</text>", file.read())


def report(languages):
    return {"vocab_size": 8000, "languages": languages}


def test_every_language_has_a_row(tmp_path):
    names = [f"language-{index}" for index in range(50)]
    languages = {name: measured(1 + index) for index, name in enumerate(names)}
    png, svg = plot_fertility(report(languages), str(tmp_path / "plot"))
    assert (png, svg) == (f"{tmp_path}/plot.png", f"{tmp_path}/plot.svg")
    with open(png, "rb") as file:
        assert file.read(4) == b"\x89PNG"
    shown = [text for text in texts(svg) if text.startswith("language-")]
    # Most tokens first.
    assert shown == names[::-1]
    assert "8,000 pieces, 50 languages" in texts(svg)


def test_languages_without_words_stand_apart(tmp_path):
    languages = {"en": measured(), "ja": measured(None), "th": measured(None)}
    _, svg = plot_fertility(report(languages), str(tmp_path / "plot"))
    labels = [text for text in texts(svg) if text.startswith("tokens per")]
    assert labels == ["tokens per word", "tokens per character"]


def test_byte_fallback_shows_bytes_in_place_of_unknown(tmp_path):
    """Also where no language has words."""
    languages = {"ja": measured(None, unknown=0.0, byte_rate=0.02)}
    _, svg = plot_fertility(report(languages), str(tmp_path / "plot"))
    assert "8,000 pieces, 1 language" in texts(svg)
    assert "single bytes, %" in texts(svg)
    assert "unknown tokens, %" not in texts(svg)
    assert "tokens per word" not in texts(svg)
