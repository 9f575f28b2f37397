"""What a sentencepiece.model says beside its pieces, and changes to it.

SentencePiece's Python interface gives pieces and scores, but neither the settings nor
all types of pieces, and its generated protobuf module needs another version of protobuf
than TensorFlow. The file is a protobuf message (sentencepiece_model.proto), of which
this module reads a few fields. It begins with protobuf's wire format.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from decoupled.core.errors import UserError

# Stands for a space, and begins every word: other vocabularies are refused.
MARK = "▁"
UNIGRAM = 1
# Types of pieces. Text never becomes a control piece, and always a user-defined one.
NORMAL, UNKNOWN_TYPE, CONTROL, USER_DEFINED = 1, 2, 3, 4
# The score of user-defined pieces in SentencePiece's unigram_model.cc, if all other
# scores are negative; the file has 0.
USER_DEFINED_SCORE = -0.1
# Special pieces, each in our spelling and in that of released vocabularies.
PAD = ("<pad>", "[PAD]")
UNKNOWN = ("<unk>", "[UNK]")
SPECIAL = ("[CLS]", "[SEP]", "[MASK]")

# Protobuf field numbers in ModelProto, SentencePiece, TrainerSpec and NormalizerSpec.
_PIECES, _TRAINER_SPEC, _NORMALIZER_SPEC, _SELF_TEST = 1, 2, 3, 4
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _WHITESPACE_AS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35
_CHARSMAP, _DUMMY_PREFIX, _REMOVE_WHITESPACE, _ESCAPE_WHITESPACE = 2, 3, 4, 5
_VOCAB_SIZE, _UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 4, 40, 41, 42, 43
# Wire type -> its size, if all its values have one size.
_FIXED_SIZES = {1: 8, 5: 4}
# Bits of an integer in its longest form, which has 10 bytes.
_MAX_BITS = 70


def _varint(value: int) -> bytes:
    """An integer: 7 bits a byte, the lowest first."""
    head = b""
    while value >= 0x80:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yields field number, value and serialized field of a message, if it is one.

    Values of the fixed-size wire types, such as scores, are bytes.
    """
    place = 0
    while place < len(message):
        begin = place
        key, place = _read_varint(message, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, place = _read_varint(message, place)
        else:
            if wire_type == 2:
                size, place = _read_varint(message, place)
            elif wire_type in _FIXED_SIZES:
                size = _FIXED_SIZES[wire_type]
            else:
                raise ValueError(f"wire type {wire_type}")
            value, place = message[place : place + size], place + size
        yield number, value, message[begin:place]


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if shift >= _MAX_BITS:
            raise ValueError("an integer of more than 64 bits")
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


class Piece(NamedTuple):
    """A piece, its log probability, and one of the types above."""

    text: str
    score: float
    type: int


class Settings(NamedTuple):
    """How text becomes pieces, besides the pieces themselves.

    charsmap: the compiled table of character replacements.
    remove_whitespace: whether spaces at both ends are removed, and repeated ones
      become one.
    byte_fallback: whether unknown characters become their bytes.
    """

    model_type: int
    charsmap: bytes
    remove_whitespace: bool
    byte_fallback: bool


def read_settings(model: bytes, path: str) -> Settings:
    """Reads the settings of a serialized model."""
    try:
        parts = {number: value for number, value, _ in _fields(model) if number != 1}
        trainer = _values(parts.get(_TRAINER_SPEC, b""))
        normalizer = _values(parts.get(_NORMALIZER_SPEC, b""))
    except (ValueError, IndexError, TypeError) as error:
        raise UserError(f"{path}: not a SentencePiece model") from error
    # Settings are after the pieces; without them the library takes its defaults.
    if not {_TRAINER_SPEC, _NORMALIZER_SPEC} <= parts.keys():
        raise UserError(
            f"{path}: ends before its settings; it was cut off, get it anew"
        )
    for is_refused, reason in (
        (trainer.get(_WHITESPACE_AS_SUFFIX, 0), "treat_whitespace_as_suffix is true"),
        (not normalizer.get(_DUMMY_PREFIX, 1), "add_dummy_prefix is false"),
        (not normalizer.get(_ESCAPE_WHITESPACE, 1), "escape_whitespaces is false"),
    ):
        if is_refused:
            raise UserError(
                f"{path}: {reason}, but a word must begin with {MARK}, also at the "
                "beginning of a text; train the vocabulary with SentencePiece's default"
            )
    return Settings(
        model_type=trainer.get(_MODEL_TYPE, UNIGRAM),
        charsmap=normalizer.get(_CHARSMAP, b""),
        remove_whitespace=bool(normalizer.get(_REMOVE_WHITESPACE, 1)),
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
    )


def read_pieces(model: bytes, path: str) -> list[Piece]:
    """The pieces by id; bytes that are no text are replaced."""
    pieces = []
    try:
        for number, value, _ in _fields(model):
            if number == _PIECES:
                piece = _values(value)
                (score,) = struct.unpack("<f", piece.get(_SCORE, bytes(4)))
                text = piece.get(_TEXT, b"").decode("utf-8", "replace")
                pieces.append(Piece(text, score, piece.get(_TYPE, NORMAL)))
    except (ValueError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise UserError(f"{path}: not a SentencePiece model") from error
    return pieces


def make_model(
    pieces: Sequence[Piece], charsmap: bytes, unknown: int, pad: int | None
) -> bytes:
    """A serialized unigram model with the trainer's defaults."""
    parts = []
    for piece in pieces:
        score = _key(_SCORE, 5) + struct.pack("<f", piece.score)
        text = _bytes(_TEXT, piece.text.encode("utf-8"))
        parts.append(_bytes(_PIECES, text + score + _number(_TYPE, piece.type)))
    # -1, in two's complement: texts get no special pieces of these kinds.
    no_id = (1 << 64) - 1
    trainer = {
        _MODEL_TYPE: UNIGRAM, _VOCAB_SIZE: len(pieces), _UNK_ID: unknown,
        _BOS_ID: no_id, _EOS_ID: no_id, _PAD_ID: no_id if pad is None else pad,
    }  # fmt: skip
    spec = b"".join(_number(number, value) for number, value in trainer.items())
    spaces = (_DUMMY_PREFIX, _REMOVE_WHITESPACE, _ESCAPE_WHITESPACE)
    normalizer = _bytes(_CHARSMAP, charsmap)
    normalizer += b"".join(_number(number, 1) for number in spaces)
    parts += [_bytes(_TRAINER_SPEC, spec), _bytes(_NORMALIZER_SPEC, normalizer)]
    return b"".join(parts)


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value)


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, 2) + _varint(len(value)) + value


def with_types(model: bytes, types: Mapping[int, int]) -> bytes:
    """The model in which the pieces of these ids have other types."""
    parts, index = [], 0
    for number, value, field in _fields(model):
        if number == _PIECES:
            if index in types:
                # Of two values of a field, the last one counts.
                field = _bytes(_PIECES, value + _number(_TYPE, types[index]))
            index += 1
        parts.append(field)
    return b"".join(parts)


def with_pieces(model: bytes, ids: set[int]) -> bytes:
    """The model with only the pieces of these ids, in their order.

    The self-test that the library stores in the model is removed, as its texts may need
    other pieces.
    """
    parts, index = [], 0
    for number, value, field in _fields(model):
        if number == _PIECES:
            index += 1
            if index - 1 not in ids:
                continue
        if number == _TRAINER_SPEC:
            size = _number(_VOCAB_SIZE, len(ids))
            settings = (size if n == _VOCAB_SIZE else f for n, _, f in _fields(value))
            field = _bytes(_TRAINER_SPEC, b"".join(settings))
        if number != _SELF_TEST:
            parts.append(field)
    return b"".join(parts)


def _values(message: bytes) -> dict[int, int | bytes]:
    return {number: value for number, value, _ in _fields(message)}
