"""Protobuf's wire format: integers, and the fields of a message.

Protobuf's own code in Python would take most of the time of writing records, and the
message of SentencePiece needs another version of protobuf than TensorFlow.
"""

import functools
from collections.abc import Iterator

# Sizes of the wire types that have one.
_FIXED = {1: 8, 5: 4}


@functools.cache
def varint(value: int) -> bytes:
    """An integer: 7 bits a byte, the lowest first."""
    head = b""
    while value >= 0x80:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])


def fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yields field number, value and serialized field of a message.

    Values of the fixed-size wire types, such as scores, are bytes.

    Raises:
      ValueError, IndexError: these bytes are no message.
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
            elif wire_type in _FIXED:
                size = _FIXED[wire_type]
            else:
                raise ValueError(f"wire type {wire_type}")
            value, place = message[place : place + size], place + size
        yield number, value, message[begin:place]


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
