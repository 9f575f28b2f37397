"""Which pieces of a text make up a word, for whole-word masking.

Words are separated by spaces, punctuation marks and symbols. Each of these marks and
symbols is a separate word: "don't" is don, ' and t, as in BERT. In scripts without
spaces between words every piece is a word: a unigram vocabulary divides such text into
frequent strings, which are often words. A combining mark and the bytes of an unknown
character never begin a word.

A piece that consists of several words, such as ")." or "▁(the", is not divided.

All WordPieces without "##" begin a word, also [UNK], which stands for a whole word.
"""

import re
import unicodedata
from typing import Any, NamedTuple

import numpy as np

from decoupled.data.sentencepiece_file import MARK
from decoupled.data.vocabulary import WORDPIECE, Vocabulary

# Letters of scripts that put no spaces between words: Thai, Lao, Tibetan, Myanmar,
# Khmer, Tai Le to Tai Tham, kana, bopomofo, Han. The masks of runs that resume depend
# on these ranges, and features of questions on others (`decoupled.tasks.qa_features`).
UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u1aaf"
    "\u3040-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)


class WordTables(NamedTuple):
    """How the pieces of a vocabulary delimit words, bool [pieces] each.

    begins: whether the piece begins a word. closes: whether the next piece begins a
    word, unless it joins. joins: whether the piece belongs to the piece before it.
    """

    begins: np.ndarray
    closes: np.ndarray
    joins: np.ndarray


def word_tables(vocabulary: Vocabulary) -> WordTables:
    """The tables of a vocabulary; a special piece is a separate word."""
    names = [vocabulary.id_to_piece(number) for number in range(vocabulary.size)]
    special_ids = list(vocabulary.special_ids)
    if vocabulary.kind == WORDPIECE:
        begins = np.array([not name.startswith("##") for name in names])
        closes = np.isin(np.arange(vocabulary.size), special_ids)
        return WordTables(begins, closes, np.zeros(vocabulary.size, bool))
    begins = np.array([name[0] == MARK or _is_separate(name[0]) for name in names])
    closes = np.array([_is_separate(name[-1]) for name in names])
    joins = np.array([unicodedata.category(name[0])[0] == "M" for name in names])
    # The names of these pieces begin and end with symbols.
    unknown_ids = [vocabulary.unk_id, *vocabulary.byte_ids]
    for table, special_value, unknown_value in (
        (begins, True, False),
        (closes, True, False),
        (joins, False, True),
    ):
        table[special_ids], table[unknown_ids] = special_value, unknown_value
    return WordTables(begins, closes, joins)


def word_starts(begins: Any, closes: Any, joins: Any) -> Any:
    """Which tokens begin a word, [..., length - 1]; the first always does. The
    arguments are the tables of `WordTables` at a text's ids."""
    return begins[..., 1:] | closes[..., :-1] & ~joins[..., 1:]


def _is_separate(character: str) -> bool:
    if character == MARK or (kind := unicodedata.category(character)[0]) == "M":
        return False
    return kind in "PSZ" or UNSPACED.match(character) is not None
