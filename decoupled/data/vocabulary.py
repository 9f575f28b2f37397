"""The one SentencePiece wrapper: ids, specials, character offsets, in-graph tokenizer.

Reads and writes `sentencepiece.model`. Offsets are an area where the versions of the
library differ (bytes in some, characters in others), so nothing else calls it. It is
pinned; `return_type="offset_mapping"` of 0.2.3 counts characters of the original text,
also where normalisation changes its length (ﬁ, ½, decomposed accents).

The in-graph tokenizer gives the same ids as `Vocabulary.encode`, except on an exact tie
between two segmentations, which the two implementations break differently. Ties occur
where characters repeat ("YYYY" is YYY + Y and Y + YYY; 2 to 5 in 1,000 messages of the
Django catalogs, always among pieces of the same text), and often where a vocabulary was
trained on so little text that many pieces share a score.
"""

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import sentencepiece

from decoupled import files
from decoupled.configs import VocabularyConfig
from decoupled.errors import UserError

FILE_NAME = "sentencepiece.model"
NORMALIZATION = "nmt_nfkc"

_PAD = ("<pad>", "[PAD]")
_UNKNOWN = ("<unk>", "[UNK]")
_CONTROL = ("[CLS]", "[SEP]", "[MASK]")
# The sums of the EM algorithm depend on how many parts the text is cut into, not on the
# number of cores: a fixed number gives the same vocabulary on every machine.
_TRAINING_THREADS = 16
# Longer lines are split: the trainer would skip them without a word.
_MAX_LINE_CHARACTERS = 2000
_MAX_LINE_BYTES = 4 * _MAX_LINE_CHARACTERS
_ERRORS_ONLY = 2
_SURROGATE = re.compile("[\ud800-\udfff]")


class Encoding(NamedTuple):
    """Pieces of a text: text[starts[i]:ends[i]] became ids[i].

    Offsets count characters (code points) of the original text. A piece that begins
    with a space includes it. Where one character becomes several pieces (½, or the
    bytes of an unknown character), all but one of them are empty spans.
    """

    ids: list[int]
    starts: list[int]
    ends: list[int]


class Vocabulary:
    """A SentencePiece model file.

    Attributes:
      path, model_bytes; fingerprint: SHA-256 of the file; size: number of pieces.
      pad_id, unk_id, cls_id, sep_id, mask_id.
      special_ids: pad, [CLS], [SEP], [MASK] and all control pieces (</s>), sorted. They
        are never masked, and text never becomes one of them, not even "[MASK]" itself.

    Raises:
      UserError: the file is missing, no SentencePiece model, or lacks a special piece.
    """

    def __init__(self, path: str):
        self.path = path
        self.model_bytes = files.read_bytes(path)
        self.fingerprint = files.fingerprint(self.model_bytes)
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(self.model_bytes)
        except RuntimeError as error:
            raise UserError(f"{path}: not a SentencePiece model") from error
        self.size = self._processor.GetPieceSize()
        self.pad_id = self._find(_PAD)
        self.unk_id = self._find(_UNKNOWN)
        self.cls_id, self.sep_id, self.mask_id = (
            self._find((piece,)) for piece in _CONTROL
        )
        control = {i for i in range(self.size) if self._processor.IsControl(i)}
        named = {self.pad_id, self.cls_id, self.sep_id, self.mask_id}
        self.special_ids = tuple(sorted(control | named))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special pieces."""
        return self._processor.encode(_valid(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; faster than one by one."""
        return self._processor.encode([_valid(text) for text in texts])

    def encode_with_offsets(self, text: str) -> Encoding:
        """The ids of a text and where in the text they come from."""
        mapping = self._processor.encode(_valid(text), return_type="offset_mapping")
        offsets = mapping["offsets"]
        return Encoding(
            mapping["ids"],
            [start for start, _ in offsets],
            [end for _, end in offsets],
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special pieces disappear.

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

        return tensorflow_text.SentencepieceTokenizer(model=self.model_bytes)

    def _find(self, spellings: Sequence[str]) -> int:
        for piece in spellings:
            piece_id = self._processor.PieceToId(piece)
            # The library answers with the unknown id for a piece that is not there.
            if self._processor.IdToPiece(piece_id) == piece:
                return piece_id
        raise UserError(
            f"{self.path}: has no piece {' or '.join(spellings)}; build the vocabulary "
            "with python -m decoupled.build_vocabulary"
        )


def train_vocabulary(
    sentences: Iterable[str], path: str, config: VocabularyConfig
) -> Vocabulary:
    """Trains a unigram vocabulary and writes it to `path` (atomically).

    Ids: <pad> 0, </s> 1, <unk> 2, then [CLS], [SEP], [MASK] as control pieces. The same
    sentences and settings give the same bytes.

    Raises:
      UserError: there is no text, or vocab_size is more than the text can give or less
        than its characters need; the message states the limit.
    """
    model = io.BytesIO()
    lines = _RaisingIterator(_training_lines(sentences))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type="unigram",
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name=NORMALIZATION,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            pad_piece=_PAD[0],
            unk_piece=_UNKNOWN[0],
            control_symbols=list(_CONTROL),
            num_threads=_TRAINING_THREADS,
            max_sentence_length=_MAX_LINE_BYTES,
            minloglevel=_ERRORS_ONLY,
        )
    except RuntimeError as error:
        if lines.error is not None:
            raise lines.error from None
        raise UserError(f"{path}: {_training_error(str(error), config)}") from error
    with files.atomic_write(path, "wb") as handle:
        handle.write(model.getvalue())
    return Vocabulary(path)


def vocabulary_path(folder: str) -> str:
    """Where `build_vocabulary` and training runs keep the file in their folder."""
    return os.path.join(folder, FILE_NAME)


def _valid(text: str) -> str:
    """Half surrogate pairs, which UTF-8 cannot write, become U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


class _RaisingIterator:
    """Keeps what its source raised, as the trainer passes on only the words of it."""

    def __init__(self, source: Iterator[str]):
        self._source = source
        self.error: Exception | None = None

    def __iter__(self):
        return self

    def __next__(self) -> str:
        try:
            return next(self._source)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


def _training_lines(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences without the characters that the trainer reserves, in short lines."""
    for sentence in sentences:
        line = _valid(sentence).replace("\0", " ")
        words = " ".join(line.split())
        while len(words) > _MAX_LINE_CHARACTERS:
            cut = words.rfind(" ", 1, _MAX_LINE_CHARACTERS)
            cut = cut if cut > 0 else _MAX_LINE_CHARACTERS
            yield words[:cut]
            words = words[cut:].lstrip()
        if words:
            yield words


def _training_error(message: str, config: VocabularyConfig) -> str:
    """The library's error in our words."""
    if "!sentences_.empty()" in message:
        return "no text to train a vocabulary on; the corpus is empty"
    size = f"vocab_size {config.vocab_size}"
    if match := re.search(r"too high \(\d+\)\. .* <= (\d+)", message):
        return (
            f"{size} is more than this text can give: {match[1]} at most; lower "
            "VocabularyConfig.vocab_size or add text"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"{size} is too small: special pieces and characters alone need "
            f"{match[1]}; raise VocabularyConfig.vocab_size or lower character_coverage"
        )
    return f"SentencePiece cannot train a vocabulary ({message.strip()})"
