"""The vocabulary for transformers: tokenizer.json and its companions.

tokenizer.json gives the ids of `Vocabulary.encode`, between [CLS] and [SEP]. It needs
no class of transformers for the model: the file contains the normaliser, the pieces
with their scores, and the positions of the special pieces. docs/interop.md lists where
the ids differ.

SentencePiece's Python interface gives pieces and scores, but not the normalisation, and
its generated protobuf module needs another version of protobuf than TensorFlow. The
model file is a protobuf message (sentencepiece_model.proto), of which this module reads
a few fields.
"""

import base64
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from decoupled.configs import ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"

_SPACE = "▁"
_UNIGRAM = 1

# Field numbers in ModelProto, TrainerSpec and NormalizerSpec.
_TRAINER_SPEC, _NORMALIZER_SPEC = 2, 3
_MODEL_TYPE, _WHITESPACE_AS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35
_CHARSMAP, _DUMMY_PREFIX, _REMOVE_WHITESPACE = 2, 3, 4

# Sizes of the wire types that have one.
_FIXED = {1: 8, 5: 4}


class Settings(NamedTuple):
    """How text becomes pieces, besides the pieces themselves.

    charsmap: SentencePiece's compiled table of character replacements.
    dummy_prefix: whether a space is added before every text.
    remove_whitespace: whether spaces at both ends are removed, and repeated ones
      become one.
    byte_fallback: whether unknown characters become their bytes.
    """

    charsmap: bytes
    dummy_prefix: bool
    remove_whitespace: bool
    byte_fallback: bool


def write_tokenizer(folder: str, vocabulary: Vocabulary, model: ModelConfig) -> None:
    """Writes the three files.

    Raises:
      UserError: the files cannot describe a vocabulary of this kind.
    """
    special = special_tokens(vocabulary)
    for name, content in (
        (TOKENIZER, tokenizer_json(vocabulary)),
        (TOKENIZER_CONFIG, _tokenizer_config(vocabulary, model, special)),
        (SPECIAL_TOKENS, special),
    ):
        files.write_json(os.path.join(folder, name), content)


def special_tokens(vocabulary: Vocabulary) -> dict[str, str]:
    """transformers' names of the special pieces -> this vocabulary's spelling."""
    ids = {
        "bos_token": vocabulary.cls_id,
        "eos_token": vocabulary.sep_id,
        "unk_token": vocabulary.unk_id,
        "sep_token": vocabulary.sep_id,
        "pad_token": vocabulary.pad_id,
        "cls_token": vocabulary.cls_id,
        "mask_token": vocabulary.mask_id,
    }
    return {name: vocabulary.id_to_piece(index) for name, index in ids.items()}


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of tokenizer.json.

    Raises:
      UserError: the vocabulary is not a unigram model.
    """
    settings = read_settings(vocabulary.model_bytes, vocabulary.path)
    pieces = [vocabulary.id_to_piece(index) for index in range(vocabulary.size)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "normalizer": _normalizer(settings),
        "pre_tokenizer": _pre_tokenizer(pieces),
        "post_processor": _post_processor(vocabulary),
        "decoder": _decoder(settings),
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.unk_id,
            "vocab": [
                list(row) for row in zip(pieces, vocabulary.scores(), strict=True)
            ],
            "byte_fallback": settings.byte_fallback,
        },
    }


def read_settings(model: bytes, path: str) -> Settings:
    """Reads the settings of a serialized model.

    Raises:
      UserError: the model is not a unigram one that marks beginnings of words.
    """
    parts = dict(message_fields(model, wanted=(_TRAINER_SPEC, _NORMALIZER_SPEC)))
    trainer = dict(message_fields(parts.get(_TRAINER_SPEC, b"")))
    normalizer = dict(message_fields(parts.get(_NORMALIZER_SPEC, b"")))
    if trainer.get(_MODEL_TYPE, _UNIGRAM) != _UNIGRAM:
        raise UserError(f"{path}: not a unigram model; no tokenizer.json can be made")
    if trainer.get(_WHITESPACE_AS_SUFFIX, 0):
        raise UserError(f"{path}: marks ends of words; no tokenizer.json can be made")
    return Settings(
        charsmap=normalizer.get(_CHARSMAP, b""),
        dummy_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1)),
        remove_whitespace=bool(normalizer.get(_REMOVE_WHITESPACE, 1)),
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
    )


def _added_tokens(vocabulary):
    """The special pieces, which transformers finds in text only if listed here."""
    return [
        {
            "id": index,
            "content": vocabulary.id_to_piece(index),
            "single_word": False,
            # The space before [MASK] belongs to the masked piece.
            "lstrip": index == vocabulary.mask_id,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index in sorted({*vocabulary.special_ids, vocabulary.unk_id})
    ]


def _normalizer(settings: Settings):
    """SentencePiece's steps in its order: characters, white space, the first space."""
    steps = []
    if settings.charsmap:
        charsmap = base64.b64encode(settings.charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if settings.remove_whitespace:
        steps.append(_replace({"Regex": " {2,}"}, " "))
        steps.append(_replace({"Regex": "^ | $"}, ""))
    if settings.dummy_prefix:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    steps.append(_replace({"String": " "}, _SPACE))
    return {"type": "Sequence", "normalizers": steps}


def _replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def _pre_tokenizer(pieces):
    """Splits text into words, which is faster; None if a piece can span words."""
    if any(_SPACE in piece[1:] for piece in pieces):
        return None
    return {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": "never",
        "split": True,
    }


def _post_processor(vocabulary):
    cls, sep = (
        vocabulary.id_to_piece(i) for i in (vocabulary.cls_id, vocabulary.sep_id)
    )

    def special(piece, segment):
        return {"SpecialToken": {"id": piece, "type_id": segment}}

    def text(name, segment):
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special(cls, 0), text("A", 0), special(sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special(sep, 1)],
        "special_tokens": {
            piece: {"id": piece, "ids": [index], "tokens": [piece]}
            for piece, index in ((cls, vocabulary.cls_id), (sep, vocabulary.sep_id))
        },
    }


def _decoder(settings: Settings):
    steps = [_replace({"String": _SPACE}, " ")]
    if settings.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if settings.dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _tokenizer_config(vocabulary, model, special):
    added = {
        str(entry["id"]): {key: value for key, value in entry.items() if key != "id"}
        for entry in _added_tokens(vocabulary)
    }
    return {
        # transformers' own class for RemBERT fixes ids of special pieces, and returns
        # no token types unless asked.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_positions,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": added,
        **special,
    }


def message_fields(
    message: bytes, wanted: tuple[int, ...] = ()
) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of the integers and byte strings of a protobuf message.

    Args:
      wanted: field numbers; an empty tuple takes all fields.
    """
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


def write_field(number: int, value: bytes) -> bytes:
    """A byte string, or a message, as a field of a protobuf message."""
    return _as_varint(number << 3 | 2) + _as_varint(len(value)) + value


def _as_varint(value):
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _varint(message, place):
    value, shift = 0, 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
