"""Rows of BERT's embeddings for SentencePiece's pieces, worked by hand."""

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.exports.interop.from_huggingface import WordPieceRows

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


def rows(tmp_path, pieces=WORDPIECES, size=None):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return WordPieceRows(str(path), size or len(pieces), Pieces())


def test_a_piece_gets_the_mean_of_what_bert_cuts_it_into(tmp_path):
    table = np.arange(10, dtype=np.float32)[:, None] * [1, 10]
    converted = rows(tmp_path).convert(table.astype(np.float32))
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


def test_a_bias_is_converted_too(tmp_path):
    converted = rows(tmp_path).convert(np.arange(10, dtype=np.float32))
    assert converted[7] == 6


def test_how_many_pieces_are_known(tmp_path):
    assert rows(tmp_path).summary == {
        "one_wordpiece": 5,
        "several_wordpieces": 3,
        "unknown_to_bert": 4,
    }


def test_a_lower_cased_vocabulary_is_looked_up_in_lower_case(tmp_path):
    lower = [piece if piece[0] == "[" else piece.lower() for piece in WORDPIECES]
    table = np.arange(10, dtype=np.float32)
    assert rows(tmp_path, lower).convert(table)[6] == 5


def cut(tmp_path, pieces, text):
    """The WordPieces of a piece."""
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    starts = text.startswith("▁")
    found = rows(tmp_path, known)._cut(text.removeprefix("▁"), starts)
    return [known[index] for index in found]


def test_chinese_characters_and_punctuation_are_words_of_their_own(tmp_path):
    both = ["漢", "##漢", "字", "##字", ".", "##.", "a", "##a", "b", "##b"]
    assert cut(tmp_path, both, "▁漢字") == ["漢", "字"]
    assert cut(tmp_path, both, "a.b") == ["##a", ".", "b"]
    assert cut(tmp_path, both, "▁ab漢a") == ["a", "##b", "漢", "a"]


def test_a_lower_cased_vocabulary_has_no_accents(tmp_path):
    made = rows(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"])
    assert made._parts_of("▁Thé", 6, Pieces()) == [5]


def test_a_file_of_another_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="10 pieces, but the model has 12 rows"):
        rows(tmp_path, size=12)
    with pytest.raises(UserError, match=r"has no piece \[SEP\]"):
        rows(tmp_path, [p for p in WORDPIECES if p != "[SEP]"])
