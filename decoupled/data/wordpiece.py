"""BERT's WordPieces, the same for arrays of texts and in the graph of a SavedModel.

BERT's normaliser and pre-tokenizer look at one character at a time. A table says what
each code point becomes: white space, a part of a word, or a word of its own. The words
are then cut by `FastWordpieceTokenizer`. Ids and offsets are those of transformers. The
ready-made tokenizers of tensorflow_text have other ids: other characters are white
space or punctuation for them, and lower-casing goes further.

`tests/interop/bert_characters.py` made `bert_characters.npz` with the library
tokenizers. A code stands for what a character becomes: 0 itself, 1 itself as a separate
word, 2 nothing, 3 white space; any other code is in the last three arrays.

    index: uint16 [8, pages of all code points], by setting: lower, strip, chinese
    pages: uint16 [distinct pages, 128], codes
    lengths: uint8 [codes], number of characters that replace one
    points, kinds: uint32, uint8 [sum of lengths], these characters and their kinds

Several combining marks after one letter are not sorted, as decomposition would do. No
real text was found where that changes ids.
"""

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import files
from decoupled.core.release import import_tensorflow_text, tf
from decoupled.data.tokenizer_folder import TextRules

_TABLE = os.path.join(os.path.dirname(__file__), "bert_characters.npz")
_PAGE = 128
_SPACE, _INSIDE, _ALONE = 0, 1, 2
# Codes below it stand for themselves, nothing and white space.
_FIRST_CODE = 4
# A word that no vocabulary contains, as text never does.
_UNKNOWN_WORD = "\U0010ffff"
# TensorFlow 2.15 writes noncharacters as U+FFFD, of which a vocabulary may have pieces.
# Like them, this one is in no vocabulary: BERT drops it from all text.
_NONCHARACTER = 0xE000
# No limit in bytes, because words are measured in characters before they are cut.
_NO_LIMIT = 1 << 20


class Characters(NamedTuple):
    """The table for one setting; `codes` of a page, `starts` of a code's characters."""

    page_of: np.ndarray
    codes: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray
    points: np.ndarray
    kinds: np.ndarray


@functools.cache
def characters(lower: bool, strip_accents: bool, chinese: bool) -> Characters:
    """The part of the table that belongs to a setting."""
    table = files.read_arrays(_TABLE)
    index = table["index"][4 * lower + 2 * strip_accents + chinese]
    page_numbers, page_of = np.unique(index, return_inverse=True)
    lengths = table["lengths"].astype(np.int32)
    arrays = (
        page_of.reshape(-1), table["pages"][page_numbers].reshape(-1), lengths,
        np.cumsum(lengths) - lengths, table["points"], table["kinds"],
    )  # fmt: skip
    return Characters(*(array.astype(np.int32) for array in arrays))


def vanishes(text: str, rules: TextRules) -> np.ndarray:
    """Which characters of a text become nothing."""
    return _codes(text, characters(*rules[:3])) == 2


def stands_alone(character: str, rules: TextRules) -> bool:
    """Whether a character becomes a word of its own, as punctuation does."""
    table = characters(*rules[:3])
    [code] = _codes(character, table)
    return code == 1 or (
        code >= _FIRST_CODE and table.kinds[table.starts[code]] == _ALONE
    )


def _codes(text, table):
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return table.codes[table.page_of[points // _PAGE] * _PAGE + points % _PAGE]


class WordPieceTokenizer(tf.Module):
    """Strings -> ragged int32 ids, as the tokenizers of tensorflow_text.

    `pieces` are distinct, by id, and contain `unknown`.
    """

    def __init__(self, pieces: Sequence[str], unknown: str, rules: TextRules):
        super().__init__()
        table = characters(*rules[:3])
        self._page_of, self._codes, self._lengths, self._starts, self._points, kinds = (
            tf.constant(array) for array in table
        )
        self._kinds = kinds
        self._longest_word = rules.longest_word
        self._cut = import_tensorflow_text().FastWordpieceTokenizer(
            list(pieces),
            max_bytes_per_word=_NO_LIMIT,
            token_out_type=tf.int32,
            unknown_token=unknown,
            no_pretokenization=True,
        )

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.pieces(texts)[0]

    def pieces(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Ids, and where their characters begin and end."""
        code_points = tf.strings.unicode_decode(texts, "UTF-8")
        place = tf.ragged.range(code_points.row_lengths()).flat_values
        points, row, source, begins = self._words(code_points)
        word_at = tf.cast(tf.where(begins)[:, 0], tf.int32)
        splits = tf.concat([word_at, [tf.size(points)]], 0)
        words = tf.strings.unicode_encode(
            tf.RaggedTensor.from_row_splits(
                points, tf.cast(splits, tf.int64), validate=False
            ),
            "UTF-8",
        )
        is_long = splits[1:] - splits[:-1] > self._longest_word
        ids, piece_starts, piece_ends = self._cut.tokenize_with_offsets(
            tf.where(is_long, _UNKNOWN_WORD, words)
        )
        word = tf.cast(ids.value_rowids(), tf.int32)
        lengths = tf.strings.length(words)
        ends = tf.cast(piece_ends.flat_values, tf.int32)
        ends = tf.where(tf.gather(is_long, word), tf.gather(lengths, word), ends)
        # From bytes of a word to characters of all words, and of the texts.
        character = tf.repeat(tf.range(tf.size(points)), _byte_lengths(points))
        base = tf.gather(tf.cumsum(lengths, exclusive=True), word)
        begin = base + tf.cast(piece_starts.flat_values, tf.int32)
        left = tf.gather(source, tf.gather(character, begin))
        right = tf.gather(source, tf.gather(character, base + ends - 1))
        rows = tf.cast(tf.gather(row, tf.gather(word_at, word)), tf.int64)
        return tuple(
            tf.RaggedTensor.from_value_rowids(
                values, rows, tf.shape(texts, tf.int64)[0], validate=False
            )
            for values in (
                ids.flat_values,
                tf.gather(place, left),
                tf.gather(place, right) + 1,
            )
        )

    def _words(self, code_points):
        """The characters of all words, int32 [characters] each: code points, rows,
        the characters that they come from; and whether one begins a word."""
        flat = code_points.flat_values
        rows = tf.cast(code_points.value_rowids(), tf.int32)
        page = tf.gather(self._page_of, flat // _PAGE)
        code = tf.gather(self._codes, page * _PAGE + flat % _PAGE)
        is_other = code >= _FIRST_CODE
        count = tf.where(
            is_other, tf.gather(self._lengths, code), tf.cast(code != 2, tf.int32)
        )
        source = tf.repeat(tf.range(tf.size(flat)), count)
        begin = tf.repeat(tf.cumsum(count, exclusive=True), count)
        code, point, row = (tf.gather(x, source) for x in (code, flat, rows))
        is_other = code >= _FIRST_CODE
        place = tf.gather(self._starts, code) + tf.range(tf.size(source)) - begin
        place = tf.where(is_other, place, 0)
        own_kinds = tf.constant([_INSIDE, _ALONE, _SPACE, _SPACE])
        kind = tf.where(
            is_other,
            tf.gather(self._kinds, place),
            tf.gather(own_kinds, tf.minimum(code, _FIRST_CODE - 1)),
        )
        point = tf.where(is_other, tf.gather(self._points, place), point)
        in_block = (point >= 0xFDD0) & (point <= 0xFDEF)
        is_noncharacter = in_block | (tf.bitwise.bitwise_and(point, 0xFFFE) == 0xFFFE)
        point = tf.where(is_noncharacter, _NONCHARACTER, point)
        previous_kind = tf.concat([[_SPACE], kind[:-1]], 0)
        begins = (kind == _ALONE) | (previous_kind != _INSIDE)
        begins |= row != tf.concat([[-1], row[:-1]], 0)
        is_kept = kind != _SPACE
        return tuple(tf.boolean_mask(x, is_kept) for x in (point, row, source, begins))


def _byte_lengths(points: tf.Tensor) -> tf.Tensor:
    """The bytes of each character in UTF-8."""
    limits = (0x7F, 0x7FF, 0xFFFF)
    return 1 + tf.add_n([tf.cast(points > limit, tf.int32) for limit in limits])
