"""The tokenizer of a folder of transformers, read as the file that a run keeps.

A folder has one of three kinds: `sentencepiece.model`, XLM-R's
`sentencepiece.bpe.model`, or BERT's `vocab.txt`. Each may have a `tokenizer.json`
beside it, and the last two may have it alone. A row of the embeddings belongs to a
piece only by its number, so that all files must have the same pieces.

What a folder's tokenizer does to text is either done here or refused: a model would get
other ids than it was trained with. Special pieces are put around texts, and texts are
padded and cut at the end. Where tokenizer_config.json names the class BertTokenizer, or
none, transformers follows that file, and not tokenizer.json.

XLM-R's model is made anew in the order of its ids: <s>, <pad>, </s> and <unk> first,
<mask> last. The file from fairseq lacks two of these, so that all ids are shifted by
one. The table of normalisation is the file's: that of SentencePiece 0.2.3 with the same
name differs in 174 code points.
"""

import base64
import binascii
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from decoupled.core import files
from decoupled.core.errors import UserError, quoted
from decoupled.data.sentencepiece_file import (
    CONTROL,
    MARK,
    NORMAL,
    PAD,
    UNIGRAM,
    UNKNOWN,
    UNKNOWN_TYPE,
    USER_DEFINED,
    USER_DEFINED_SCORE,
    Piece,
    make_model,
    read_pieces,
    read_settings,
)

SENTENCEPIECE_FILE, XLM_R_FILE = "sentencepiece.model", "sentencepiece.bpe.model"
VOCAB = "vocab.txt"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
# Files that stand for their whole folder.
FILES = (VOCAB, TOKENIZER, XLM_R_FILE)

# transformers' names of the special pieces, and those of WordPiece and XLM-R.
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
XLM_R_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
_XLM_R_FIRST = ("<s>", "<pad>", "</s>", "<unk>")

WORDPIECE_FORMAT = "decoupled-wordpiece-1"
# Classes that follow tokenizer_config.json, and those that follow tokenizer.json alone.
_BERT = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_ANY = ("PreTrainedTokenizer", "TokenizersBackend")
_CLASSES = {
    SENTENCEPIECE_FILE: (*_ANY, "RemBertTokenizer", "BertTokenizer"),
    XLM_R_FILE: (*_ANY, "XLMRobertaTokenizer"),
    VOCAB: (*_ANY, *_BERT),
}
_LONGEST_WORD = 100
# Bytes of a piece, in FastWordpieceTokenizer.
_LONGEST_PIECE = 256
# Settings of tokenizer_config.json that change ids, and their only value here.
_FIXED = {
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
_BERT_RULES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
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
# Steps of a normalizer that change white space only, which SentencePiece changes too.
_SPACES = (" {2,}", "^ | $", f"[ {MARK}]+$", " ", f"^{MARK}")
# transformers' tokenizer of RemBERT adds these to what sentencepiece.model does.
_QUOTES = ("``", "''")


class TextRules(NamedTuple):
    """What BERT's tokenizer does to text before it cuts words.

    lower: it is lower-cased. strip_accents: marks on letters are removed. chinese: each
    Chinese character is a word. longest_word: longer words, in characters, are unknown.
    """

    lower: bool
    strip_accents: bool
    chinese: bool = True
    longest_word: int = _LONGEST_WORD


class _Folder(NamedTuple):
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


def read_folder(
    folder: str, notes: list[str], model: str | None = None
) -> tuple[str, bytes]:
    """The file that the vocabulary comes from, and the content of a run's file.

    Args:
      notes: gets what the user should know.
      model: a sentencepiece.model, if the folder has none.

    Raises:
      UserError: the folder has no tokenizer, or one that is not known here; or its
        files contradict each other.
    """
    content = read_object(folder, TOKENIZER), read_object(folder, TOKENIZER_CONFIG)
    read = _Folder(folder, *content, notes)
    kinds = [
        name
        for name in (SENTENCEPIECE_FILE, XLM_R_FILE, VOCAB)
        if read.has(name) or name == _kind(read)
    ]
    if len(kinds) > 1:
        raise UserError(
            f"{folder}: has the vocabulary of two tokenizers, {' and '.join(kinds)}; "
            "remove the files of the one that is not the model's"
        )
    if not kinds:
        bpe = read.has("merges.txt") and " (byte-level BPE, merges.txt, is not known)"
        raise UserError(
            f"{folder}: has no {SENTENCEPIECE_FILE}, {XLM_R_FILE}, {VOCAB} or "
            f"{TOKENIZER}, so nothing says which row of the embeddings belongs to "
            f"which piece{bpe or ''}; copy the model's own file into it"
        )
    (kind,) = kinds
    if model and kind != SENTENCEPIECE_FILE:
        raise UserError(
            f"--vocabulary: {folder} has its own tokenizer ({kind}), which the model "
            "keeps; for other pieces use decoupled convert vocabulary afterwards"
        )
    _check_config(read, kind)
    try:
        if kind == SENTENCEPIECE_FILE:
            return _sentencepiece(read, model)
        return _xlm_r(read) if kind == XLM_R_FILE else _wordpiece(read)
    except UnicodeEncodeError as error:
        raise UserError(f"{read.file(TOKENIZER)}: a piece is not UTF-8") from error


def make_wordpieces(pieces: Sequence[str], rules: TextRules) -> bytes:
    """The content of a wordpiece.json."""
    stored = {"format": WORDPIECE_FORMAT, **rules._asdict(), "pieces": pieces}
    return (json.dumps(stored, ensure_ascii=False, indent=0) + "\n").encode("utf-8")


def read_wordpieces(content: bytes, path: str) -> tuple[list[str], TextRules]:
    """The pieces by id ("" without one) and the rules of a wordpiece.json.

    Raises:
      UserError: it is no such file, or lacks a special piece.
    """
    try:
        stored = files.parse_json(content)
        if stored["format"] != WORDPIECE_FORMAT:
            raise ValueError(f"format is not {WORDPIECE_FORMAT!r}")
        rules = TextRules(*(stored[name] for name in TextRules._fields))
        pieces = stored["pieces"]
        types = [bool, bool, bool, int]
        if [*map(type, rules)] != types or not 0 < rules.longest_word <= 10_000:
            raise ValueError("a rule is of another type")
        if not all(type(piece) is str for piece in pieces):
            raise ValueError("a piece is no text")
        if any(len(piece.encode()) > _LONGEST_PIECE for piece in pieces):
            raise ValueError(f"a piece has more than {_LONGEST_PIECE} bytes")
        named = list(filter(None, pieces))
        if len(set(named)) != len(named) or not set(SPECIAL) <= set(named):
            raise ValueError("a piece occurs twice, or a special piece is missing")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not a vocabulary of WordPieces ({files.reason(error)})"
        ) from error
    return pieces, rules


def _kind(read: _Folder) -> str | None:
    """The file that says the same as tokenizer.json; None without one."""
    if not read.tokenizer:
        return None
    model = entry(read.tokenizer, "model")
    # Early files do not name the type.
    is_wordpiece = "continuing_subword_prefix" in model and "merges" not in model
    kind = model.get("type", "WordPiece" if is_wordpiece else None)
    if kind == "WordPiece":
        return VOCAB
    if kind != "Unigram":
        raise UserError(
            f"{read.file(TOKENIZER)}: its model is of type {quoted(str(kind))}; known "
            "are Unigram and WordPiece"
        )
    first = [_row(row)[0] for row in list(items(model.get("vocab")))[:4]]
    return XLM_R_FILE if first == list(_XLM_R_FIRST) else SENTENCEPIECE_FILE


def _check_config(read: _Folder, kind: str) -> None:
    """The settings of tokenizer_config.json, except the rules of BERT."""
    path = read.file(TOKENIZER_CONFIG)
    for name, value in _FIXED.items():
        setting = read.config.get(name)
        if setting is not None and setting != value and (setting or value):
            raise UserError(f"{path}: {name} is {setting!r}, only {value!r} is known")
    name = read.config.get("tokenizer_class")
    if name is not None and str(name).removesuffix("Fast") not in _CLASSES[kind]:
        raise UserError(
            f"{path}: tokenizer_class is {quoted(str(name))}, which is not known for "
            f"a {kind}"
        )
    known = {*_FIXED, *ROLES, *_BERT_RULES, *_WITHOUT_EFFECT}
    if unknown := sorted(set(read.config) - known):
        read.notes.append(
            f"{TOKENIZER_CONFIG}: not known and not used: {', '.join(unknown)}"
        )


def _sentencepiece(read: _Folder, model: str | None) -> tuple[str, bytes]:
    beside = read.file(SENTENCEPIECE_FILE)
    if not model and not read.has(SENTENCEPIECE_FILE):
        raise UserError(
            f"{read.path}: has {TOKENIZER} but no {SENTENCEPIECE_FILE}; name the "
            f"{SENTENCEPIECE_FILE} that it was made from with --vocabulary"
        )
    path = model or beside
    content = files.read_bytes(path)
    if model and read.has(SENTENCEPIECE_FILE) and content != files.read_bytes(beside):
        raise UserError(
            f"--vocabulary: {model} is not {beside}; the folder's own is used"
        )
    for name in _BERT_RULES[:2]:
        if read.config.get(name):
            raise UserError(
                f"{read.file(TOKENIZER_CONFIG)}: {name} is {read.config[name]!r}, but "
                f"text is only normalised as {SENTENCEPIECE_FILE} says"
            )
    pieces = read_pieces(content, path)
    ids = {piece.text: index for index, piece in enumerate(pieces)}
    unknown = [i for i, piece in enumerate(pieces) if piece.type == UNKNOWN_TYPE]
    pads = [ids[name] for name in PAD if name in ids]
    if not (pads and unknown) or not set(SPECIAL[2:]) <= set(ids):
        # Whoever opens it says what is missing.
        return path, content
    roles = [pads[0], unknown[0], *(ids[name] for name in SPECIAL[2:])]
    types = (CONTROL, USER_DEFINED, UNKNOWN_TYPE)
    special = {i for i, piece in enumerate(pieces) if piece.type in types}
    _check_special(read, roles, {*roles, *special}, ids)
    if read.tokenizer:
        settings = read_settings(content, path)
        _check_unigram(read, pieces, roles[1], settings.byte_fallback, path)
        if _check_pipeline(read, path) != settings.charsmap:
            raise UserError(
                f"{read.file(TOKENIZER)}: normalises characters in another way than "
                f"{path}"
            )
        _check_ends(read, SPECIAL[2:4], roles[2:4], 1, 1)
    return path, content


def _xlm_r(read: _Folder) -> tuple[str, bytes]:
    path, content = read.file(XLM_R_FILE), b""
    if read.has(XLM_R_FILE):
        model = files.read_bytes(path)
        settings, pieces = read_settings(model, path), read_pieces(model, path)
        first = ["<unk>", "<s>", "</s>"]
        normal = pieces[3:]
        for refused, what in (
            ([piece.text for piece in pieces[:3]] != first, "does not begin with "
             f"{', '.join(first)}, as XLM-R's do"),
            (settings.model_type != UNIGRAM, "is not a unigram model"),
            (settings.byte_fallback, "has byte_fallback"),
            (not settings.remove_whitespace, "keeps repeated spaces"),
            (any(p.type != NORMAL for p in normal), "has special pieces of its own"),
        ):  # fmt: skip
            if refused:
                raise UserError(f"{path}: {what}")
        content = _xlm_r_model(normal, settings.charsmap)
    if read.tokenizer:
        path = read.file(TOKENIZER)
        rows = [_row(row) for row in items(entry(read.tokenizer, "model").get("vocab"))]
        if [*(text for text, _ in rows[:4]), rows[-1][0]] != [*_XLM_R_FIRST, "<mask>"]:
            raise UserError(
                f"{path}: its pieces are not {', '.join(_XLM_R_FIRST)} at the "
                "beginning and <mask> at the end, as XLM-R's are"
            )
        damaged = [i for i, (text, _) in enumerate(rows) if text is None]
        if damaged:
            raise UserError(f"{path}: piece {damaged[0]} is damaged")
        pieces = [Piece(text, score, NORMAL) for text, score in rows[4:-1]]
        _check_unigram(read, None, _XLM_R_FIRST.index("<unk>"), False, path)
        made = _xlm_r_model(pieces, _check_pipeline(read, XLM_R_FILE))
        if content and made != content:
            raise UserError(
                f"{path}: has other pieces, scores or normalisation than {XLM_R_FILE}; "
                "remove the file that is not the model's"
            )
        _check_ends(read, XLM_R_SPECIAL[2:4], (0, 2), 2, 0)
        content = made
    pieces = read_pieces(content, path)
    ids = {piece.text: index for index, piece in enumerate(pieces)}
    roles = [ids[name] for name in XLM_R_SPECIAL]
    _check_special(read, roles, set(roles), ids)
    for name in _BERT_RULES[:2]:
        if read.config.get(name):
            raise UserError(
                f"{read.file(TOKENIZER_CONFIG)}: {name} is {read.config[name]!r}, but "
                f"text is only normalised as {XLM_R_FILE} says"
            )
    return path, content


def _xlm_r_model(pieces: Sequence[Piece], charsmap: bytes) -> bytes:
    types = {"<unk>": UNKNOWN_TYPE}
    first = [Piece(name, 0.0, types.get(name, CONTROL)) for name in _XLM_R_FIRST]
    mask = Piece("<mask>", 0.0, CONTROL)
    return make_model([*first, *pieces, mask], charsmap, unknown=3, pad=1)


def _wordpiece(read: _Folder) -> tuple[str, bytes]:
    path = read.file(TOKENIZER if read.tokenizer else VOCAB)
    pieces = _wordpieces(read)
    ids = {piece: row for row, piece in enumerate(pieces)}
    for name in SPECIAL:
        if name not in ids:
            raise UserError(f"{path}: has no piece {name}")
    roles = [ids[name] for name in SPECIAL]
    _check_special(read, roles, set(roles), ids)
    rules = _text_rules(read, pieces)
    if read.tokenizer:
        _check_ends(read, SPECIAL[2:4], roles[2:4], 1, 1)
    return path, make_wordpieces(pieces, rules)


def _wordpieces(read: _Folder) -> list[str]:
    """The pieces by id, "" where an id has none."""
    listed = None
    if read.has(VOCAB):
        # As the library tokenizers reads it: rows are counted by line feeds alone, and
        # white space at the end of lines is no part of a piece.
        lines = files.read_text(read.file(VOCAB)).split("\n")
        lines = lines if lines[-1] else lines[:-1]
        listed = _by_row(enumerate(map(str.rstrip, lines)))
    if not read.tokenizer:
        return listed
    path, model = read.file(TOKENIZER), entry(read.tokenizer, "model")
    ids = entry(model, "vocab")
    numbers = list(ids.values())
    if not all(type(n) is int and n >= 0 for n in numbers) or len(set(numbers)) != len(
        numbers
    ):
        raise UserError(f"{path}: two pieces have one id, or an id is no number")
    if max(numbers, default=0) >= 2 * len(numbers) + 1000:
        raise UserError(f"{path}: {len(numbers)} pieces have ids to {max(numbers)}")
    for name, value in (("continuing_subword_prefix", "##"), ("unk_token", "[UNK]")):
        if model.get(name, value) != value:
            raise UserError(f"{path}: {name} is {model[name]!r}, not {value!r}")
    by_row = _by_row((row, piece) for piece, row in ids.items())
    if listed is not None and [*map(str.rstrip, by_row)] != listed:
        raise UserError(
            f"{path}: has other pieces than {VOCAB}; remove the file that is not the "
            "model's"
        )
    return by_row


def _by_row(pieces: Iterable[tuple[int, str]]) -> list[str]:
    """Of equal pieces, the last one counts, as in transformers."""
    rows = {piece: row for row, piece in sorted(pieces)}
    by_row = [""] * (max(rows.values(), default=-1) + 1)
    for piece, row in rows.items():
        by_row[row] = piece
    return by_row


def _text_rules(read: _Folder, pieces: Sequence[str]) -> TextRules:
    """What the tokenizer does to text, as transformers reads the two files."""
    path = read.file(TOKENIZER_CONFIG)
    lower, accents, chinese = (read.config.get(name) for name in _BERT_RULES)
    has_upper = any(p != p.lower() for p in pieces if not p.startswith("["))
    if not read.tokenizer and lower is None and has_upper:
        raise UserError(
            f"{path}: does not say do_lower_case, but {VOCAB} has pieces in upper "
            "case, which transformers would never use; set do_lower_case there"
        )
    lower = True if lower is None else lower
    rules = TextRules(
        bool(lower),
        bool(lower if accents is None else accents),
        True if chinese is None else bool(chinese),
    )
    if not read.tokenizer:
        return rules
    stated = _rules_of_tokenizer(read)
    name = str(read.config.get("tokenizer_class") or _BERT[0]).removesuffix("Fast")
    if name in _BERT and stated != rules:
        # In this class, transformers 5 takes all from tokenizer_config.json.
        field, ours, theirs = next(
            row
            for row in zip(TextRules._fields, rules, stated, strict=True)
            if row[1] != row[2]
        )
        setting = {"lower": "do_lower_case", "chinese": "tokenize_chinese_chars"}
        raise UserError(
            f"{path}: {setting.get(field, field)} is {ours!r} for {name}, but "
            f"{theirs!r} in {TOKENIZER}; correct one of them"
        )
    for key in _BERT_RULES:
        index = _BERT_RULES.index(key)
        if key in read.config and rules[index] != stated[index]:
            raise UserError(
                f"{path}: {key} is {read.config[key]!r}, but {stated[index]!r} in "
                f"{TOKENIZER}; correct one of them"
            )
    return stated


def _rules_of_tokenizer(read: _Folder) -> TextRules:
    path = read.file(TOKENIZER)
    changes = list(steps(read.tokenizer.get("normalizer"), "normalizers"))
    cuts = list(steps(read.tokenizer.get("pre_tokenizer"), "pretokenizers"))
    kinds = [step.get("type") for step in (*changes, *cuts)]
    if kinds != ["BertNormalizer", "BertPreTokenizer"]:
        raise UserError(
            f"{path}: text passes {', '.join(map(str, kinds)) or 'nothing'}; known "
            "is BertNormalizer, BertPreTokenizer"
        )
    (change,) = changes
    if not change.get("clean_text", True):
        raise UserError(f"{path}: clean_text is false; control characters would stay")
    longest = entry(read.tokenizer, "model").get("max_input_chars_per_word")
    longest = _LONGEST_WORD if longest is None else longest
    if type(longest) is not int or not 0 < longest <= 10_000:
        raise UserError(f"{path}: max_input_chars_per_word is {quoted(str(longest))}")
    lower, accents = bool(change.get("lowercase", True)), change.get("strip_accents")
    return TextRules(
        lower,
        lower if accents is None else bool(accents),
        bool(change.get("handle_chinese_chars", True)),
        longest,
    )


def _check_special(
    read: _Folder, roles: Sequence[int], special: set[int], ids: Mapping[str, int]
) -> None:
    """Refuses other special pieces, and pieces beyond the vocabulary.

    `roles` are the ids of the special pieces in the order of `ROLES`, `special` those
    of pieces that text never becomes, and `ids` of all pieces.
    """
    maps = {
        TOKENIZER_CONFIG: read.config,
        SPECIAL_TOKENS: read_object(read.path, SPECIAL_TOKENS),
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
                    f"{read.file(name)}: {role} is {quoted(piece)}, which is not piece "
                    f"{index} of the vocabulary"
                )
    for source, piece, index in _added(read, maps):
        known = ids.get(piece)
        if known is None and piece in (*PAD, *UNKNOWN) and index is None:
            continue
        if known is None or index not in (None, known) or known not in special:
            raise UserError(
                f"{read.file(source)}: adds the token {quoted(piece)} to the "
                "vocabulary, which transformers finds in text before it cuts words; "
                "no text is cut so here"
            )


def _added(read: _Folder, maps) -> Iterator[tuple[str, str, Any]]:
    """(file, piece, id) of the tokens that are found in text; None where unknown."""
    for token in items(read.tokenizer.get("added_tokens")):
        yield TOKENIZER, _content(token) or "", entry({"": token}, "").get("id")
    for piece, index in read_object(read.path, ADDED_TOKENS).items():
        yield ADDED_TOKENS, piece, index
    for index, token in entry(read.config, "added_tokens_decoder").items():
        number = int(index) if re.fullmatch("[0-9]{1,9}", index) else -1
        yield TOKENIZER_CONFIG, _content(token) or "", number
    for name, content in maps.items():
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = content.get(key)
            tokens = tokens.values() if isinstance(tokens, dict) else items(tokens)
            for token in tokens:
                yield name, _content(token) or "", None


def _check_unigram(
    read: _Folder,
    pieces: Sequence[Piece] | None,
    unknown: int,
    byte_fallback: bool,
    source: str,
) -> None:
    """Refuses a tokenizer.json with other pieces, or another treatment of unknown ones,
    than `source`."""
    path, model = read.file(TOKENIZER), entry(read.tokenizer, "model")
    listed = list(items(model.get("vocab")))
    if pieces is not None and len(listed) != len(pieces):
        raise UserError(
            f"{path}: has {len(listed)} pieces, {source} has {len(pieces)}; it is "
            "another vocabulary"
        )
    for index, (row, piece) in enumerate(zip(listed, pieces or (), strict=False)):
        text, score = _row(row)
        # transformers does not change the scores of user-defined pieces.
        known = [piece.score]
        if piece.type == USER_DEFINED:
            known.append(USER_DEFINED_SCORE)
        if text != piece.text or not any(
            math.isclose(score, value, rel_tol=1e-5, abs_tol=1e-6) for value in known
        ):
            raise UserError(
                f"{path}: piece {index} is {quoted(repr(row))}, in {source} "
                f"{[piece.text, known[-1]]}; it is another vocabulary"
            )
    for name, value in (("unk_id", unknown), ("byte_fallback", byte_fallback)):
        if model.get(name, False) != value:
            raise UserError(
                f"{path}: {name} is {model.get(name)!r}, in {source} {value!r}"
            )


def _check_pipeline(read: _Folder, source: str) -> bytes:
    """Refuses steps that `source` does not say; returns the table of characters."""
    path = read.file(TOKENIZER)
    name = os.path.basename(source)
    maps, quotes, prepends = [], False, False
    for step in steps(read.tokenizer.get("normalizer"), "normalizers"):
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
                f"{path}: text passes {quoted(str(kind))}, which {name} does not say; "
                "text is not changed in this way here"
            )
    for step in steps(read.tokenizer.get("pre_tokenizer"), "pretokenizers"):
        kind = step.get("type")
        if kind == "Metaspace" and step.get("replacement", MARK) == MARK:
            # Older files have the second name.
            always = "always" if step.get("add_prefix_space", True) else "never"
            prepends |= step.get("prepend_scheme", always) != "never"
        elif kind != "WhitespaceSplit":
            raise UserError(
                f"{path}: text is cut by {quoted(str(kind))}, which {name} does not say"
            )
    if not prepends:
        raise UserError(f"{path}: adds no space before a text, unlike {name}")
    if quotes:
        read.notes.append(
            f"{TOKENIZER} makes `` and '' a quotation mark, as transformers does for "
            f"RemBERT; {name} does not, and is used"
        )
    try:
        return b"".join(base64.b64decode(part, validate=True) for part in maps)
    except (binascii.Error, ValueError, TypeError) as error:
        raise UserError(f"{path}: precompiled_charsmap is damaged") from error


def _check_ends(
    read: _Folder,
    names: Sequence[str],
    ids: Sequence[int],
    separators: int,
    second_type: int,
) -> None:
    """Refuses other special pieces around texts, and padding or cuts at the start.

    `names` and `ids` are those of [CLS] and [SEP].
    """
    path = read.file(TOKENIZER)
    for name in ("padding", "truncation"):
        direction = entry(read.tokenizer, name).get("direction", "Right")
        if str(direction).lower() != "right":
            raise UserError(f"{path}: {name} is on the left; here it is on the right")
    ends = list(steps(read.tokenizer.get("post_processor"), "processors"))
    end = ends[0] if len(ends) == 1 else {}
    ready_made = "BertProcessing" if second_type else "RobertaProcessing"
    if end.get("type") == ready_made:
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


def _row(row: Any) -> tuple[str | None, float]:
    """Text and score of a piece of tokenizer.json; None if damaged."""
    if isinstance(row, list) and len(row) == 2 and isinstance(row[0], str):
        if type(row[1]) in (int, float):
            return row[0], float(row[1])
    return None, math.nan


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
