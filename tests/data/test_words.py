"""Words of a text by its pieces: spaces, punctuation, and scripts without spaces."""

import numpy as np
import pytest

from decoupled.core.release import tf
from decoupled.data.vocabulary import SENTENCEPIECE
from decoupled.data.words import word_starts, word_tables

PIECES = (
    "<pad> </s> <unk> [CLS] [SEP] [MASK] <0xE4> ▁the ▁d on ' t ). ▁( 我 们 จ ั ▁ Z ▁我 "
    "é ㄅ ｶ"
).split()


class Pieces:
    """What `word_tables` reads of a vocabulary."""

    kind = SENTENCEPIECE
    size, pad_id, unk_id = len(PIECES), 0, 2
    special_ids, byte_ids = (0, 1, 3, 4, 5), (6,)

    def id_to_piece(self, number):
        return PIECES[number]


def starts(text):
    ids = np.array([PIECES.index(piece) for piece in text.split()], np.int32)
    found = word_starts(*(table[ids] for table in word_tables(Pieces())))
    return "|" + "".join("|" if start else "." for start in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[CLS] ▁the ▁d on [SEP] <pad>", "|||.||"),
        # Punctuation is a separate word, and so is what follows it.
        ("▁d on ' t ). ▁( t on", "|.|||||."),
        # Every piece of a script without spaces, and what follows it.
        ("▁ Z é 我 们 t é ▁我 我", "|..|||.||"),
        # Kana of half width count as letters: masks of runs that resume depend on it.
        ("▁d ㄅ t ｶ", "|||."),
        # A mark stays with its letter.
        ("จ ั จ", "|.|"),
        # An unknown character continues the word before it.
        ("▁the <0xE4> <unk> t", "|..."),
        ("on t", "|."),
    ],
)
def test_words_begin_where_spaces_punctuation_and_scripts_say(text, expected):
    assert starts(text) == expected


def test_tensors_of_batches_have_the_same_words():
    ids = np.array([[7, 11, 9], [11, 7, 9]], np.int32)
    tables = word_tables(Pieces())
    found = word_starts(*(tf.gather(tf.constant(table), ids) for table in tables))
    assert found.numpy().tolist() == [[False, False], [True, False]]
    np.testing.assert_array_equal(found, word_starts(*(t[ids] for t in tables)))
