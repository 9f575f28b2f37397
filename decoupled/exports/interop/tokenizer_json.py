"""tokenizer.json of transformers and its companions, as they are written.

The written file gives the ids of `Vocabulary.encode`, between [CLS] and [SEP]. It needs
no class of transformers for the model: the file contains the normaliser, the pieces
with their scores, and the positions of the special pieces. docs/interop.md lists where
the ids differ.
"""

import base64
import os
import unicodedata
from typing import Any

from decoupled.configs import ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.sentencepiece_file import (
    MARK,
    UNIGRAM,
    USER_DEFINED_SCORE,
    Settings,
)
from decoupled.data.tokenizer_folder import SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG
from decoupled.data.vocabulary import Vocabulary


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
      UserError: the vocabulary is not a unigram model, keeps repeated spaces, or has a
        user-defined piece that its normalisation changes.
    """
    settings = vocabulary.settings
    pieces = [vocabulary.id_to_piece(index) for index in range(vocabulary.size)]
    user_defined = [pieces[index] for index in vocabulary.user_defined_ids]
    changed = [
        piece
        for piece in user_defined
        if settings.charsmap and piece != unicodedata.normalize("NFKC", piece)
    ]
    for refused, what in (
        (settings.model_type != UNIGRAM, "not a unigram model"),
        (not settings.remove_whitespace, "keeps repeated spaces"),
        (changed, f"normalisation changes its user-defined piece {changed[:1]}"),
    ):
        if refused:
            raise UserError(f"{vocabulary.path}: {what}; no tokenizer.json can be made")
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
                list(row) for row in zip(pieces, _scores(vocabulary), strict=True)
            ],
            "byte_fallback": settings.byte_fallback,
        },
    }


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
    """SentencePiece's steps in its order: characters, then white space."""
    steps: list[dict[str, Any]] = []
    if settings.charsmap:
        charsmap = base64.b64encode(settings.charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    steps += [
        # The first "▁" of a text is that of its first word, below.
        _replace({"Regex": f"^{MARK}"}, 2 * MARK),
        _replace({"Regex": " {2,}"}, " "),
        # Text after [MASK] keeps its first space.
        _replace({"Regex": f"[ {MARK}]+$"}, ""),
        _replace({"String": " "}, MARK),
    ]
    return {"type": "Sequence", "normalizers": steps}


def _replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def _scores(vocabulary):
    """The file has 0 for user-defined pieces, but SentencePiece takes another score."""
    scores = vocabulary.scores()
    for index in vocabulary.user_defined_ids:
        scores[index] = USER_DEFINED_SCORE
    return scores


def _pre_tokenizer(pieces):
    """Adds the first space, but not after [MASK]. Then splits text into words, which is
    faster, unless a piece can span words."""
    steps = [_metaspace("first", split=False)]
    if not any(MARK in piece[1:] for piece in pieces):
        steps.append(_metaspace("never", split=True))
    return {"type": "Sequence", "pretokenizers": steps}


def _metaspace(prepend, split):
    return {
        "type": "Metaspace",
        "replacement": MARK,
        "prepend_scheme": prepend,
        "split": split,
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
    steps = [_replace({"String": MARK}, " ")]
    if settings.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
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
