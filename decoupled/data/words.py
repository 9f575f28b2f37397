"""Which pieces of a text make up a word, as far as a vocabulary tells.

A word is what stands between spaces, without the punctuation marks and symbols beside
it, each of which is a word of its own: "don't" is don, ' and t, as in BERT. Scripts
without spaces between words have no such words, and there every piece is one: a unigram
vocabulary cuts them into frequent strings, which are often words. A combining mark and
the bytes of an unknown character never begin a word.

A piece that holds both, such as ")." or "▁(the", is not divided.
"""

import re
import unicodedata
from typing import Any, NamedTuple

import numpy as np

from decoupled.data.vocabulary import Vocabulary

# Begins a word, in SentencePiece.
MARK = "▁"
# Letters of scripts that put no spaces between words: Thai, Lao, Tibetan, Myanmar,
# Khmer, Tai Le to Tai Tham, kana, bopomofo, Han.
UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u1aaf"
    "\u3040-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)


class WordPieces(NamedTuple):
    """What the pieces of a vocabulary say of words, bool [pieces] each.

    begins: the piece begins a word. closes: the piece after it does, unless that one
    joins: it belongs to what stands before it.
    """

    begins: np.ndarray
    closes: np.ndarray
    joins: np.ndarray


def word_pieces(vocabulary: Vocabulary) -> WordPieces:
    """Reads the pieces of a vocabulary; a special piece is a word of its own."""
    names = [vocabulary.id_to_piece(number) for number in range(vocabulary.size)]
    begins = np.array([name[0] == MARK or _is_separate(name[0]) for name in names])
    closes = np.array([_is_separate(name[-1]) for name in names])
    joins = np.array([unicodedata.category(name[0])[0] == "M" for name in names])
    # The names of these begin and end with symbols.
    special = list(vocabulary.special_ids)
    unknown = [vocabulary.unk_id, *vocabulary.byte_ids]
    for table, of_special, of_unknown in (
        (begins, True, False),
        (closes, True, False),
        (joins, False, True),
    ):
        table[special], table[unknown] = of_special, of_unknown
    return WordPieces(begins, closes, joins)


def word_starts(begins: Any, closes: Any, joins: Any) -> Any:
    """Which tokens begin a word.

    Args:
      begins, closes, joins: of `WordPieces`, looked up for the ids of a text: NumPy
        arrays or tensors, bool [..., length].

    Returns:
      of the same kind, bool [..., length - 1]: of all tokens but the first, which
      always does.
    """
    return begins[..., 1:] | closes[..., :-1] & ~joins[..., 1:]


def _is_separate(character: str) -> bool:
    """Whether a character is no part of the word before it, nor of the one after it."""
    if character == MARK or (kind := unicodedata.category(character)[0]) == "M":
        return False
    return kind in "PSZ" or UNSPACED.match(character) is not None
