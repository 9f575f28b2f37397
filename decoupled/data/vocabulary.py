"""The one SentencePiece wrapper: ids, specials, character offsets, in-graph tokenizer.

Reads `sentencepiece.model`, which `vocabulary_training` writes. The offsets differ
between versions of the library (bytes in some, characters in others). Therefore its
version is pinned, and no other module encodes text with it. The offsets of
`return_type="offset_mapping"` in 0.2.3 count characters of the original text, even if
normalisation changes its length (ﬁ, ½, decomposed accents).

The in-graph tokenizer gives the same ids as `Vocabulary.encode`, except where float32
cannot distinguish two segmentations. It sums the scores of pieces from the beginning of
a text in float32. If two segmentations of a word differ by less than the resolution of
the sum, it may choose the worse one. The resolution is 0.0001 after some 150 pieces,
0.0005 after 600 and 0.001 after 1,200. Python's sums are more exact. On an exact tie
the two implementations decide differently at any length. Exact ties occur where
characters repeat ("YYYY" is YYY + Y and Y + YYY; 2 to 5 in 1,000 messages of the Django
catalogs, always among pieces of the same text). They are frequent if the vocabulary was
trained on so little text that many pieces have the same score.
"""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sentencepiece

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.sentencepiece_file import (
    CONTROL,
    USER_DEFINED,
    piece_types,
    read_settings,
    with_types,
)

FILE_NAME = "sentencepiece.model"

# Special pieces, each in our spelling and in that of released vocabularies.
PAD = ("<pad>", "[PAD]")
UNKNOWN = ("<unk>", "[UNK]")
SPECIAL = ("[CLS]", "[SEP]", "[MASK]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def valid_text(text: str) -> str:
    """Replaces halves of surrogate pairs, which UTF-8 cannot encode, by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


class Encoding(NamedTuple):
    """Pieces of a text: text[starts[i]:ends[i]] became ids[i].

    Offsets count characters (code points) of the original text. A piece that begins
    with a space includes it. If one character becomes several pieces (½, or the bytes
    of an unknown character), all but one of them have empty spans.
    """

    ids: list[int]
    starts: list[int]
    ends: list[int]


class Vocabulary:
    """A SentencePiece model file.

    Some vocabularies have [CLS], [SEP] and [MASK] as ordinary or user-defined pieces,
    which text becomes. Here they always are control pieces, which it never becomes.

    Attributes:
      path, model_bytes; fingerprint: SHA-256 of the file; size: number of pieces.
      settings: how text becomes pieces.
      pad_id, unk_id, cls_id, sep_id, mask_id.
      special_ids: pad, [CLS], [SEP], [MASK] and all control pieces (</s>), sorted. They
        are never masked, and no text is encoded as one of them, not even "[MASK]".
      byte_ids: pieces of single bytes, sorted; empty without byte fallback. Text can be
        encoded as them, so they are masked and predicted like other pieces.

    Raises:
      UserError: the file is missing, no SentencePiece model, or lacks a special piece;
        a piece is not UTF-8; or it has settings that this package does not support.
    """

    def __init__(self, path: str):
        self.path = path
        self.model_bytes = files.read_bytes(path)
        self.fingerprint = files.fingerprint(self.model_bytes)
        self._serialized = self.model_bytes
        self._processor = self._open({})
        self.settings = read_settings(self.model_bytes, path)
        self.size = self._processor.GetPieceSize()
        self._check_pieces()
        self.pad_id = self._find(PAD)
        self.unk_id = self._processor.unk_id()
        self.cls_id, self.sep_id, self.mask_id = (
            self._find((piece,)) for piece in SPECIAL
        )
        named = {self.pad_id, self.cls_id, self.sep_id, self.mask_id}
        if not all(map(self._processor.IsControl, named)):
            control_types = dict.fromkeys(named, CONTROL)
            self._serialized = with_types(self.model_bytes, control_types)
            self._processor = self._open({})
        control = filter(self._processor.IsControl, range(self.size))
        self.special_ids = tuple(sorted(control))
        self.byte_ids = tuple(filter(self._processor.IsByte, range(self.size)))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special pieces."""
        return self._processor.encode(valid_text(text))

    def encode_masked(self, text: str) -> list[int]:
        """The ids of a text in which every [MASK] becomes the special piece."""
        return self._masking_processor.encode(valid_text(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; faster than one by one."""
        return self._processor.encode([valid_text(text) for text in texts])

    def encode_with_offsets(self, text: str) -> Encoding:
        """The ids of a text and where in the text they come from."""
        mapping = self._processor.encode(valid_text(text), return_type="offset_mapping")
        offsets = mapping["offsets"]
        return Encoding(
            mapping["ids"],
            [start for start, _ in offsets],
            [end for _, end in offsets],
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special pieces.

        Raises:
          ValueError: an id is outside the vocabulary.
        """
        ids = [int(i) for i in ids]
        outside = [i for i in ids if not 0 <= i < self.size]
        if outside:
            raise ValueError(f"{self.path}: id {outside[0]} is not below {self.size}")
        specials = set(self.special_ids)
        return self._processor.decode([i for i in ids if i not in specials])

    def id_to_piece(self, piece_id: int) -> str:
        """The piece of an id, e.g. "▁the"."""
        return self._processor.IdToPiece(int(piece_id))

    def piece_to_id(self, piece: str) -> int:
        """The id of a piece; `unk_id` where there is no such piece."""
        return self._processor.PieceToId(piece)

    def scores(self) -> list[float]:
        """The log probability of each piece, by id (0 for special pieces)."""
        return [self._processor.GetScore(i) for i in range(self.size)]

    def tokenizer(self):
        """A `tensorflow_text.SentencepieceTokenizer`: strings -> ragged int32 ids."""
        # Imported here: it takes a second, and only exports need it.
        import tensorflow_text

        return tensorflow_text.SentencepieceTokenizer(model=self._serialized)

    @functools.cached_property
    def user_defined_ids(self) -> tuple[int, ...]:
        """Pieces that text becomes wherever it has their characters, sorted."""
        types = enumerate(piece_types(self._serialized))
        return tuple(index for index, kind in types if kind == USER_DEFINED)

    @functools.cached_property
    def _masking_processor(self) -> sentencepiece.SentencePieceProcessor:
        return self._open({self.mask_id: USER_DEFINED})

    def _open(self, types: Mapping[int, int]) -> sentencepiece.SentencePieceProcessor:
        """The model, in which the pieces of these ids have other types."""
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(
                with_types(self._serialized, types) if types else self._serialized
            )
        except RuntimeError as error:
            raise UserError(f"{self.path}: not a SentencePiece model") from error
        return processor

    def _check_pieces(self) -> None:
        for index in range(self.size):
            try:
                self._processor.IdToPiece(index)
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{self.path}: piece {index} is not UTF-8; build the vocabulary "
                    "again, from text that is"
                ) from error

    def _find(self, spellings: Sequence[str]) -> int:
        for piece in spellings:
            piece_id = self._processor.PieceToId(piece)
            # The library returns the unknown id for a missing piece.
            if self._processor.IdToPiece(piece_id) == piece:
                return piece_id
        raise UserError(
            f"{self.path}: has no piece {' or '.join(spellings)}; build the vocabulary "
            "with decoupled build_vocabulary"
        )


def vocabulary_path(folder: str) -> str:
    """Where `build_vocabulary` and training runs keep the file in their folder."""
    return os.path.join(folder, FILE_NAME)
