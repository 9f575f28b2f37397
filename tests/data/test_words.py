"""Words of a text by its pieces: spaces, punctuation, and scripts without spaces."""

import numpy as np
import pytest

from decoupled.data.words import word_pieces, word_starts

PIECES = (
    "<pad> </s> <unk> [CLS] [SEP] [MASK] <0xE4> ▁the ▁d on ' t ). ▁( 我 们 จ ั ▁ Z ▁我 é"
).split()


class Pieces:
    """What `word_pieces` reads of a vocabulary."""

    size, pad_id, unk_id = len(PIECES), 0, 2
    special_ids, byte_ids = (0, 1, 3, 4, 5), (6,)

    def id_to_piece(self, number):
        return PIECES[number]


def starts(text):
    ids = np.array([PIECES.index(piece) for piece in text.split()], np.int32)
    return "".join("|" if x else "." for x in word_starts(ids, word_pieces(Pieces())))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[CLS] ▁the ▁d on [SEP] <pad>", "|||.||"),
        # Punctuation is a word of its own, and so is what follows it.
        ("▁d on ' t ). ▁( t on", "|.|||||."),
        # Every piece of a script without spaces, and what follows it.
        ("▁ Z é 我 们 t é ▁我 我", "|..|||.||"),
        # A mark stays with its letter.
        ("จ ั จ", "|.|"),
        # An unknown character continues the word before it.
        ("▁the <0xE4> <unk> t", "|..."),
        ("on t", "|."),
    ],
)
def test_words_begin_where_spaces_punctuation_and_scripts_say(text, expected):
    assert starts(text) == expected


def test_rows_of_a_batch_are_apart():
    ids = np.array([[7, 11], [11, 7]], np.int32)
    assert word_starts(ids, word_pieces(Pieces())).numpy().tolist() == [
        [True, False],
        [True, True],
    ]
