"""Rows of BERT's embeddings for SentencePiece's pieces, worked by hand."""

import numpy as np

from decoupled.exports.interop.wordpiece_rows import (
    TextRules,
    WordPieceRows,
    seems_lower,
)

WORDPIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "The",
    "##m",
    "##e",
    "n",
    ",",
]


class Pieces:
    """Stands for a vocabulary of ten pieces."""

    pieces = ["<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]",
              "▁The", "▁Theme", "me", "n,", "▁漢", "▁"]  # fmt: skip
    size, pad_id, unk_id = len(pieces), 0, 2
    special_ids = (0, 1, 3, 4, 5)

    def id_to_piece(self, index):
        return self.pieces[index]


def rows(pieces=WORDPIECES, rules=None):
    ids = {piece: row for row, piece in enumerate(pieces)}
    lower = seems_lower(ids)
    return WordPieceRows(ids, rules or TextRules(lower, lower), Pieces())


def test_a_piece_gets_the_mean_of_what_bert_cuts_it_into():
    table = np.arange(10, dtype=np.float32)[:, None] * [1, 10]
    converted = rows().convert(table.astype(np.float32))
    assert converted.dtype == np.float32
    assert converted[:, 0].tolist() == [
        0,  # <pad>: [PAD]
        1,  # </s>: BERT has none
        1, 2, 3, 4,  # [UNK], [CLS], [SEP], [MASK]
        5,  # The
        (5 + 6 + 7) / 3,  # The ##m ##e
        (6 + 7) / 2,  # ##m ##e
        # "n" is known at a word's start only, and alone it stands in for "##n", as
        # punctuation does.
        (8 + 9) / 2,
        1, 1,
    ]  # fmt: skip
    assert converted[:, 1].tolist() == (10 * converted[:, 0]).tolist()


def test_a_bias_is_converted_too():
    converted = rows().convert(np.arange(10, dtype=np.float32))
    assert converted[7] == 6


def test_how_many_pieces_are_known():
    assert rows().summary == {
        "one_wordpiece": 5,
        "several_wordpieces": 3,
        "unknown_to_bert": 4,
    }


def test_a_lower_cased_vocabulary_is_looked_up_in_lower_case():
    lower = [piece if piece[0] == "[" else piece.lower() for piece in WORDPIECES]
    table = np.arange(10, dtype=np.float32)
    assert rows(lower).convert(table)[6] == 5


def cut(pieces, text):
    """The WordPieces of a piece."""
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    starts = text.startswith("▁")
    found = rows(known)._cut(text.removeprefix("▁"), starts)
    return [known[index] for index in found]


def test_chinese_characters_and_punctuation_are_words_of_their_own():
    both = ["漢", "##漢", "字", "##字", ".", "##.", "a", "##a", "b", "##b"]
    assert cut(both, "▁漢字") == ["漢", "字"]
    assert cut(both, "a.b") == ["##a", ".", "b"]
    assert cut(both, "▁ab漢a") == ["a", "##b", "漢", "a"]


def test_a_lower_cased_vocabulary_has_no_accents():
    made = rows(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"])
    assert made._parts_of("▁Thé", 6, Pieces()) == [5]


def test_rules_of_the_tokenizer_are_followed():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    both = [*special, "thé", "the", "漢字"]
    lower, bare = TextRules(True, False), TextRules(True, True)
    assert rows(both, lower)._parts_of("▁Thé", 6, Pieces()) == [5]
    assert rows(both, bare)._parts_of("▁Thé", 6, Pieces()) == [6]
    assert rows(both, TextRules(False, False))._parts_of("▁Thé", 6, Pieces()) == [1]
    together = TextRules(False, False, separates_chinese=False)
    assert rows(both, together)._parts_of("▁漢字", 6, Pieces()) == [7]
    assert rows(both, lower)._parts_of("▁漢字", 6, Pieces()) == [1]
