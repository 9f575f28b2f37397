"""The vocabulary of a folder of transformers, and what its tokenizer does to text.

A row of the embeddings belongs to a piece only by its number. The pieces are therefore
those of the folder: of sentencepiece.model, or of BERT's WordPieces in vocab.txt or
tokenizer.json. A vocabulary from elsewhere cannot be checked against the weights.

Our text pipeline does what sentencepiece.model says, puts [CLS] and [SEP] around texts,
and pads and cuts them at the end. A tokenizer that does anything else to text is
refused: the converted model would get other inputs than the model was trained with.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from decoupled.configs.finetuning import CLASSIFICATION, QUESTION_ANSWERING
from decoupled.core import files
from decoupled.core.errors import UserError, quoted
from decoupled.data.vocabulary import FILE_NAME, PAD, UNKNOWN, Vocabulary
from decoupled.exports.interop.huggingface_config import CONFIG, HuggingFaceModel
from decoupled.exports.interop.tokenizer_json import (
    SPECIAL_TOKENS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_ends,
    check_unigram,
    entry,
    items,
    steps,
)
from decoupled.exports.interop.wordpiece_rows import (
    SPECIAL,
    TextRules,
    WordPieceRows,
    seems_lower,
)

WORDPIECE = "vocab.txt"
ADDED_TOKENS = "added_tokens.json"

# Classes of tokenizers that read vocab.txt or sentencepiece.model as described here.
_CLASSES = ("BertTokenizer", "RemBertTokenizer", "PreTrainedTokenizer")
# transformers' names of the special pieces.
_ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
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


def open_vocabulary(
    folder: str, vocabulary: str | None, described: HuggingFaceModel, notes: list[str]
) -> tuple[Vocabulary, WordPieceRows | None]:
    """The vocabulary; and the conversion of rows of WordPieces to its rows, or None.

    What the user should know is added to `notes`.

    Raises:
      UserError: the folder has no vocabulary, `given` is another one, it does not fit
        the model, or the tokenizer does something else to text than we do.
    """
    if files.exists(os.path.join(folder, "adapter_config.json")):
        raise UserError(
            f"{folder}: has an adapter (adapter_config.json), which transformers adds "
            "to the weights; merge it (merge_and_unload) and save the model again"
        )
    _note_modules(folder, notes)
    tokenizer = _object(folder, TOKENIZER)
    kind = entry(tokenizer, "model").get("type")
    kinds = {"Unigram": FILE_NAME, "WordPiece": WORDPIECE}
    if tokenizer and kind not in list(kinds):
        raise UserError(
            f"{folder}/{TOKENIZER}: its model is of type {kind!r}; known are "
            f"{', '.join(kinds)}"
        )
    present = [
        name
        for its_kind, name in kinds.items()
        if kind == its_kind or files.exists(os.path.join(folder, name))
    ]
    if not present:
        raise UserError(
            f"{folder}: has no {FILE_NAME}, {WORDPIECE} or {TOKENIZER}, so nothing "
            "says which row of the embeddings belongs to which piece; copy the "
            "model's own file into it"
        )
    if len(present) > 1:
        raise UserError(
            f"{folder}: has the vocabulary of two tokenizers, SentencePiece and "
            "WordPiece; remove the files of the one that is not the model's"
        )
    if present == [WORDPIECE]:
        return _wordpieces(folder, vocabulary, tokenizer, described, notes)
    return _sentencepieces(folder, vocabulary, tokenizer, described, notes), None


def unused_rows(pieces: int, rows: int) -> str:
    """What the user should know of a vocabulary that is smaller than the model's."""
    return f"{pieces:,} pieces, {rows:,} rows of embeddings: no text uses the last rows"


def _sentencepieces(folder, vocabulary_path, tokenizer, described, notes) -> Vocabulary:
    beside, path = os.path.join(folder, FILE_NAME), os.path.join(folder, TOKENIZER)
    if not vocabulary_path and not files.exists(beside):
        raise UserError(
            f"{folder}: has {TOKENIZER} but no {FILE_NAME}; name the {FILE_NAME} that "
            "it was made from with --vocabulary"
        )
    vocabulary = Vocabulary(vocabulary_path or beside)
    if vocabulary_path and files.exists(beside):
        if vocabulary.fingerprint != Vocabulary(beside).fingerprint:
            raise UserError(
                f"--vocabulary: {vocabulary_path} is not {beside}; "
                "the folder's own is used"
            )
    rows = described.model.vocab_size
    if vocabulary.size > rows:
        raise UserError(
            f"{vocabulary.path}: {vocabulary.size} pieces, but {CONFIG} says "
            f"vocab_size {rows}; it is another vocabulary"
        )
    if vocabulary.size < rows:
        notes.append(unused_rows(vocabulary.size, rows))
    if tokenizer:
        check_unigram(path, tokenizer, vocabulary, notes)

    def id_of(piece: str) -> int | None:
        index = vocabulary.piece_to_id(piece)
        return index if vocabulary.id_to_piece(index) == piece else None

    ids = (
        vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id,
        vocabulary.mask_id,
    )  # fmt: skip
    roles = dict(zip(_ROLES, ids, strict=True))
    special = {
        *vocabulary.special_ids,
        *vocabulary.user_defined_ids,
        vocabulary.unk_id,
    }
    config = _check_special(folder, tokenizer, roles, special, id_of)
    for name in ("do_lower_case", "strip_accents"):
        if config.get(name):
            raise UserError(
                f"{folder}/{TOKENIZER_CONFIG}: {name} is {config[name]!r}, but text "
                f"is only normalised as {FILE_NAME} says"
            )
    _check_rest(folder, config, described, roles, vocabulary.size, notes)
    return vocabulary


def _wordpieces(folder, vocabulary_path, tokenizer, described, notes):
    ids = _wordpiece_ids(folder, tokenizer)
    path = os.path.join(folder, TOKENIZER if tokenizer else WORDPIECE)
    rows = described.model.vocab_size
    count = max(ids.values(), default=-1) + 1
    if count != rows:
        raise UserError(f"{path}: {count} pieces, but the model has {rows} rows")
    for piece in SPECIAL:
        if piece not in ids:
            raise UserError(f"{path}: has no piece {piece}")
    roles = dict(zip(_ROLES, (ids[piece] for piece in SPECIAL), strict=True))
    config = _check_special(folder, tokenizer, roles, {*roles.values()}, ids.get)
    _check_rest(folder, config, described, roles, 0, notes)
    rules = _text_rules(folder, tokenizer, config, ids)
    if not vocabulary_path:
        raise UserError(
            f"{folder}: has only WordPieces; name the vocabulary of your data with "
            f"--vocabulary={FILE_NAME}"
        )
    vocabulary = Vocabulary(vocabulary_path)
    return vocabulary, WordPieceRows(ids, rules, vocabulary)


def _wordpiece_ids(folder, tokenizer) -> dict[str, int]:
    """WordPiece -> row, as transformers counts them."""
    path = os.path.join(folder, WORDPIECE)
    listed = None
    if files.exists(path):
        # Rows are counted by line feeds alone: U+2028 and others are pieces of BERT. Of
        # equal lines the last one counts, and an empty line is a piece, too.
        lines = files.read_text(path).split("\n")
        lines = lines if lines[-1] else lines[:-1]
        listed = _trimmed(enumerate(lines))
    if not tokenizer:
        return listed
    path = os.path.join(folder, TOKENIZER)
    model = entry(tokenizer, "model")
    ids = entry(model, "vocab")
    numbers = list(ids.values())
    if not all(type(n) is int and n >= 0 for n in numbers) or len(set(numbers)) != len(
        numbers
    ):
        raise UserError(f"{path}: two pieces have one id, or an id is no number")
    for name, value in (("continuing_subword_prefix", "##"), ("unk_token", "[UNK]")):
        if model.get(name, value) != value:
            raise UserError(f"{path}: {name} is {model[name]!r}, not {value!r}")
    by_row = sorted((row, piece) for piece, row in ids.items())
    if listed is not None and listed != _trimmed(by_row):
        raise UserError(
            f"{path}: has other pieces than {WORDPIECE}; remove the file that is not "
            "the model's"
        )
    return ids


def _trimmed(pieces: Iterable[tuple[int, str]]) -> dict[str, int]:
    """Piece -> row, without the white space at the end of lines, as transformers."""
    return {piece.rstrip(): row for row, piece in pieces}


def _text_rules(folder, tokenizer, config, ids) -> TextRules:
    """What the tokenizer does to text, by its files; else by the look of its pieces."""
    lower = config.get("do_lower_case")
    accents, chinese = (config.get(name) for name in _BERT_RULES[1:])
    if tokenizer:
        path = os.path.join(folder, TOKENIZER)
        changes = list(steps(tokenizer.get("normalizer"), "normalizers"))
        cuts = list(steps(tokenizer.get("pre_tokenizer"), "pretokenizers"))
        kinds = [step.get("type") for step in (*changes, *cuts)]
        if kinds != ["BertNormalizer", "BertPreTokenizer"]:
            raise UserError(
                f"{path}: text passes {', '.join(map(str, kinds)) or 'nothing'}; known "
                "is BertNormalizer, BertPreTokenizer"
            )
        settings = {
            "do_lower_case": changes[0].get("lowercase", True),
            "strip_accents": changes[0].get("strip_accents"),
            "tokenize_chinese_chars": changes[0].get("handle_chinese_chars", True),
        }
        for name, value in settings.items():
            if config.get(name, value) != value:
                raise UserError(
                    f"{folder}/{TOKENIZER_CONFIG}: {name} is {config[name]!r}, but "
                    f"{value!r} in {TOKENIZER}; correct one of them"
                )
        lower, accents, chinese = settings.values()
        check_ends(path, tokenizer, ids["[CLS]"], ids["[SEP]"])
    lower = seems_lower(ids) if lower is None else bool(lower)
    return TextRules(
        lower,
        lower if accents is None else bool(accents),
        True if chinese is None else bool(chinese),
    )


def _check_special(
    folder: str,
    tokenizer: Mapping[str, Any],
    roles: Mapping[str, int],
    special: set[int],
    id_of: Callable[[str], int | None],
) -> Mapping[str, Any]:
    """Refuses other special pieces, and pieces beyond the vocabulary.

    `roles` are transformers' names -> ids of the special pieces, `special` the ids of
    pieces that text never becomes.
    """
    config = _object(folder, TOKENIZER_CONFIG)
    for name, content in (
        (TOKENIZER_CONFIG, config),
        (SPECIAL_TOKENS, _object(folder, SPECIAL_TOKENS)),
    ):
        for role, index in roles.items():
            piece = _content(content.get(role))
            if piece is None or id_of(piece) == index:
                continue
            # Two spellings of one piece; the other one is in the vocabulary.
            spellings = {"pad_token": PAD, "unk_token": UNKNOWN}.get(role, ())
            if piece not in spellings or id_of(piece) is not None:
                raise UserError(
                    f"{folder}/{name}: {role} is {quoted(piece)}, which is not piece "
                    f"{index} of the vocabulary"
                )
    for source, piece, index in _added(folder, tokenizer, config):
        known = id_of(piece)
        if known is None and piece in (*PAD, *UNKNOWN) and index is None:
            continue
        if known is None or index not in (None, known) or known not in special:
            raise UserError(
                f"{folder}/{source}: adds the token {quoted(piece)} to the vocabulary, "
                "which transformers finds in text before it cuts words; no text is "
                "cut so here"
            )
    return config


def _added(folder, tokenizer, config) -> Iterator[tuple[str, str, Any]]:
    """(file, piece, id) of the tokens that are found in text; None where unknown."""
    for token in items(tokenizer.get("added_tokens")):
        yield TOKENIZER, _content(token) or "", entry({"": token}, "").get("id")
    for piece, index in _object(folder, ADDED_TOKENS).items():
        yield ADDED_TOKENS, piece, index
    for index, token in entry(config, "added_tokens_decoder").items():
        number = int(index) if re.fullmatch("[0-9]{1,9}", index) else -1
        yield TOKENIZER_CONFIG, _content(token) or "", number
    maps = {TOKENIZER_CONFIG: config, SPECIAL_TOKENS: _object(folder, SPECIAL_TOKENS)}
    for name, content in maps.items():
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = content.get(key)
            tokens = tokens.values() if isinstance(tokens, dict) else items(tokens)
            for token in tokens:
                yield name, _content(token) or "", None


def _check_rest(folder, config, described, roles, pieces, notes) -> None:
    """The settings of tokenizer_config.json that no other function reads.

    `pieces` have their row by number; it is 0 for WordPieces, which are found by their
    text.
    """
    path = os.path.join(folder, TOKENIZER_CONFIG)
    for name, value in _FIXED.items():
        setting = config.get(name)
        if setting is not None and setting != value and (setting or value):
            raise UserError(f"{path}: {name} is {setting!r}, only {value!r} is known")
    kind = config.get("tokenizer_class")
    if kind is not None and not files.exists(os.path.join(folder, TOKENIZER)):
        if str(kind).removesuffix("Fast") not in _CLASSES:
            raise UserError(f"{path}: tokenizer_class is {kind!r}, which is not known")
    inputs = config.get("model_input_names")
    if inputs is not None and "token_type_ids" not in items(inputs):
        no_types = f"{TOKENIZER_CONFIG}: pairs get no token types; here the second text"
        if described.head == QUESTION_ANSWERING and described.model.type_vocab_size > 1:
            raise UserError(f"{folder}/{no_types} has type 1; set model_input_names")
        if described.head == CLASSIFICATION:
            notes.append(f"{no_types} of a pair has type 1")
    lengths = [config.get(name) for name in ("model_max_length", "max_len")]
    lengths.append(entry(_object(folder, TOKENIZER), "truncation").get("max_length"))
    shorter = [
        length
        for length in lengths
        if type(length) is int and 0 < length < described.model.max_positions
    ]
    if shorter:
        notes.append(
            f"its tokenizer cuts texts at {min(shorter)} tokens; to do the same, give "
            f"--sequence_length={min(shorter)} to export"
        )
    expected = [roles[role] for role in ("pad_token", "cls_token", "sep_token")]
    for name, setting, index in zip(
        ("pad", "bos", "eos"), described.special_ids, expected, strict=True
    ):
        if setting is None or setting == index:
            continue
        # transformers' defaults are often beyond a small vocabulary.
        if type(setting) is int and 0 <= setting < pieces:
            raise UserError(
                f"{folder}/{CONFIG}: {name}_token_id is {setting}, but the vocabulary "
                f"has {index}; set it to null if the vocabulary is right"
            )
        notes.append(f"{CONFIG}: {name}_token_id is {setting!r}, which is not used")
    known = {*_FIXED, *_ROLES, *_BERT_RULES, *_WITHOUT_EFFECT}
    if unknown := sorted(set(config) - known):
        notes.append(
            f"{TOKENIZER_CONFIG}: not known and not used: {', '.join(unknown)}"
        )


def _note_modules(folder, notes) -> None:
    path = os.path.join(folder, "modules.json")
    if not files.exists(path):
        return
    kinds = [str(entry({"": m}, "").get("type")) for m in items(files.read_json(path))]
    others = [kind.rpartition(".")[2] for kind in kinds[1:]]
    notes.append(
        f"modules.json: the model alone is converted, without {', '.join(others)}"
    )
    if _object(folder, "sentence_bert_config.json").get("do_lower_case"):
        raise UserError(
            f"{folder}/sentence_bert_config.json: do_lower_case is true, which "
            "lower-cases text before the tokenizer; no text is lower-cased so here"
        )


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _object(folder: str, name: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    content = files.read_json(path) if files.exists(path) else {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: not an object")
    return content
