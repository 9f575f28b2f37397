"""Text to pieces and back: the one interface of all tokenizers, and its kinds.

`open_vocabulary` reads any of them; what it reads is kept as one file:

    kind           file of a run         comes from
    SentencePiece  sentencepiece.model   `vocabulary_training`, RemBERT
    XLM-R          sentencepiece.model   sentencepiece.bpe.model or tokenizer.json
    WordPiece      wordpiece.json        BERT's vocab.txt or tokenizer.json

No other module encodes text. Its offsets count characters of the original text, even if
normalisation changes its length (ﬁ, ½, decomposed accents). Those of SentencePiece
differ between versions of the library (bytes in some), which is therefore pinned.

SentencePiece's tokenizer in the graph sums the scores of pieces in float32 from the
beginning of a text. It gives the ids of `Vocabulary.encode` except on exact ties, which
are frequent if a vocabulary was trained on little text, and in long texts where two
segmentations differ by less than the resolution of the sum (docs/vocabulary.md).
"""

import abc
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

from decoupled.configs import ModelConfig
from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.data.sentencepiece_file import (
    CONTROL,
    MARK,
    PAD,
    SPECIAL,
    USER_DEFINED,
    read_pieces,
    read_settings,
    with_pieces,
    with_types,
)
from decoupled.data.tokenizer_folder import (
    FILES,
    make_wordpieces,
    read_tokenizer,
    read_wordpieces,
)
from decoupled.data.tokenizer_folder import SPECIAL as WORDPIECE_SPECIAL

SENTENCEPIECE, XLM_R, WORDPIECE = "SentencePiece", "XLM-R", "WordPiece"
FILE_NAME = "sentencepiece.model"
WORDPIECE_FILE = "wordpiece.json"

# Special pieces: two around a text, and the mask of predicted pieces.
_SPECIAL = {
    SENTENCEPIECE: SPECIAL,
    XLM_R: ("<s>", "</s>", "<mask>"),
}
_SURROGATE = re.compile("[\ud800-\udfff]")
# Texts, and characters, that are cut into WordPieces at once.
_TEXTS_AT_ONCE, _CHARACTERS_AT_ONCE = 1000, 1_000_000


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


class Pairs(NamedTuple):
    """How two texts are joined: [CLS] A, [SEP] `separators` times, B [SEP].

    second_type: the type of B and its [SEP].
    """

    separators: int
    second_type: int

    @property
    def special(self) -> int:
        return 2 + self.separators

    def fit(self, model: ModelConfig) -> bool:
        """Whether the model has enough type embeddings."""
        return self.second_type < model.type_vocab_size


class Vocabulary(abc.ABC):
    """Pieces by id, and how text becomes pieces; see `open_vocabulary`.

    Special pieces have the names of BERT here; XLM-R calls [CLS] <s> and [SEP] </s>.

    path: where it was read. file_name, content: of the file in a run's folder.
    fingerprint: SHA-256 of the content.
    special_ids: pad, [CLS], [SEP], [MASK] and all control pieces (</s>), sorted. They
      are never masked, and no text is encoded as one of them, not even "[MASK]".
    byte_ids: pieces of single bytes, sorted; empty without byte fallback. Text can be
      encoded as them, so they are masked and predicted like other pieces.
    blank_id: of the piece that is a space alone; None without one.
    lower: whether text is lower-cased.
    """

    kind: str
    file_name: str
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    byte_ids: tuple[int, ...] = ()
    blank_id: int | None = None
    pairs = Pairs(1, 1)
    lower = False

    def __init__(self, path: str, content: bytes):
        self.path, self.content = path, content
        self.fingerprint = files.fingerprint(content)

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of pieces."""

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special pieces; faster than one by one."""

    @abc.abstractmethod
    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[Encoding]:
        """The ids of each text and where in the text they come from."""

    @abc.abstractmethod
    def encode_masked(self, text: str) -> list[int]:
        """The ids of a text in which every `mask_text` becomes the special piece."""

    @abc.abstractmethod
    def id_to_piece(self, piece_id: int) -> str:
        """The piece of an id, e.g. "▁the" of SentencePiece, "the" of WordPiece."""

    @abc.abstractmethod
    def piece_to_id(self, piece: str) -> int:
        """The id of a piece; `unk_id` where there is no such piece."""

    @abc.abstractmethod
    def trimmed(self, ids: Sequence[int]) -> "Vocabulary":
        """The vocabulary with only the pieces of these increasing ids."""

    @abc.abstractmethod
    def tokenizer(self) -> Any:
        """The tokenizer in a graph; its `tokenize`: strings -> ragged int32 ids."""

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    @property
    def mask_text(self) -> str:
        """What stands for a mask in a text with masks: "[MASK]" or "<mask>"."""
        return self.id_to_piece(self.mask_id)

    def _around_masks(self, text: str) -> list[int]:
        """The ids of the parts between masks, each encoded by itself."""
        ids = []
        for part in self.encode_batch(text.split(self.mask_text)):
            ids += [*part, self.mask_id]
        return ids[:-1]


class SentencePiece(Vocabulary):
    """A SentencePiece model file.

    Some vocabularies have [CLS], [SEP] and [MASK] as ordinary or user-defined pieces,
    which text becomes. Here they always are control pieces, which it never becomes.
    """

    file_name = FILE_NAME

    def __init__(self, path: str, content: bytes):
        super().__init__(path, content)
        self._serialized = content
        self._processor = self._open({})
        self.settings = read_settings(content, path)
        self._check_pieces()
        self.unk_id = self._processor.unk_id()
        is_xlm_r = not self._has("[CLS]") and all(map(self._has, _SPECIAL[XLM_R]))
        self.kind = XLM_R if is_xlm_r else SENTENCEPIECE
        if is_xlm_r:
            self.pairs = Pairs(2, 0)
        self.pad_id = self._find(PAD)
        self.cls_id, self.sep_id, self.mask_id = (
            self._find((piece,)) for piece in _SPECIAL[self.kind]
        )
        named_ids = {self.pad_id, self.cls_id, self.sep_id, self.mask_id}
        if not all(map(self._processor.IsControl, named_ids)):
            control_types = dict.fromkeys(named_ids, CONTROL)
            self._serialized = with_types(content, control_types)
            self._processor = self._open({})
        control_ids = filter(self._processor.IsControl, range(self.size))
        self.special_ids = tuple(sorted(control_ids))
        self.byte_ids = tuple(filter(self._processor.IsByte, range(self.size)))
        self.blank_id = self.piece_to_id(MARK) if self._has(MARK) else None

    @property
    def size(self) -> int:
        return self._processor.GetPieceSize()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode([valid_text(text) for text in texts])

    def encode_masked(self, text: str) -> list[int]:
        if self.kind == XLM_R:
            return self._around_masks(text)
        return self._masking_processor.encode(valid_text(text))

    def encode_unspaced(self, text: str) -> list[int]:
        """The ids of a text that begins with a space only if it says so."""
        text = self.mask_text + valid_text(text)
        ids = self._masking_processor.encode(text)
        return ids[ids.index(self.mask_id) + 1 :]

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[Encoding]:
        for text in texts:
            mapping = self._processor.encode(
                valid_text(text), return_type="offset_mapping"
            )
            offsets = mapping["offsets"]
            yield Encoding(
                mapping["ids"],
                [start for start, _ in offsets],
                [end for _, end in offsets],
            )

    def id_to_piece(self, piece_id: int) -> str:
        return self._processor.IdToPiece(int(piece_id))

    def piece_to_id(self, piece: str) -> int:
        return self._processor.PieceToId(piece)

    def trimmed(self, ids: Sequence[int]) -> "SentencePiece":
        return SentencePiece(self.path, with_pieces(self.content, set(ids)))

    def scores(self) -> list[float]:
        """The log probability of each piece, by id (0 for special pieces)."""
        return [self._processor.GetScore(i) for i in range(self.size)]

    def tokenizer(self) -> Any:
        from decoupled.core.release import import_tensorflow_text

        text = import_tensorflow_text()
        return text.SentencepieceTokenizer(model=self._serialized)

    @functools.cached_property
    def user_defined_ids(self) -> tuple[int, ...]:
        """Pieces that text becomes wherever it has their characters, sorted."""
        pieces = enumerate(read_pieces(self._serialized, self.path))
        return tuple(i for i, piece in pieces if piece.type == USER_DEFINED)

    @functools.cached_property
    def _masking_processor(self) -> sentencepiece.SentencePieceProcessor:
        return self._open({self.mask_id: USER_DEFINED})

    def _open(self, types: Mapping[int, int]) -> sentencepiece.SentencePieceProcessor:
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(
                with_types(self._serialized, types) if types else self._serialized
            )
        except RuntimeError as error:
            raise UserError(
                f"{self.path}: not a SentencePiece model, and no vocab.txt by its name"
            ) from error
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

    def _has(self, piece: str) -> bool:
        # The library returns the unknown id for a missing piece.
        return self._processor.IdToPiece(self._processor.PieceToId(piece)) == piece

    def _find(self, spellings: Sequence[str]) -> int:
        for piece in spellings:
            if self._has(piece):
                return self._processor.PieceToId(piece)
        raise UserError(
            f"{self.path}: has no piece {' or '.join(spellings)}; build the vocabulary "
            "with decoupled build_vocabulary"
        )


class WordPiece(Vocabulary):
    """The WordPieces of a BERT, and what happens to text before it is cut into them.

    pieces: by id; "" where an id has no piece.
    """

    kind = WORDPIECE
    file_name = WORDPIECE_FILE

    def __init__(self, path: str, content: bytes):
        super().__init__(path, content)
        self.pieces, self.rules = read_wordpieces(content, path)
        self.lower = self.rules.lower
        self._ids = {piece: row for row, piece in enumerate(self.pieces) if piece}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self._ids[piece] for piece in WORDPIECE_SPECIAL
        )
        named_ids = {self.pad_id, self.cls_id, self.sep_id, self.mask_id}
        self.special_ids = tuple(sorted(named_ids))

    @property
    def size(self) -> int:
        return len(self.pieces)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.encode_with_offsets(texts)]

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[Encoding]:
        from decoupled.core.release import tf

        for batch in _batches(texts):
            ragged = self._cut(tf.constant([valid_text(text) for text in batch]))
            flat = [values.flat_values.numpy().tolist() for values in ragged]
            splits = ragged[0].row_splits.numpy().tolist()
            for begin, end in zip(splits, splits[1:], strict=False):
                yield Encoding(*(values[begin:end] for values in flat))

    def encode_masked(self, text: str) -> list[int]:
        return self._around_masks(text)

    def id_to_piece(self, piece_id: int) -> str:
        return self.pieces[piece_id]

    def piece_to_id(self, piece: str) -> int:
        return self._ids.get(piece, self.unk_id)

    def trimmed(self, ids: Sequence[int]) -> "WordPiece":
        pieces = [self.pieces[index] for index in ids]
        return WordPiece(self.path, make_wordpieces(pieces, self.rules))

    def tokenizer(self) -> Any:
        # Imported here: TensorFlow takes seconds, which other kinds can do without.
        from decoupled.data.wordpiece import WordPieceTokenizer

        try:
            # No word has a space, so that no text becomes a piece of that name.
            pieces = [piece or f" {row}" for row, piece in enumerate(self.pieces)]
            return WordPieceTokenizer(pieces, pieces[self.unk_id], self.rules)
        except RuntimeError as error:
            raise UserError(f"{self.path}: {files.reason(error)}") from error

    def vanishes(self, text: str) -> np.ndarray:
        """Which characters become nothing, so that no piece has them."""
        from decoupled.data.wordpiece import vanishes

        return vanishes(valid_text(text), self.rules)

    @functools.cached_property
    def _cut(self) -> Any:
        from decoupled.core.release import tf

        signature = [tf.TensorSpec([None], tf.string)]
        return tf.function(
            self.tokenizer().pieces, input_signature=signature, autograph=False
        )


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Parts of the texts that fit in memory when they are cut at once."""
    begin = characters = 0
    for place, text in enumerate(texts):
        characters += len(text)
        if place > begin and (
            place - begin == _TEXTS_AT_ONCE or characters > _CHARACTERS_AT_ONCE
        ):
            yield texts[begin:place]
            begin, characters = place, len(text)
    if begin < len(texts):
        yield texts[begin:]


def open_vocabulary(
    path: str, notes: list[str] | None = None, model: str | None = None
) -> Vocabulary:
    """Reads a vocabulary of any kind.

    Args:
      path: a sentencepiece.model or a wordpiece.json, or a folder with one; or a folder
        of transformers, or the vocab.txt, tokenizer.json or sentencepiece.bpe.model in
        one, whose other files then say what happens to text.
      notes: gets what the user should know.
      model: a sentencepiece.model, for a folder that has only its tokenizer.json.
    """
    notes = [] if notes is None else notes
    folder, name = os.path.split(path)
    if gfile.isdir(path) and files.exists(os.path.join(path, WORDPIECE_FILE)):
        for file_name in (*FILES, FILE_NAME):
            if files.exists(os.path.join(path, file_name)):
                raise UserError(
                    f"{path}: has the vocabulary of two tokenizers, {WORDPIECE_FILE} "
                    f"and {file_name}; remove the file that is not the model's"
                )
        return open_vocabulary(os.path.join(path, WORDPIECE_FILE))
    if gfile.isdir(path):
        path, content = read_tokenizer(path, notes, model)
    elif name in FILES:
        path, content = read_tokenizer(folder or ".", notes)
    else:
        content = files.read_bytes(path)
    kind = WordPiece if content[:1] == b"{" else SentencePiece
    return kind(path, content)


def vocabulary_path(folder: str) -> str:
    """The vocabulary's file in the folder of a run, or of `build_vocabulary`."""
    path = os.path.join(folder, WORDPIECE_FILE)
    return path if files.exists(path) else os.path.join(folder, FILE_NAME)
