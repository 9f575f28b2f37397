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

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from decoupled.core import files
from decoupled.core.errors import UserError, quoted
from decoupled.data.sentencepiece_file import (
    CONTROL,
    NORMAL,
    PAD,
    UNIGRAM,
    UNKNOWN_TYPE,
    USER_DEFINED,
    Piece,
    make_model,
    read_pieces,
    read_settings,
)
from decoupled.data.tokenizer_checks import (
    BERT_CLASSES,
    BERT_RULES,
    SENTENCEPIECE_FILE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCAB,
    XLM_R_FILE,
    Folder,
    check_config,
    check_ends,
    check_pipeline,
    check_special,
    check_unigram,
    entry,
    flag,
    items,
    piece_row,
    read_object,
    steps,
)

# Files that stand for their whole folder.
FILES = (VOCAB, TOKENIZER, XLM_R_FILE)

# The special pieces of WordPiece and XLM-R, in the order of `ROLES`.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
XLM_R_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
XLM_R_FIRST = ("<s>", "<pad>", "</s>", "<unk>")

WORDPIECE_FORMAT = "decoupled-wordpiece-1"
_LONGEST_WORD = 100
# Bytes of a piece, in FastWordpieceTokenizer.
_LONGEST_PIECE = 256


class TextRules(NamedTuple):
    """What BERT's tokenizer does to text before it cuts words.

    lower: it is lower-cased. strip_accents: marks on letters are removed. chinese: each
    Chinese character is a word. longest_word: longer words, in characters, are unknown.
    """

    lower: bool
    strip_accents: bool
    chinese: bool = True
    longest_word: int = _LONGEST_WORD


def read_tokenizer(
    folder: str, notes: list[str], model: str | None = None
) -> tuple[str, bytes]:
    """The file that the vocabulary comes from, and the content of a run's file.

    `notes` gets what the user should know. `model` is a sentencepiece.model, if the
    folder has none.
    """
    content = read_object(folder, TOKENIZER), read_object(folder, TOKENIZER_CONFIG)
    read = Folder(folder, *content, notes)
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
    check_config(read, kind)
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
    """The pieces by id ("" without one) and the rules of a wordpiece.json."""
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


def _kind(read: Folder) -> str | None:
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
    first = [piece_row(row)[0] for row in list(items(model.get("vocab")))[:4]]
    # A sentencepiece.model may have XLM-R's first pieces, and others that XLM-R lacks.
    is_other = read.has(SENTENCEPIECE_FILE) and not read.has(XLM_R_FILE)
    is_xlm_r = first == list(XLM_R_FIRST) and not is_other
    return XLM_R_FILE if is_xlm_r else SENTENCEPIECE_FILE


def _sentencepiece(read: Folder, model: str | None) -> tuple[str, bytes]:
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
    pieces = read_pieces(content, path)
    ids = {piece.text: index for index, piece in enumerate(pieces)}
    unknown = [i for i, piece in enumerate(pieces) if piece.type == UNKNOWN_TYPE]
    pads = [ids[name] for name in PAD if name in ids]
    # As `SentencePiece` chooses.
    like_xlm_r = SPECIAL[2] not in ids and set(XLM_R_SPECIAL[2:]) <= set(ids)
    names = (XLM_R_SPECIAL if like_xlm_r else SPECIAL)[2:]
    if not (pads and unknown) or not set(names) <= set(ids):
        # Whoever opens it says what is missing.
        return path, content
    roles = [pads[0], unknown[0], *(ids[name] for name in names)]
    types = (CONTROL, USER_DEFINED, UNKNOWN_TYPE)
    special = {i for i, piece in enumerate(pieces) if piece.type in types}
    check_special(read, roles, {*roles, *special}, ids)
    if read.tokenizer:
        settings = read_settings(content, path)
        check_unigram(read, pieces, roles[1], settings.byte_fallback, path)
        if check_pipeline(read, path, settings.remove_whitespace) != settings.charsmap:
            raise UserError(
                f"{read.file(TOKENIZER)}: normalises characters in another way than "
                f"{path}"
            )
        separators, second_type = (2, 0) if like_xlm_r else (1, 1)
        check_ends(read, names[:2], roles[2:4], separators, second_type)
    return path, content


def _xlm_r(read: Folder) -> tuple[str, bytes]:
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
        rows = [
            piece_row(row) for row in items(entry(read.tokenizer, "model").get("vocab"))
        ]
        if [*(text for text, _ in rows[:4]), rows[-1][0]] != [*XLM_R_FIRST, "<mask>"]:
            raise UserError(
                f"{path}: its pieces are not {', '.join(XLM_R_FIRST)} at the "
                "beginning and <mask> at the end, as XLM-R's are"
            )
        damaged = [i for i, (text, _) in enumerate(rows) if text is None]
        if damaged:
            raise UserError(f"{path}: piece {damaged[0]} is damaged")
        pieces = [Piece(text, score, NORMAL) for text, score in rows[4:-1]]
        check_unigram(read, None, XLM_R_FIRST.index("<unk>"), False, path)
        made = _xlm_r_model(pieces, check_pipeline(read, XLM_R_FILE))
        if content and made != content:
            raise UserError(
                f"{path}: has other pieces, scores or normalisation than {XLM_R_FILE}; "
                "remove the file that is not the model's"
            )
        check_ends(read, XLM_R_SPECIAL[2:4], (0, 2), 2, 0)
        content = made
    pieces = read_pieces(content, path)
    ids = {piece.text: index for index, piece in enumerate(pieces)}
    roles = [ids[name] for name in XLM_R_SPECIAL]
    check_special(read, roles, set(roles), ids)
    return path, content


def _xlm_r_model(pieces: Sequence[Piece], charsmap: bytes) -> bytes:
    types = {"<unk>": UNKNOWN_TYPE}
    first = [Piece(name, 0.0, types.get(name, CONTROL)) for name in XLM_R_FIRST]
    mask = Piece("<mask>", 0.0, CONTROL)
    return make_model([*first, *pieces, mask], charsmap, unknown=3, pad=1)


def _wordpiece(read: Folder) -> tuple[str, bytes]:
    path = read.file(TOKENIZER if read.tokenizer else VOCAB)
    pieces = _wordpieces(read)
    ids = {piece: row for row, piece in enumerate(pieces)}
    for name in SPECIAL:
        if name not in ids:
            raise UserError(f"{path}: has no piece {name}")
    roles = [ids[name] for name in SPECIAL]
    check_special(read, roles, set(roles), ids)
    rules = _text_rules(read, pieces)
    if read.tokenizer:
        check_ends(read, SPECIAL[2:4], roles[2:4], 1, 1)
    return path, make_wordpieces(pieces, rules)


def _wordpieces(read: Folder) -> list[str]:
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
    # Rows without a piece are empty lines; tokenizer.json does not have the last ones.
    while listed and not listed[-1]:
        listed.pop()
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


def _text_rules(read: Folder, pieces: Sequence[str]) -> TextRules:
    """What the tokenizer does to text, as transformers reads the two files."""
    path = read.file(TOKENIZER_CONFIG)
    lower, accents, chinese = (flag(read.config, name, path) for name in BERT_RULES)
    has_upper = any(p != p.lower() for p in pieces if not p.startswith("["))
    if not read.tokenizer and lower is None and has_upper:
        raise UserError(
            f"{path}: does not say do_lower_case, but {VOCAB} has pieces in upper "
            "case, which transformers would never use; set do_lower_case there"
        )
    lower = True if lower is None else lower
    rules = TextRules(
        lower,
        lower if accents is None else accents,
        True if chinese is None else chinese,
    )
    if not read.tokenizer:
        return rules
    stated = _rules_of_tokenizer(read)
    name = str(read.config.get("tokenizer_class") or BERT_CLASSES[0]).removesuffix(
        "Fast"
    )
    for setting, ours, theirs in zip(
        (*BERT_RULES, "longest_word"), rules, stated, strict=True
    ):
        # In these classes, transformers 5 takes all from tokenizer_config.json.
        is_used = name in BERT_CLASSES or setting in read.config
        if is_used and ours != theirs:
            raise UserError(
                f"{path}: {setting} is {ours!r} for {name}, but {theirs!r} in "
                f"{TOKENIZER}; correct one of them"
            )
    return stated


def _rules_of_tokenizer(read: Folder) -> TextRules:
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
    clean, lower, accents, chinese = (
        flag(change, name, path)
        for name in ("clean_text", "lowercase", "strip_accents", "handle_chinese_chars")
    )
    if clean is False:
        raise UserError(f"{path}: clean_text is false; control characters would stay")
    longest = entry(read.tokenizer, "model").get("max_input_chars_per_word")
    longest = _LONGEST_WORD if longest is None else longest
    if type(longest) is not int or not 0 < longest <= 10_000:
        raise UserError(f"{path}: max_input_chars_per_word is {quoted(str(longest))}")
    lower = True if lower is None else lower
    return TextRules(
        lower,
        lower if accents is None else accents,
        True if chinese is None else chinese,
        longest,
    )
