"""What a folder of transformers says of its tokenizer, and what is refused in it.

A part that is not known here is refused, because it could give other ids.
"""

import base64
import binascii
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from decoupled.core import files
from decoupled.core.errors import UserError, quoted
from decoupled.data.sentencepiece_file import (
    MARK,
    PAD,
    UNKNOWN,
    USER_DEFINED,
    USER_DEFINED_SCORE,
    Piece,
)

SENTENCEPIECE_FILE, XLM_R_FILE = "sentencepiece.model", "sentencepiece.bpe.model"
VOCAB = "vocab.txt"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
# transformers' names of the special pieces.
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
# Classes that follow tokenizer_config.json, and those that follow tokenizer.json alone.
BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_BASE_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
_CLASSES = {
    SENTENCEPIECE_FILE: (*_BASE_CLASSES, "RemBertTokenizer", "BertTokenizer"),
    XLM_R_FILE: (*_BASE_CLASSES, "XLMRobertaTokenizer"),
    VOCAB: (*_BASE_CLASSES, *BERT_CLASSES),
}
# Settings of tokenizer_config.json that change ids, and the only value of each here.
_FIXED_SETTINGS = {
    "padding_side": "right",
    "truncation_side": "right",
    "auto_map": {},
    "do_basic_tokenize": True,
    "never_split": [],
    "add_prefix_space": True,
    "keep_accents": True,
    "remove_space": True,
    "sp_model_kwargs": {},
}
# Settings of tokenizers that cut words in another way, such as those of Japanese BERTs.
_OTHER_CUTS = (
    *("word_tokenizer_type", "subword_tokenizer_type", "mecab_kwargs"),
    *("sudachi_kwargs", "jumanpp_kwargs"),
)
BERT_RULES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
# Settings that change no ids, or that are in the other files.
_WITHOUT_EFFECT = frozenset((
    "tokenizer_class", "name_or_path", "special_tokens_map_file", "tokenizer_file",
    "vocab_file", "backend", "is_local", "local_files_only", "use_fast",
    "use_auth_token", "processor_class", "clean_up_tokenization_spaces",
    "spaces_between_special_tokens", "split_special_tokens", "bos_token", "eos_token",
    "unk_id", "pad_token_type_id", "pad_to_multiple_of", "init_inputs",
    "model_input_names", "model_max_length", "max_length", "max_len", "stride",
    "truncation_strategy", "truncation", "padding",
    "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens",
))  # fmt: skip
# Steps of a normalizer that change white space as SentencePiece does: pattern, content.
_COLLAPSE = " {2,}"
_SPACES = (
    (_COLLAPSE, " "),
    (_COLLAPSE, MARK),
    ("^ | $", ""),
    (f"[ {MARK}]+$", ""),
    (" ", MARK),
    (f"^{MARK}", 2 * MARK),
)
_LARGEST_SCORE = 3.4e38
# transformers' tokenizer of RemBERT also replaces these; sentencepiece.model does not.
_QUOTES = ("``", "''")


class Folder(NamedTuple):
    """A folder's files: tokenizer.json and tokenizer_config.json, {} without one.

    notes: what the user should know, to be added to.
    """

    path: str
    tokenizer: Mapping[str, Any]
    config: Mapping[str, Any]
    notes: list[str]

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def has(self, name: str) -> bool:
        return files.exists(self.file(name))


def check_config(folder: Folder, kind: str) -> None:
    """The settings of tokenizer_config.json, except the rules of BERT."""
    path = folder.file(TOKENIZER_CONFIG)
    for name, value in _FIXED_SETTINGS.items():
        setting = folder.config.get(name)
        if setting is not None and setting != value and (setting or value):
            raise UserError(f"{path}: {name} is {setting!r}, only {value!r} is known")
    for setting in _OTHER_CUTS:
        if folder.config.get(setting) is not None:
            raise UserError(
                f"{path}: {setting} is {folder.config[setting]!r}; text is not cut in "
                "this way here"
            )
    name = folder.config.get("tokenizer_class")
    if name is None:
        # As AutoTokenizer does.
        path = folder.file("config.json")
        name = read_object(folder.path, "config.json").get("tokenizer_class")
    if name is not None and str(name).removesuffix("Fast") not in _CLASSES[kind]:
        raise UserError(
            f"{path}: tokenizer_class is {quoted(str(name))}, which is not known for "
            f"a {kind}"
        )
    for name in BERT_RULES[:2]:
        if kind != VOCAB and folder.config.get(name):
            raise UserError(
                f"{path}: {name} is {folder.config[name]!r}, but text is only "
                f"normalised as {kind} says"
            )
    known_settings = {*_FIXED_SETTINGS, *ROLES, *BERT_RULES, *_WITHOUT_EFFECT}
    if unknown_settings := sorted(set(folder.config) - known_settings):
        folder.notes.append(
            f"{TOKENIZER_CONFIG}: not known and not used: {', '.join(unknown_settings)}"
        )


def check_special(
    folder: Folder, roles: Sequence[int], special: set[int], ids: Mapping[str, int]
) -> None:
    """Refuses other special pieces, and pieces beyond the vocabulary.

    `roles` are the ids of the special pieces in the order of `ROLES`, `special` those
    of pieces that text never becomes.
    """
    maps = {
        TOKENIZER_CONFIG: folder.config,
        SPECIAL_TOKENS: read_object(folder.path, SPECIAL_TOKENS),
    }
    for name, content in maps.items():
        for role, index in zip(ROLES, roles, strict=True):
            piece = _content(content.get(role))
            if piece is None or ids.get(piece) == index:
                continue
            # Two spellings of one piece; the other one is in the vocabulary.
            spellings = {"pad_token": PAD, "unk_token": UNKNOWN}.get(role, ())
            if piece not in spellings or piece in ids:
                raise UserError(
                    f"{folder.file(name)}: {role} is {quoted(piece)}, which is not "
                    f"piece {index} of the vocabulary"
                )
    for source, piece, index in _added_tokens(folder, maps):
        known_id = ids.get(piece)
        if known_id is None and piece in (*PAD, *UNKNOWN) and index is None:
            continue
        if known_id is None or index not in (None, known_id) or known_id not in special:
            raise UserError(
                f"{folder.file(source)}: adds the token {quoted(piece)} to the "
                "vocabulary, which transformers finds in text before it cuts words; "
                "no text is cut so here"
            )


def _added_tokens(folder: Folder, maps) -> Iterator[tuple[str, str, Any]]:
    """(file, piece, id) of the tokens that are found in text; None where unknown."""
    for token in items(folder.tokenizer.get("added_tokens")):
        yield TOKENIZER, _content(token) or "", entry({"": token}, "").get("id")
    for piece, index in read_object(folder.path, ADDED_TOKENS).items():
        yield ADDED_TOKENS, piece, index
    for index, token in entry(folder.config, "added_tokens_decoder").items():
        number = int(index) if re.fullmatch("[0-9]{1,9}", index) else -1
        yield TOKENIZER_CONFIG, _content(token) or "", number
    for name, content in maps.items():
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = content.get(key)
            tokens = tokens.values() if isinstance(tokens, dict) else items(tokens)
            for token in tokens:
                yield name, _content(token) or "", None


def check_unigram(
    folder: Folder,
    pieces: Sequence[Piece] | None,
    unknown: int,
    byte_fallback: bool,
    source: str,
) -> None:
    """Refuses a tokenizer.json with other pieces, or another treatment of unknown ones,
    than `source`."""
    path, model = folder.file(TOKENIZER), entry(folder.tokenizer, "model")
    rows = list(items(model.get("vocab")))
    if pieces is not None and len(rows) != len(pieces):
        raise UserError(
            f"{path}: has {len(rows)} pieces, {source} has {len(pieces)}; it is "
            "another vocabulary"
        )
    for index, (row, piece) in enumerate(zip(rows, pieces or (), strict=False)):
        text, score = piece_row(row)
        # transformers does not change the scores of user-defined pieces.
        scores = [piece.score]
        if piece.type == USER_DEFINED:
            scores.append(USER_DEFINED_SCORE)
        if text != piece.text or not any(
            math.isclose(score, value, rel_tol=1e-5, abs_tol=1e-6) for value in scores
        ):
            raise UserError(
                f"{path}: piece {index} is {quoted(repr(row))}, in {source} "
                f"{[piece.text, scores[-1]]}; it is another vocabulary"
            )
    for name, value in (("unk_id", unknown), ("byte_fallback", byte_fallback)):
        if model.get(name, False) != value:
            raise UserError(
                f"{path}: {name} is {model.get(name)!r}, in {source} {value!r}"
            )


def check_pipeline(folder: Folder, source: str, collapses: bool = True) -> bytes:
    """Refuses steps that `source` does not say; returns the table of characters.

    `collapses`: whether `source` makes one space of several.
    """
    path = folder.file(TOKENIZER)
    name = os.path.basename(source)
    maps, changes_quotes, adds_space, one_space = [], False, False, False
    for step in steps(folder.tokenizer.get("normalizer"), "normalizers"):
        kind = step.get("type")
        patterns = entry(step, "pattern")
        pattern = patterns.get("Regex", patterns.get("String"))
        if kind == "Precompiled":
            maps.append(step.get("precompiled_charsmap") or "")
        elif kind == "Replace" and pattern in _QUOTES and step.get("content") == '"':
            changes_quotes = True
        elif kind == "Replace" and (pattern, step.get("content")) in _SPACES:
            one_space |= patterns.get("Regex") == _COLLAPSE
        elif kind == "Replace":
            change = f"'Replace' of {pattern!r} by {step.get('content')!r}"
            raise UserError(
                f"{path}: text passes {quoted(change)}, which {name} does not say"
            )
        elif kind == "Prepend" and step.get("prepend") == MARK:
            adds_space = True
        elif kind != "Strip":
            raise UserError(
                f"{path}: text passes {quoted(str(kind))}, which {name} does not say; "
                "text is not changed in this way here"
            )
    for step in steps(folder.tokenizer.get("pre_tokenizer"), "pretokenizers"):
        kind = step.get("type")
        if kind == "Metaspace" and step.get("replacement", MARK) == MARK:
            # Older files have the second name.
            always = "always" if step.get("add_prefix_space", True) else "never"
            adds_space |= step.get("prepend_scheme", always) != "never"
        elif kind == "WhitespaceSplit":
            one_space = True
        else:
            raise UserError(
                f"{path}: text is cut by {quoted(str(kind))}, which {name} does not say"
            )
    if not adds_space:
        raise UserError(f"{path}: adds no space before a text, unlike {name}")
    if one_space != collapses:
        fault = "makes one of several spaces" if one_space else "keeps repeated spaces"
        raise UserError(f"{path}: {fault}, unlike {name}")
    if changes_quotes:
        folder.notes.append(
            f"{TOKENIZER} makes `` and '' a quotation mark, as transformers does for "
            f"RemBERT; {name} does not, and is used"
        )
    try:
        return b"".join(base64.b64decode(part, validate=True) for part in maps)
    except (binascii.Error, ValueError, TypeError) as error:
        raise UserError(f"{path}: precompiled_charsmap is damaged") from error


def check_ends(
    folder: Folder,
    names: Sequence[str],
    ids: Sequence[int],
    separators: int,
    second_type: int,
) -> None:
    """Refuses other special pieces around texts, and padding or cuts at the start."""
    path = folder.file(TOKENIZER)
    for name in ("padding", "truncation"):
        direction = entry(folder.tokenizer, name).get("direction", "Right")
        if str(direction).lower() != "right":
            raise UserError(f"{path}: {name} is on the left; here it is on the right")
    ends = list(steps(folder.tokenizer.get("post_processor"), "processors"))
    end = ends[0] if len(ends) == 1 else {}
    class_name = "BertProcessing" if second_type else "RobertaProcessing"
    if end.get("type") == class_name:
        parts = [[name, index] for name, index in zip(names, ids, strict=True)]
        if [end.get("cls"), end.get("sep")] == parts:
            return
    (cls_id, sep_id), (cls, sep) = ids, names
    single = [(cls_id, 0), ("A", 0), (sep_id, 0)]
    between = [(sep_id, 0)] * (separators - 1)
    pair = [*single, *between, ("B", second_type), (sep_id, second_type)]
    for name, parts in (("single", single), ("pair", pair)):
        if end.get("type") != "TemplateProcessing" or _template(end, name) != parts:
            raise UserError(
                f"{path}: its post_processor does not make {cls} A {sep} of a text and "
                f"{cls} A {' '.join([sep] * separators)} B {sep} of a pair (B and its "
                f"{sep} of type {second_type}); that is what models get here. If the "
                "model was trained so, correct the file (transformers 5 saves "
                "RemBERT's without them)"
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


def piece_row(row: Any) -> tuple[str | None, float]:
    """Text and score of a piece of tokenizer.json; None if damaged."""
    if isinstance(row, list) and len(row) == 2 and isinstance(row[0], str):
        # Scores are float32 in a model file.
        if type(row[1]) in (int, float) and abs(row[1]) <= _LARGEST_SCORE:
            return row[0], float(row[1])
    return None, math.nan


def steps(value: Any, list_name: str) -> Iterator[dict]:
    """The steps of a part of tokenizer.json, which may be a sequence of steps."""
    if not isinstance(value, dict):
        return
    if value.get("type") != "Sequence":
        yield value
        return
    for step in items(value.get(list_name)):
        yield from steps(step, list_name)


def entry(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object of this name; {} if there is none."""
    content = value.get(name)
    return content if isinstance(content, dict) else {}


def flag(value: Mapping[str, Any], name: str, path: str) -> bool | None:
    """A setting that is true or false, or None without it."""
    setting = value.get(name)
    if setting is not None and type(setting) is not bool:
        raise UserError(f"{path}: {name} is {setting!r}, not true or false")
    return setting


def items(value: Any) -> Iterable[Any]:
    """The list, or () for anything else."""
    return value if isinstance(value, list) else ()


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def read_object(folder: str, name: str) -> dict[str, Any]:
    """The object in a JSON file; {} without the file."""
    path = os.path.join(folder, name)
    content = files.read_json(path) if files.exists(path) else {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: not an object")
    return content
