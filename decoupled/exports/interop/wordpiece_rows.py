"""Rows of BERT's embeddings for the pieces of a SentencePiece vocabulary.

BERT cuts text into WordPieces (vocab.txt), our pipeline into SentencePiece's. A piece
gets the mean of the rows of the WordPieces that BERT would cut its characters into; for
a piece that is a WordPiece that is the row itself. "▁the" begins a word, as "the" does
there; "ing" goes on with one, as "##ing".
"""

from collections.abc import Sequence

import numpy as np

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import PAD, UNKNOWN, Vocabulary

WORDPIECE = "vocab.txt"

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORD_START = "▁"


class WordPieceRows:
    """How rows by WordPiece become rows by piece.

    Attributes:
      summary: how many pieces are a WordPiece, are made of several, or unknown to BERT.

    Raises:
      UserError: vocab.txt lacks a special piece, or has another size than the model.
    """

    def __init__(self, path: str, vocab_size: int, vocabulary: Vocabulary):
        lines = files.read_text(path).splitlines()
        if len(lines) != vocab_size:
            raise UserError(
                f"{path}: {len(lines)} pieces, but the model has {vocab_size} rows"
            )
        self._ids = {piece: index for index, piece in enumerate(lines)}
        for piece in _SPECIAL:
            if piece not in self._ids:
                raise UserError(f"{path}: has no piece {piece}")
        # vocab.txt of a lower-cased model holds no upper case.
        self._lower = not any(
            piece != piece.lower() for piece in lines if not piece.startswith("[")
        )
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
        if piece in _SPECIAL:
            return [self._ids[piece]]
        if index in vocabulary.special_ids:
            return [self._ids["[UNK]"]]
        starts = piece.startswith(_WORD_START)
        text = piece.removeprefix(_WORD_START)
        text = text.lower() if self._lower else text
        return self._cut(text, starts) or [self._ids["[UNK]"]]

    def _cut(self, text: str, starts_word: bool) -> Sequence[int]:
        """Longest match first, as BERT does; [] where a part has no WordPiece."""
        parts = []
        while text:
            prefix = "" if starts_word and not parts else "##"
            for end in range(len(text), 0, -1):
                found = self._ids.get(prefix + text[:end])
                # Punctuation stands by itself there, without ##.
                if found is None and end == 1:
                    found = self._ids.get(text[0])
                if found is not None:
                    break
            else:
                return []
            parts.append(found)
            text = text[end:]
        return parts
