"""BERT's WordPieces: ids and offsets of transformers, on the host and in the graph."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data import wordpiece
from decoupled.data.tokenizer_folder import TextRules, make_wordpieces
from decoupled.data.vocabulary import (
    WORDPIECE,
    Pairs,
    WordPiece,
    open_vocabulary,
)
from decoupled.data.words import word_starts, word_tables

CASES = json.loads((pathlib.Path(__file__).parent / "wordpiece_cases.json").read_text())
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def made(pieces, *rules):
    return WordPiece("x", make_wordpieces(pieces, TextRules(*rules)))


@pytest.fixture(scope="module")
def small():
    return made(
        [*SPECIAL, "the", "dog", "##s", "##.", ".", "caf", "##e", "é"], True, True
    )


# Each rule with either value of each other; the graph has them all.
@pytest.mark.parametrize(
    "case",
    [case for case in CASES["settings"] if sum(case["rules"]) % 2 == 0],
    ids=lambda case: str(case["rules"]),
)
def test_ids_and_offsets_are_those_of_transformers(case):
    vocabulary = made(CASES["pieces"], *case["rules"])
    found = list(vocabulary.encode_with_offsets(CASES["texts"]))
    for text, encoding, ids, offsets in zip(
        CASES["texts"], found, case["ids"], case["offsets"], strict=True
    ):
        spans = [
            list(span) for span in zip(encoding.starts, encoding.ends, strict=True)
        ]
        assert (encoding.ids, spans) == (ids, offsets), text


def test_the_graph_gives_the_same_ids_and_offsets(tmp_path):
    case = CASES["settings"][7]
    vocabulary = made(CASES["pieces"], *case["rules"])
    module = tf.Module()
    module.tokenizer = vocabulary.tokenizer()
    module.cut = tf.function(
        module.tokenizer.pieces,
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
    tf.saved_model.save(module, str(tmp_path / "saved"))
    cut = tf.saved_model.load(str(tmp_path / "saved")).cut
    ids, starts, ends = cut(tf.constant(CASES["texts"]))
    assert (ids.dtype, starts.dtype) == (tf.int32, tf.int64)
    assert ids.to_list() == case["ids"]
    spans = zip(starts.to_list(), ends.to_list(), strict=True)
    assert [list(map(list, zip(*of_text, strict=True))) for of_text in spans] == case[
        "offsets"
    ]
    assert cut(tf.constant([], tf.string))[0].shape == (0, None)
    assert cut(tf.constant([b"\xff the"]))[0].shape[0] == 1


def test_many_texts_are_cut_in_parts(monkeypatch, small):
    from decoupled.data import vocabulary

    texts = ["the dogs.", "", "the" * 40, "dog", "[MASK] the", "dog dogs"] * 3
    together = small.encode_batch(texts)
    assert together[0] == [5, 6, 7, 9]
    monkeypatch.setattr(vocabulary, "_TEXTS_AT_ONCE", 2)
    assert small.encode_batch(texts) == together
    monkeypatch.setattr(vocabulary, "_CHARACTERS_AT_ONCE", 10)
    assert small.encode_batch(texts) == together
    assert [small.encode(text) for text in texts] == together
    assert small.encode_batch([]) == []


def test_special_pieces_and_pairs(small):
    ids = small.pad_id, small.unk_id, small.cls_id, small.sep_id, small.mask_id
    assert ids == (0, 1, 2, 3, 4)
    assert (small.special_ids, small.byte_ids, small.blank_id) == (
        (0, 2, 3, 4),
        (),
        None,
    )
    assert (small.kind, small.pairs, small.mask_text) == (
        WORDPIECE,
        Pairs(1, 1),
        "[MASK]",
    )
    # Text never becomes a special piece, but one with masks does.
    assert 4 not in small.encode("the [MASK].")
    assert small.encode_masked("the [MASK].") == [5, 4, 9]
    assert small.encode("\ud800the") == [5]


def test_ends_run_over_what_becomes_nothing(small):
    text = "cafe\u0301\u200d. the"
    (encoding,) = small.encode_with_offsets([text])
    assert [text[a:b] for a, b in zip(encoding.starts, encoding.ends, strict=True)] == [
        "caf", "e", ".", "the",
    ]  # fmt: skip
    assert small.vanishes(text).nonzero()[0].tolist() == [4, 5]


def test_a_word_begins_where_no_hashes_are(small):
    tables = word_tables(small)
    ids = np.array([2, 5, 6, 7, 8, 9, 1, 1, 11, 3, 11])
    starts = word_starts(*(table[ids] for table in tables))
    # After [SEP], the rest of a word that was cut is one, too.
    assert starts.tolist() == [1, 1, 0, 0, 1, 1, 1, 0, 1, 1]


def test_fewer_pieces_give_the_same_words(small):
    kept = small.trimmed([0, 1, 2, 3, 4, 5, 6, 7, 9])
    assert kept.encode("the dogs. the") == [5, 6, 7, 8, 5]
    assert kept.pieces[-1] == "." and kept.rules == small.rules


def test_the_table_has_a_format_of_its_own():
    """wordpiece.json names the format; another table would need another name."""
    assert files.file_fingerprint(wordpiece._TABLE)[:16] == "56de31d0c07fb560"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda stored: stored.pop("pieces"), "'pieces'"),
        (lambda stored: stored.update(format="x"), "format is not"),
        (lambda stored: stored.update(lower=1), "a rule is of another type"),
        (lambda stored: stored.update(longest_word=0), "a rule is of another type"),
        (lambda stored: stored.update(pieces=[*SPECIAL, 3]), "a piece is no text"),
        (lambda stored: stored.update(pieces=[*SPECIAL, "a", "a"]), "occurs twice"),
        (lambda stored: stored.update(pieces=SPECIAL[1:]), "special piece is missing"),
        (lambda stored: stored.update(pieces=[*SPECIAL, "\ud800"]), "surrogates"),
        (lambda stored: stored.update(pieces=[*SPECIAL, "x" * 257]), "256 bytes"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    stored = json.loads(make_wordpieces(SPECIAL, TextRules(True, True)))
    change(stored)
    path = tmp_path / "wordpiece.json"
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match=f"not a vocabulary of WordPieces.*{message}"):
        open_vocabulary(str(path))
