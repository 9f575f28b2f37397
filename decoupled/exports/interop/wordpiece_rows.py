"""Rows of BERT's WordPieces -> rows of SentencePiece's pieces.

BERT cuts text into WordPieces, and our pipeline into SentencePiece's pieces. A piece
that is also a WordPiece gets its row. Any other piece gets the mean of the rows of the
WordPieces into which BERT cuts its characters. "▁the" begins a word, as "the" does in
BERT; "ing" continues one, as "##ing" does.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.data.sentencepiece_file import MARK
from decoupled.data.vocabulary import PAD, UNKNOWN, Vocabulary

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Of BERT's tokenization.py, _is_chinese_char and _is_punctuation.
_CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df"
    "\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_SYMBOLS = "$+<=>^`|~"


def _words(text: str, separates_chinese: bool) -> Iterator[tuple[str, bool]]:
    """The words that BERT cuts a text into, and whether one is a single character.

    Punctuation, ASCII's symbols and Chinese characters are separate words.
    """

    def is_alone(character):
        is_punctuation = unicodedata.category(character).startswith("P")
        is_chinese = separates_chinese and _CHINESE.match(character)
        return bool(is_punctuation or character in _SYMBOLS or is_chinese)

    for alone, characters in itertools.groupby(text, is_alone):
        if alone:
            yield from ((character, True) for character in characters)
        else:
            yield "".join(characters), False


def _without_accents(text: str) -> str:
    """As BERT's tokenizer, which lower-cased models have."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


class TextRules(NamedTuple):
    """What BERT's tokenizer does to a text before it cuts words.

    lower: whether it lower-cases. strips_accents: whether it removes accents.
    separates_chinese: whether a Chinese character is a separate word.
    """

    lower: bool
    strips_accents: bool
    separates_chinese: bool = True


def seems_lower(pieces: Iterable[str]) -> bool:
    """The vocabulary of a lower-cased model contains no upper case."""
    return not any(p != p.lower() for p in pieces if not p.startswith("["))


class WordPieceRows:
    """Converts rows of WordPieces (`ids`: WordPiece -> row) to rows of pieces.

    Attributes:
      summary: how many pieces are a WordPiece, consist of several, or are unknown to
        BERT.
    """

    def __init__(
        self, ids: Mapping[str, int], rules: TextRules, vocabulary: Vocabulary
    ):
        self._ids, self._rules = ids, rules
        self._parts = [
            self._parts_of(vocabulary.id_to_piece(index), index, vocabulary)
            for index in range(vocabulary.size)
        ]
        unknown = [self._ids["[UNK]"]]
        self.summary = {
            "one_wordpiece": sum(len(p) == 1 and p != unknown for p in self._parts),
            "several_wordpieces": sum(len(p) > 1 for p in self._parts),
            "unknown_to_bert": sum(p == unknown for p in self._parts),
        }

    def convert(self, rows: np.ndarray) -> np.ndarray:
        """float32 [WordPieces, ...] -> [pieces, ...], means over a piece's parts."""
        converted = np.empty((len(self._parts), *rows.shape[1:]), np.float32)
        for index, parts in enumerate(self._parts):
            converted[index] = (
                rows[parts[0]] if len(parts) == 1 else rows[parts].mean(0)
            )
        return converted

    def _parts_of(self, piece: str, index: int, vocabulary: Vocabulary) -> list[int]:
        if index in (vocabulary.pad_id, vocabulary.unk_id):
            names = PAD if index == vocabulary.pad_id else UNKNOWN
            return [self._ids[names[1]]]
        if piece in SPECIAL:
            return [self._ids[piece]]
        if index in vocabulary.special_ids:
            return [self._ids["[UNK]"]]
        starts = piece.startswith(MARK)
        text = piece.removeprefix(MARK)
        if self._rules.lower:
            text = text.lower()
        if self._rules.strips_accents:
            text = _without_accents(text)
        return self._cut(text, starts) or [self._ids["[UNK]"]]

    def _cut(self, text: str, starts_word: bool) -> Sequence[int]:
        """The WordPieces of a piece; [] if a part has none."""
        parts = []
        for word, alone in _words(text, self._rules.separates_chinese):
            pieces = self._longest_matches(word, starts_word or alone)
            if not pieces:
                return []
            parts += pieces
            # What follows punctuation begins a word.
            starts_word = alone
        return parts

    def _longest_matches(self, word: str, starts_word: bool) -> list[int]:
        parts = []
        while word:
            prefix = "" if starts_word and not parts else "##"
            for end in range(len(word), 0, -1):
                row = self._ids.get(prefix + word[:end])
                # A character that BERT knows at the start of words alone.
                if row is None and end == 1:
                    row = self._ids.get(word[0])
                if row is not None:
                    break
            else:
                return []
            parts.append(row)
            word = word[end:]
        return parts
