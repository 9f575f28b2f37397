"""What a SentencePiece model file says about normalisation.

The library's Python interface tells pieces and scores, but not these settings, and its
generated protobuf module needs another protobuf than TensorFlow does. The file is a
protobuf message (sentencepiece_model.proto); the few fields are read here.
"""

from collections.abc import Iterator
from typing import NamedTuple

from decoupled.core.errors import UserError

UNIGRAM = 1

# Field numbers in ModelProto, TrainerSpec and NormalizerSpec.
_TRAINER_SPEC, _NORMALIZER_SPEC = 2, 3
_MODEL_TYPE, _WHITESPACE_AS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35
_CHARSMAP, _DUMMY_PREFIX, _REMOVE_WHITESPACE = 2, 3, 4

# Sizes of the wire types that have one.
_FIXED = {1: 8, 5: 4}


class Settings(NamedTuple):
    """How text becomes pieces, beside the pieces.

    charsmap: SentencePiece's compiled table of character replacements.
    dummy_prefix: whether text is taken to begin with a space.
    remove_whitespace: whether spaces at the ends go, and repeated ones become one.
    byte_fallback: whether unknown characters become their bytes.
    """

    charsmap: bytes
    dummy_prefix: bool
    remove_whitespace: bool
    byte_fallback: bool


def read_settings(model: bytes, path: str) -> Settings:
    """Reads the settings of a serialized model.

    Raises:
      UserError: the model is not a unigram one that marks beginnings of words.
    """
    parts = dict(_fields(model, wanted=(_TRAINER_SPEC, _NORMALIZER_SPEC)))
    trainer = dict(_fields(parts.get(_TRAINER_SPEC, b"")))
    normalizer = dict(_fields(parts.get(_NORMALIZER_SPEC, b"")))
    if trainer.get(_MODEL_TYPE, UNIGRAM) != UNIGRAM:
        raise UserError(f"{path}: not a unigram model; no tokenizer.json can be made")
    if trainer.get(_WHITESPACE_AS_SUFFIX, 0):
        raise UserError(f"{path}: marks ends of words; no tokenizer.json can be made")
    return Settings(
        charsmap=normalizer.get(_CHARSMAP, b""),
        dummy_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1)),
        remove_whitespace=bool(normalizer.get(_REMOVE_WHITESPACE, 1)),
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
    )


def _fields(
    message: bytes, wanted: tuple[int, ...] = ()
) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of integers and byte strings, of `wanted` numbers or all."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, place = _varint(message, place)
        elif wire_type == 2:
            size, place = _varint(message, place)
            value, place = (place, place + size), place + size
        elif wire_type in _FIXED:
            place += _FIXED[wire_type]
            continue
        else:
            raise ValueError(f"wire type {wire_type}")
        if not wanted or number in wanted:
            yield number, message[slice(*value)] if wire_type == 2 else value


def _varint(message, place):
    value, shift = 0, 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
