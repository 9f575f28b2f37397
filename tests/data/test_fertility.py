"""Tokens per word, with words where a language has them."""

import pytest

from decoupled.data.fertility import measure_fertility

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
    found = measure_fertility(Letters(), ["one two?", "six"])
    # 10 letters in 3 words and 11 characters; one of them unknown.
    assert found._asdict() == {
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
    found = measure_fertility(Letters(), [text])
    assert found.tokens_per_word is None
    assert found.tokens_per_character == 1.0


@pytest.mark.parametrize("text", ["오늘 날씨가 좋다", "आज मौसम", "a 今天 among others"])
def test_scripts_with_spaces_have_words(text):
    words = len(text.split())
    found = measure_fertility(Letters(), [text])
    assert found.tokens_per_word == pytest.approx(found.tokens / words, abs=1e-4)


def test_more_sentences_than_are_encoded_at_once():
    assert measure_fertility(Letters(), iter(["ab cd"] * 2500)).tokens == 10_000


def test_no_text():
    assert measure_fertility(Letters(), []).tokens_per_character == 0
