"""What a sentencepiece.model says beside its pieces, and changes to it.

SentencePiece's Python interface gives pieces and scores, but neither the settings nor
all types of pieces, and its generated protobuf module needs another version of protobuf
than TensorFlow. The file is a protobuf message (sentencepiece_model.proto), of which
this module reads a few fields.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from decoupled.core.errors import UserError

# Stands for a space, and begins every word: other vocabularies are refused.
MARK = "▁"
UNIGRAM = 1
# Types of pieces. Text never becomes a control piece, and always a user-defined one.
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

# Protobuf field numbers in ModelProto, SentencePiece, TrainerSpec and NormalizerSpec.
_PIECES, _TRAINER_SPEC, _NORMALIZER_SPEC, _SELF_TEST = 1, 2, 3, 4
_TYPE = 3
_MODEL_TYPE, _WHITESPACE_AS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35
_CHARSMAP, _DUMMY_PREFIX, _REMOVE_WHITESPACE, _ESCAPE_WHITESPACE = 2, 3, 4, 5

# Sizes of the wire types that have one.
_FIXED = {1: 8, 5: 4}


class Settings(NamedTuple):
    """How text becomes pieces, besides the pieces themselves.

    model_type: `UNIGRAM` or another number.
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
    """Reads the settings of a serialized model.

    Raises:
      UserError: "▁" does not mark the beginning of every word, also of the first one.
    """
    try:
        parts = {number: value for number, value, _ in _fields(model) if number != 1}
        trainer = _values(parts.get(_TRAINER_SPEC, b""))
        normalizer = _values(parts.get(_NORMALIZER_SPEC, b""))
    except (ValueError, IndexError, TypeError) as error:
        raise UserError(f"{path}: not a SentencePiece model") from error
    for refused, what in (
        (trainer.get(_WHITESPACE_AS_SUFFIX, 0), "treat_whitespace_as_suffix is true"),
        (not normalizer.get(_DUMMY_PREFIX, 1), "add_dummy_prefix is false"),
        (not normalizer.get(_ESCAPE_WHITESPACE, 1), "escape_whitespaces is false"),
    ):
        if refused:
            raise UserError(
                f"{path}: {what}, but a word must begin with {MARK}, also at the "
                "beginning of a text; train the vocabulary with SentencePiece's default"
            )
    return Settings(
        model_type=trainer.get(_MODEL_TYPE, UNIGRAM),
        charsmap=normalizer.get(_CHARSMAP, b""),
        remove_whitespace=bool(normalizer.get(_REMOVE_WHITESPACE, 1)),
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
    )


def piece_types(model: bytes) -> list[int]:
    """The type of each piece, by id."""
    return [
        _values(value).get(_TYPE, NORMAL)
        for number, value, _ in _fields(model)
        if number == _PIECES
    ]


def with_types(model: bytes, types: Mapping[int, int]) -> bytes:
    """The model in which the pieces of these ids have other types."""
    parts, index = [], 0
    for number, value, field in _fields(model):
        if number == _PIECES:
            if index in types:
                # Of two values of a field, the last one counts.
                typed = value + bytes([_TYPE << 3, types[index]])
                field = bytes([_PIECES << 3 | 2]) + _as_varint(len(typed)) + typed
            index += 1
        parts.append(field)
    return b"".join(parts)


def with_pieces(model: bytes, kept: set[int]) -> bytes:
    """The model with only the pieces of these ids, in their order.

    The self-test that the library stores in the model is removed, as its texts may need
    other pieces.
    """
    parts, index = [], 0
    for number, _, field in _fields(model):
        if number == _PIECES:
            index += 1
            if index - 1 not in kept:
                continue
        if number != _SELF_TEST:
            parts.append(field)
    return b"".join(parts)


def _values(message: bytes) -> dict[int, int | bytes]:
    return {number: value for number, value, _ in _fields(message)}


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yields field number, value and serialized field of a protobuf message.

    Values of the fixed-size wire types, such as scores, are bytes."""
    place = 0
    while place < len(message):
        begin = place
        key, place = _varint(message, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, place = _varint(message, place)
        else:
            if wire_type == 2:
                size, place = _varint(message, place)
            elif wire_type in _FIXED:
                size = _FIXED[wire_type]
            else:
                raise ValueError(f"wire type {wire_type}")
            value, place = message[place : place + size], place + size
        yield number, value, message[begin:place]


def _as_varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value, shift = message[place], 7
    place += 1
    if value < 128:
        return value, place
    value &= 127
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
