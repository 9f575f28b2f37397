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
    path: str, notes: list[str], model: str | None = None
) -> tuple[str, bytes]:
    """The file that the vocabulary comes from, and the content of a run's file.

    `notes` gets what the user should know. `model` is a sentencepiece.model, if the
    folder has none.
    """
    content = read_object(path, TOKENIZER), read_object(path, TOKENIZER_CONFIG)
    folder = Folder(path, *content, notes)
    kinds = [
        name
        for name in (SENTENCEPIECE_FILE, XLM_R_FILE, VOCAB)
        if folder.has(name) or name == _kind(folder)
    ]
    if len(kinds) > 1:
        raise UserError(
            f"{path}: has the vocabulary of two tokenizers, {' and '.join(kinds)}; "
            "remove the files of the one that is not the model's"
        )
    if not kinds:
        bpe = folder.has("merges.txt") and " (byte-level BPE, merges.txt, is not known)"
        raise UserError(
            f"{path}: has no {SENTENCEPIECE_FILE}, {XLM_R_FILE}, {VOCAB} or "
            f"{TOKENIZER}, so nothing says which row of the embeddings belongs to "
            f"which piece{bpe or ''}; copy the model's own file into it"
        )
    (kind,) = kinds
    if model and kind != SENTENCEPIECE_FILE:
        raise UserError(
            f"--vocabulary: {path} has its own tokenizer ({kind}), which the model "
            "keeps; for other pieces use decoupled convert vocabulary afterwards"
        )
    check_config(folder, kind)
    try:
        if kind == SENTENCEPIECE_FILE:
            return _sentencepiece(folder, model)
        return _xlm_r(folder) if kind == XLM_R_FILE else _wordpiece(folder)
    except UnicodeEncodeError as error:
        raise UserError(f"{folder.file(TOKENIZER)}: a piece is not UTF-8") from error


def make_wordpieces(pieces: Sequence[str], rules: TextRules) -> bytes:
    """The content of a wordpiece.json."""
    fields = {"format": WORDPIECE_FORMAT, **rules._asdict(), "pieces": pieces}
    return (json.dumps(fields, ensure_ascii=False, indent=0) + "\n").encode("utf-8")


def read_wordpieces(content: bytes, path: str) -> tuple[list[str], TextRules]:
    """The pieces by id ("" without one) and the rules of a wordpiece.json."""
    try:
        fields = files.parse_json(content)
        if fields["format"] != WORDPIECE_FORMAT:
            raise ValueError(f"format is not {WORDPIECE_FORMAT!r}")
        rules = TextRules(*(fields[name] for name in TextRules._fields))
        pieces = fields["pieces"]
        types = [bool, bool, bool, int]
        if [*map(type, rules)] != types or not 0 < rules.longest_word <= 10_000:
            raise ValueError("a rule is of another type")
        if not all(type(piece) is str for piece in pieces):
            raise ValueError("a piece is no text")
        if any(len(piece.encode()) > _LONGEST_PIECE for piece in pieces):
            raise ValueError(f"a piece has more than {_LONGEST_PIECE} bytes")
        names = list(filter(None, pieces))
        if len(set(names)) != len(names) or not set(SPECIAL) <= set(names):
            raise ValueError("a piece occurs twice, or a special piece is missing")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not a vocabulary of WordPieces ({files.reason(error)})"
        ) from error
    return pieces, rules


def _kind(folder: Folder) -> str | None:
    """The file that says the same as tokenizer.json; None without one."""
    if not folder.tokenizer:
        return None
    model = entry(folder.tokenizer, "model")
    # Early files do not name the type.
    is_wordpiece = "continuing_subword_prefix" in model and "merges" not in model
    kind = model.get("type", "WordPiece" if is_wordpiece else None)
    if kind == "WordPiece":
        return VOCAB
    if kind != "Unigram":
        raise UserError(
            f"{folder.file(TOKENIZER)}: its model is of type {quoted(str(kind))}; "
            "known are Unigram and WordPiece"
        )
    first_pieces = [piece_row(row)[0] for row in list(items(model.get("vocab")))[:4]]
    # A sentencepiece.model may have XLM-R's first pieces, and others that XLM-R lacks.
    is_other = folder.has(SENTENCEPIECE_FILE) and not folder.has(XLM_R_FILE)
    is_xlm_r = first_pieces == list(XLM_R_FIRST) and not is_other
    return XLM_R_FILE if is_xlm_r else SENTENCEPIECE_FILE


def _sentencepiece(folder: Folder, model: str | None) -> tuple[str, bytes]:
    own_path = folder.file(SENTENCEPIECE_FILE)
    has_model = folder.has(SENTENCEPIECE_FILE)
    if not model and not has_model:
        raise UserError(
            f"{folder.path}: has {TOKENIZER} but no {SENTENCEPIECE_FILE}; name the "
            f"{SENTENCEPIECE_FILE} that it was made from with --vocabulary"
        )
    path = model or own_path
    content = files.read_bytes(path)
    if model and has_model and content != files.read_bytes(own_path):
        raise UserError(
            f"--vocabulary: {model} is not {own_path}; the folder's own is used"
        )
    pieces = read_pieces(content, path)
    ids = {piece.text: index for index, piece in enumerate(pieces)}
    unknown_ids = [i for i, piece in enumerate(pieces) if piece.type == UNKNOWN_TYPE]
    pad_ids = [ids[name] for name in PAD if name in ids]
    # As `SentencePiece` chooses.
    is_xlm_r = SPECIAL[2] not in ids and set(XLM_R_SPECIAL[2:]) <= set(ids)
    names = (XLM_R_SPECIAL if is_xlm_r else SPECIAL)[2:]
    if not (pad_ids and unknown_ids) or not set(names) <= set(ids):
        # Whoever opens it says what is missing.
        return path, content
    roles = [pad_ids[0], unknown_ids[0], *(ids[name] for name in names)]
    types = (CONTROL, USER_DEFINED, UNKNOWN_TYPE)
    special_ids = {i for i, piece in enumerate(pieces) if piece.type in types}
    check_special(folder, roles, {*roles, *special_ids}, ids)
    if folder.tokenizer:
        settings = read_settings(content, path)
        check_unigram(folder, pieces, roles[1], settings.byte_fallback, path)
        charsmap = check_pipeline(folder, path, settings.remove_whitespace)
        if charsmap != settings.charsmap:
            raise UserError(
                f"{folder.file(TOKENIZER)}: normalises characters in another way than "
                f"{path}"
            )
        separators, second_type = (2, 0) if is_xlm_r else (1, 1)
        check_ends(folder, names[:2], roles[2:4], separators, second_type)
    return path, content


def _xlm_r(folder: Folder) -> tuple[str, bytes]:
    path, content = folder.file(XLM_R_FILE), b""
    if folder.has(XLM_R_FILE):
        model = files.read_bytes(path)
        settings, pieces = read_settings(model, path), read_pieces(model, path)
        names = ["<unk>", "<s>", "</s>"]
        normal_pieces = pieces[3:]
        for is_refused, reason in (
            ([piece.text for piece in pieces[:3]] != names, "does not begin with "
             f"{', '.join(names)}, as XLM-R's do"),
            (settings.model_type != UNIGRAM, "is not a unigram model"),
            (settings.byte_fallback, "has byte_fallback"),
            (not settings.remove_whitespace, "keeps repeated spaces"),
            (any(p.type != NORMAL for p in normal_pieces),
             "has special pieces of its own"),
        ):  # fmt: skip
            if is_refused:
                raise UserError(f"{path}: {reason}")
        content = _xlm_r_model(normal_pieces, settings.charsmap)
    if folder.tokenizer:
        path = folder.file(TOKENIZER)
        vocab = entry(folder.tokenizer, "model").get("vocab")
        rows = [piece_row(row) for row in items(vocab)]
        if [*(text for text, _ in rows[:4]), rows[-1][0]] != [*XLM_R_FIRST, "<mask>"]:
            raise UserError(
                f"{path}: its pieces are not {', '.join(XLM_R_FIRST)} at the "
                "beginning and <mask> at the end, as XLM-R's are"
            )
        damaged_rows = [i for i, (text, _) in enumerate(rows) if text is None]
        if damaged_rows:
            raise UserError(f"{path}: piece {damaged_rows[0]} is damaged")
        pieces = [Piece(text, score, NORMAL) for text, score in rows[4:-1]]
        check_unigram(folder, None, XLM_R_FIRST.index("<unk>"), False, path)
        json_model = _xlm_r_model(pieces, check_pipeline(folder, XLM_R_FILE))
        if content and json_model != content:
            raise UserError(
                f"{path}: has other pieces, scores or normalisation than {XLM_R_FILE}; "
                "remove the file that is not the model's"
            )
        check_ends(folder, XLM_R_SPECIAL[2:4], (0, 2), 2, 0)
        content = json_model
    pieces = read_pieces(content, path)
    ids = {piece.text: index for index, piece in enumerate(pieces)}
    roles = [ids[name] for name in XLM_R_SPECIAL]
    check_special(folder, roles, set(roles), ids)
    return path, content


def _xlm_r_model(pieces: Sequence[Piece], charsmap: bytes) -> bytes:
    types = {"<unk>": UNKNOWN_TYPE}
    first_pieces = [Piece(name, 0.0, types.get(name, CONTROL)) for name in XLM_R_FIRST]
    mask = Piece("<mask>", 0.0, CONTROL)
    return make_model([*first_pieces, *pieces, mask], charsmap, unknown=3, pad=1)


def _wordpiece(folder: Folder) -> tuple[str, bytes]:
    path = folder.file(TOKENIZER if folder.tokenizer else VOCAB)
    pieces = _wordpieces(folder)
    ids = {piece: row for row, piece in enumerate(pieces)}
    for name in SPECIAL:
        if name not in ids:
            raise UserError(f"{path}: has no piece {name}")
    roles = [ids[name] for name in SPECIAL]
    check_special(folder, roles, set(roles), ids)
    rules = _text_rules(folder, pieces)
    if folder.tokenizer:
        check_ends(folder, SPECIAL[2:4], roles[2:4], 1, 1)
    return path, make_wordpieces(pieces, rules)


def _wordpieces(folder: Folder) -> list[str]:
    """The pieces by id, "" where an id has none."""
    vocab_pieces = None
    if folder.has(VOCAB):
        # As the library tokenizers reads it: rows are counted by line feeds alone, and
        # white space at the end of lines is no part of a piece.
        lines = files.read_text(folder.file(VOCAB)).split("\n")
        lines = lines if lines[-1] else lines[:-1]
        vocab_pieces = _by_row(enumerate(map(str.rstrip, lines)))
    if not folder.tokenizer:
        return vocab_pieces
    path, model = folder.file(TOKENIZER), entry(folder.tokenizer, "model")
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
    pieces = _by_row((row, piece) for piece, row in ids.items())
    # Rows without a piece are empty lines; tokenizer.json does not have the last ones.
    while vocab_pieces and not vocab_pieces[-1]:
        vocab_pieces.pop()
    if vocab_pieces is not None and [*map(str.rstrip, pieces)] != vocab_pieces:
        raise UserError(
            f"{path}: has other pieces than {VOCAB}; remove the file that is not the "
            "model's"
        )
    return pieces


def _by_row(pieces: Iterable[tuple[int, str]]) -> list[str]:
    """Of equal pieces, the last one counts, as in transformers."""
    rows = {piece: row for row, piece in sorted(pieces)}
    pieces_by_id = [""] * (max(rows.values(), default=-1) + 1)
    for piece, row in rows.items():
        pieces_by_id[row] = piece
    return pieces_by_id


def _text_rules(folder: Folder, pieces: Sequence[str]) -> TextRules:
    """What the tokenizer does to text, as transformers reads the two files."""
    path = folder.file(TOKENIZER_CONFIG)
    lower, accents, chinese = (flag(folder.config, name, path) for name in BERT_RULES)
    has_upper = any(p != p.lower() for p in pieces if not p.startswith("["))
    if not folder.tokenizer and lower is None and has_upper:
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
    if not folder.tokenizer:
        return rules
    tokenizer_rules = _rules_of_tokenizer(folder)
    name = str(folder.config.get("tokenizer_class") or BERT_CLASSES[0]).removesuffix(
        "Fast"
    )
    for setting, value, other_value in zip(
        (*BERT_RULES, "longest_word"), rules, tokenizer_rules, strict=True
    ):
        # In these classes, transformers 5 takes all from tokenizer_config.json.
        is_used = name in BERT_CLASSES or setting in folder.config
        if is_used and value != other_value:
            raise UserError(
                f"{path}: {setting} is {value!r} for {name}, but {other_value!r} in "
                f"{TOKENIZER}; correct one of them"
            )
    return tokenizer_rules


def _rules_of_tokenizer(folder: Folder) -> TextRules:
    path = folder.file(TOKENIZER)
    changes = list(steps(folder.tokenizer.get("normalizer"), "normalizers"))
    cuts = list(steps(folder.tokenizer.get("pre_tokenizer"), "pretokenizers"))
    kinds = [step.get("type") for step in (*changes, *cuts)]
    if kinds != ["BertNormalizer", "BertPreTokenizer"]:
        raise UserError(
            f"{path}: text passes {', '.join(map(str, kinds)) or 'nothing'}; known "
            "is BertNormalizer, BertPreTokenizer"
        )
    (change,) = changes
    cleans_text, lower, accents, chinese = (
        flag(change, name, path)
        for name in ("clean_text", "lowercase", "strip_accents", "handle_chinese_chars")
    )
    if cleans_text is False:
        raise UserError(f"{path}: clean_text is false; control characters would stay")
    limit = entry(folder.tokenizer, "model").get("max_input_chars_per_word")
    limit = _LONGEST_WORD if limit is None else limit
    if type(limit) is not int or not 0 < limit <= 10_000:
        raise UserError(f"{path}: max_input_chars_per_word is {quoted(str(limit))}")
    lower = True if lower is None else lower
    return TextRules(
        lower,
        lower if accents is None else accents,
        True if chinese is None else chinese,
        limit,
    )
