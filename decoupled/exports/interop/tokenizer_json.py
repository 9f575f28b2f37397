"""tokenizer.json of transformers, compared with what our pipeline does to text.

A part that is not known here is refused, because it could give other ids.
"""

import base64
import binascii
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from decoupled.core.errors import UserError, quoted
from decoupled.data.sentencepiece_file import MARK
from decoupled.data.vocabulary import FILE_NAME
from decoupled.exports.interop.tokenizer_files import TOKENIZER, tokenizer_json

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
