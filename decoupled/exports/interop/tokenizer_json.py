"""tokenizer.json of transformers and its companions, written and compared.

The written file gives the ids of `Vocabulary.encode`, between [CLS] and [SEP]. It needs
no class of transformers for the model: the file contains the normaliser, the pieces
with their scores, and the positions of the special pieces. docs/interop.md lists where
the ids differ. In a file from elsewhere a part that is not known here is refused,
because it could give other ids.
"""

import base64
import binascii
import math
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from decoupled.configs import ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError, quoted
from decoupled.data.sentencepiece_file import MARK, UNIGRAM, Settings
from decoupled.data.vocabulary import FILE_NAME, Vocabulary

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"

# As in SentencePiece's unigram_model.cc, if all other scores are negative.
_USER_DEFINED_SCORE = -0.1


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
        scores[index] = _USER_DEFINED_SCORE
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


# Steps of a normalizer that change white space only, which SentencePiece changes too.
_SPACES = (" {2,}", "^ | $", f"[ {MARK}]+$", " ", f"^{MARK}")
# transformers' tokenizer of RemBERT adds these to what sentencepiece.model does.
_QUOTES = ("``", "''")


def check_unigram(path, tokenizer, vocabulary, notes) -> None:
    """Refuses a tokenizer.json that gives other ids than the vocabulary."""
    settings, ours = vocabulary.settings, tokenizer_json(vocabulary)["model"]["vocab"]
    model = entry(tokenizer, "model")
    listed = model.get("vocab")
    if not isinstance(listed, list) or len(listed) != vocabulary.size:
        count = len(listed) if isinstance(listed, list) else 0
        raise UserError(
            f"{path}: has {count} pieces, {vocabulary.path} has {vocabulary.size}; it "
            "is another vocabulary"
        )
    scores = vocabulary.scores()
    for index, (row, expected) in enumerate(zip(listed, ours, strict=True)):
        piece, score = row if isinstance(row, list) and len(row) == 2 else (None, 0)
        # transformers does not change the scores of user-defined pieces.
        same = isinstance(score, int | float) and any(
            math.isclose(score, known, rel_tol=1e-5, abs_tol=1e-6)
            for known in (expected[1], scores[index])
        )
        if piece != expected[0] or not same:
            raise UserError(
                f"{path}: piece {index} is {quoted(repr(row))}, in {vocabulary.path} "
                f"{expected}; it is another vocabulary"
            )
    for name, value in (
        ("unk_id", vocabulary.unk_id),
        ("byte_fallback", settings.byte_fallback),
    ):
        if model.get(name, False) != value:
            raise UserError(
                f"{path}: {name} is {model.get(name)!r}, in {vocabulary.path} {value!r}"
            )
    prepends = _check_normalizer(path, tokenizer, settings, vocabulary.path, notes)
    for step in steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        kind = step.get("type")
        if kind == "Metaspace" and step.get("replacement", MARK) == MARK:
            # Older files have the second name.
            always = "always" if step.get("add_prefix_space", True) else "never"
            prepends |= step.get("prepend_scheme", always) != "never"
        elif kind != "WhitespaceSplit":
            raise UserError(
                f"{path}: text is cut by {quoted(str(kind))}, which {FILE_NAME} does "
                "not say"
            )
    if not prepends:
        raise UserError(f"{path}: adds no space before a text, unlike {FILE_NAME}")
    check_ends(path, tokenizer, vocabulary.cls_id, vocabulary.sep_id)


def _check_normalizer(path, tokenizer, settings, source, notes) -> bool:
    """Whether a space is added before a text."""
    maps, quotes, prepends = [], False, False
    for step in steps(tokenizer.get("normalizer"), "normalizers"):
        kind = step.get("type")
        pattern = entry(step, "pattern")
        pattern = pattern.get("Regex", pattern.get("String"))
        if kind == "Precompiled":
            maps.append(step.get("precompiled_charsmap") or "")
        elif kind == "Replace" and pattern in _QUOTES and step.get("content") == '"':
            quotes = True
        elif kind == "Replace" and pattern in _SPACES:
            if step.get("content") not in ("", " ", MARK, 2 * MARK):
                raise UserError(f"{path}: text passes {quoted(str(step))}")
        elif kind == "Prepend" and step.get("prepend") == MARK:
            prepends = True
        elif kind != "Strip":
            raise UserError(
                f"{path}: text passes {quoted(str(kind))}, which {FILE_NAME} does not "
                "say; text is not changed in this way here"
            )
    try:
        maps = [base64.b64decode(charsmap, validate=True) for charsmap in maps]
    except (binascii.Error, ValueError, TypeError) as error:
        raise UserError(f"{path}: precompiled_charsmap is damaged") from error
    if b"".join(maps) != settings.charsmap:
        raise UserError(f"{path}: normalises characters in another way than {source}")
    if quotes:
        notes.append(
            f"{TOKENIZER} makes `` and '' a quotation mark, as transformers does for "
            f"RemBERT; {FILE_NAME} does not, and is used"
        )
    return prepends


def check_ends(path, tokenizer, cls_id, sep_id) -> None:
    """Refuses other special pieces around texts, and padding or cuts at the start."""
    for name in ("padding", "truncation"):
        direction = entry(tokenizer, name).get("direction", "Right")
        if str(direction).lower() != "right":
            raise UserError(f"{path}: {name} is on the left; here it is on the right")
    cls, sep = (cls_id, 0), (sep_id, 0)
    single = [cls, ("A", 0), sep]
    expected = {"single": single, "pair": [*single, ("B", 1), (sep_id, 1)]}
    ends = list(steps(tokenizer.get("post_processor"), "processors"))
    kind = ends[0].get("type") if len(ends) == 1 else None
    if kind == "BertProcessing":
        if [ends[0].get("cls"), ends[0].get("sep")] == [
            ["[CLS]", cls_id],
            ["[SEP]", sep_id],
        ]:
            return
    for name, parts in expected.items():
        if kind != "TemplateProcessing" or _template(ends[0], name) != parts:
            raise UserError(
                f"{path}: its post_processor does not make [CLS] A [SEP] of a text and "
                "[CLS] A [SEP] B [SEP] of a pair (B and its [SEP] of type 1); that is "
                "what models get here. If the model was trained so, correct the file "
                "(transformers 5 saves RemBERT's without them)"
            )


def _template(step, name) -> list[tuple[Any, Any]] | None:
    """(id or name of a text, type) of the parts; None if damaged."""
    parts = []
    special = entry(step, "special_tokens")
    for part in items(step.get(name)):
        if not (isinstance(part, dict) and len(part) == 1):
            return None
        (kind,) = part
        token = entry(part, kind).get("id")
        if kind == "SpecialToken":
            token = entry(special, str(token)).get("ids")
            token = token[0] if isinstance(token, list) and len(token) == 1 else None
        parts.append((token, entry(part, kind).get("type_id")))
    return parts


def steps(value: Any, inner: str) -> Iterator[dict]:
    """The steps of a part of tokenizer.json, which may be a sequence of steps."""
    if not isinstance(value, dict):
        return
    if value.get("type") != "Sequence":
        yield value
        return
    for step in items(value.get(inner)):
        yield from steps(step, inner)


def entry(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object of this name; {} if there is none."""
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def items(value: Any) -> Iterable[Any]:
    """The list, or () for anything else."""
    return value if isinstance(value, list) else ()
