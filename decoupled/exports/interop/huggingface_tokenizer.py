"""The tokenizer's files of a folder of transformers: checked, and written.

A row of the embeddings belongs to a piece only by its number. The vocabulary is
therefore the folder's own (`data.tokenizer_folder`): one from elsewhere cannot be
checked against the weights.

The written tokenizer.json gives the ids of `Vocabulary.encode` between [CLS] and [SEP];
docs/interop.md lists where the ids differ. Vocabularies of BERT and XLM-R get their
classes of transformers and the files of their first form, too: vocab.txt, and
sentencepiece.bpe.model with the ids of fairseq.
"""

import base64
import os
import unicodedata
from typing import Any

from decoupled.configs import ModelConfig
from decoupled.configs.finetuning import CLASSIFICATION, QUESTION_ANSWERING
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.sentencepiece_file import (
    MARK,
    UNIGRAM,
    USER_DEFINED_SCORE,
    Settings,
    make_model,
    read_pieces,
)
from decoupled.data.tokenizer_checks import (
    SENTENCEPIECE_FILE,
    SPECIAL_TOKENS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCAB,
    XLM_R_FILE,
    entry,
    items,
    read_object,
)
from decoupled.data.tokenizer_folder import XLM_R_FIRST
from decoupled.data.vocabulary import (
    SENTENCEPIECE,
    XLM_R,
    SentencePiece,
    Vocabulary,
    WordPiece,
    open_vocabulary,
)
from decoupled.exports.interop.huggingface_config import CONFIG, HuggingFaceModel

SENTENCES = "sentence_bert_config.json"
# A table may have a few more rows than there are pieces, for the sake of its size.
_MOST_UNUSED = 128


def open_tokenizer(
    folder: str, model: str | None, config: HuggingFaceModel, notes: list[str]
) -> Vocabulary:
    """The vocabulary of a folder, checked; what the user should know goes to `notes`.

    `model` is a sentencepiece.model, if the folder has only its tokenizer.json.
    """
    if files.exists(os.path.join(folder, "adapter_config.json")):
        raise UserError(
            f"{folder}: has an adapter (adapter_config.json), which transformers adds "
            "to the weights; merge it (merge_and_unload) and save the model again"
        )
    _note_modules(folder, notes)
    vocabulary = open_vocabulary(folder, notes, model)
    rows, size = config.model.vocab_size, vocabulary.size
    is_padded = vocabulary.kind == SENTENCEPIECE or rows - size < _MOST_UNUSED
    if size > rows or not is_padded:
        raise UserError(
            f"{vocabulary.path}: {size} pieces, but {CONFIG} says vocab_size {rows}; "
            "it is another vocabulary"
        )
    if size < rows:
        notes.append(unused_rows(vocabulary, rows))
    _check_types(folder, vocabulary, config, notes)
    _check_ids(folder, vocabulary, config, notes)
    _note_length(folder, config, notes)
    return vocabulary


def unused_rows(vocabulary: Vocabulary, rows: int) -> str:
    """A note on a vocabulary that is smaller than the model's.

    Raises:
      UserError: it is a vocab.txt whose last line does not end.
    """
    path, pieces = vocabulary.path, vocabulary.size
    if os.path.basename(path) == VOCAB and not files.read_bytes(path).endswith(b"\n"):
        raise UserError(
            f"{path}: {pieces} pieces, {rows} rows of embeddings, and its last line "
            "has no end; it was cut off, get it anew, or end the line if it is whole"
        )
    return f"{pieces:,} pieces, {rows:,} rows of embeddings: no text uses the last rows"


def _check_types(folder, vocabulary, config, notes) -> None:
    """Checks that the second text of a pair has its own type in transformers, too."""
    inputs = read_object(folder, TOKENIZER_CONFIG).get("model_input_names")
    has_types = inputs is None or "token_type_ids" in items(inputs)
    if has_types or not vocabulary.pairs.second_type:
        return
    no_types = f"{TOKENIZER_CONFIG}: pairs get no token types; here the second text"
    if config.head == QUESTION_ANSWERING and config.model.type_vocab_size > 1:
        raise UserError(f"{folder}/{no_types} has type 1; set model_input_names")
    if config.head == CLASSIFICATION:
        notes.append(f"{no_types} of a pair has type 1")


def _check_ids(folder, vocabulary, config, notes) -> None:
    offset = config.family.unused_positions
    if offset and vocabulary.pad_id + 1 != offset:
        raise UserError(
            f"{folder}/{CONFIG}: XLM-R gives tokens of id {offset - 1} the position of "
            f"padding, but padding of {vocabulary.path} has id {vocabulary.pad_id}; "
            "only a tokenizer that pads with that id can be converted"
        )
    expected_ids = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id)
    for name, setting, index in zip(
        ("pad", "bos", "eos"), config.special_ids, expected_ids, strict=True
    ):
        if setting is None or setting == index:
            continue
        # transformers' defaults are often beyond a small vocabulary. Those of BERT are
        # wrong in released models with XLM-R's pieces, whose ids are fixed.
        is_chosen = type(setting) is int and 0 <= setting < vocabulary.size
        if is_chosen and vocabulary.kind == SENTENCEPIECE:
            raise UserError(
                f"{folder}/{CONFIG}: {name}_token_id is {setting}, but the vocabulary "
                f"has {index}; set it to null if the vocabulary is right"
            )
        notes.append(f"{CONFIG}: {name}_token_id is {setting!r}, which is not used")


def _note_length(folder, config, notes) -> None:
    settings = read_object(folder, TOKENIZER_CONFIG)
    lengths = [settings.get(name) for name in ("model_max_length", "max_len")]
    truncation = entry(read_object(folder, TOKENIZER), "truncation")
    lengths.append(truncation.get("max_length"))
    # sentence-transformers sets the tokenizer's limits anew.
    sentence_length = read_object(folder, SENTENCES).get("max_seq_length")
    lengths = lengths if sentence_length is None else [sentence_length]
    limits = [
        length
        for length in lengths
        if type(length) is int and 0 < length < config.model.max_positions
    ]
    if limits:
        notes.append(
            f"its tokenizer cuts texts at {min(limits)} tokens; to do the same, give "
            f"--sequence_length={min(limits)} to export"
        )


def _note_modules(folder, notes) -> None:
    if read_object(folder, SENTENCES).get("do_lower_case"):
        raise UserError(
            f"{folder}/{SENTENCES}: do_lower_case is true, which "
            "lower-cases text before the tokenizer; no text is lower-cased so here"
        )
    path = os.path.join(folder, "modules.json")
    if not files.exists(path):
        return
    kinds = [str(entry({"": m}, "").get("type")) for m in items(files.read_json(path))]
    modules = [kind.rpartition(".")[2] for kind in kinds[1:]]
    if modules:
        notes.append(
            f"modules.json: the model alone is converted, without {', '.join(modules)}"
        )


def write_tokenizer(folder: str, vocabulary: Vocabulary, model: ModelConfig) -> None:
    """Writes tokenizer.json, its two companions, and the file that it was made from."""
    spellings = special_tokens(vocabulary)
    for name, content in (
        (TOKENIZER, tokenizer_json(vocabulary)),
        (TOKENIZER_CONFIG, _tokenizer_config(vocabulary, model, spellings)),
        (SPECIAL_TOKENS, spellings),
    ):
        files.write_json(os.path.join(folder, name), content)
    name, content = SENTENCEPIECE_FILE, vocabulary.content
    if isinstance(vocabulary, WordPiece):
        name = VOCAB
        content = "".join(f"{piece}\n" for piece in vocabulary.pieces).encode()
    elif _is_like_xlm_r(vocabulary):
        name, content = XLM_R_FILE, _fairseq_model(vocabulary)
    with files.atomic_write(os.path.join(folder, name), "wb") as handle:
        handle.write(content)


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
    """The content of tokenizer.json."""
    parts = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "post_processor": _post_processor(vocabulary),
    }
    if isinstance(vocabulary, WordPiece):
        return parts | _wordpiece(vocabulary)
    settings = vocabulary.settings
    pieces = [vocabulary.id_to_piece(index) for index in range(vocabulary.size)]
    user_defined = [pieces[index] for index in vocabulary.user_defined_ids]
    bad_pieces = [
        piece
        for piece in user_defined
        if settings.charsmap and piece != unicodedata.normalize("NFKC", piece)
    ]
    for is_refused, why in (
        (settings.model_type != UNIGRAM, "not a unigram model"),
        (not settings.remove_whitespace, "keeps repeated spaces"),
        (bad_pieces, f"normalisation changes its user-defined piece {bad_pieces[:1]}"),
    ):
        if is_refused:
            raise UserError(f"{vocabulary.path}: {why}; no tokenizer.json can be made")
    pipeline = {
        "normalizer": _normalizer(settings),
        "pre_tokenizer": _pre_tokenizer(pieces),
        "decoder": _decoder(settings),
    }
    if _is_like_xlm_r(vocabulary):
        pipeline = _xlm_r_pipeline(settings)
    return {
        **parts,
        **pipeline,
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.unk_id,
            "vocab": [
                list(row) for row in zip(pieces, _scores(vocabulary), strict=True)
            ],
            "byte_fallback": settings.byte_fallback,
        },
    }


def _wordpiece(vocabulary: WordPiece) -> dict[str, Any]:
    rules = vocabulary.rules
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": rules.chinese,
            "strip_accents": rules.strip_accents,
            "lowercase": rules.lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": vocabulary.id_to_piece(vocabulary.unk_id),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": rules.longest_word,
            "vocab": {
                piece: row for row, piece in enumerate(vocabulary.pieces) if piece
            },
        },
    }


def _xlm_r_pipeline(settings: Settings) -> dict[str, Any]:
    """As transformers 4 writes it; 5 makes its own from the table and the pieces."""
    spaces = _metaspace("always", split=True)
    steps = [
        _precompiled(settings),
        {"type": "Strip", "strip_left": False, "strip_right": True},
        _replace({"Regex": " {2,}"}, MARK),
    ]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": spaces,
        "decoder": spaces,
    }


def _is_like_xlm_r(vocabulary: Vocabulary) -> bool:
    """Whether the class of XLM-R gives the same ids: it fixes those of special pieces,
    knows no bytes, and cuts text at spaces."""
    if vocabulary.kind != XLM_R:
        return False
    pieces = [vocabulary.id_to_piece(index) for index in range(vocabulary.size)]
    return (
        (*pieces[:4], pieces[-1]) == (*XLM_R_FIRST, "<mask>")
        and not vocabulary.settings.byte_fallback
        and not vocabulary.user_defined_ids
        and not any(MARK in piece[1:] for piece in pieces)
    )


def _fairseq_model(vocabulary: SentencePiece) -> bytes:
    """The model with fairseq's ids: without <pad> and <mask>, <unk> first."""
    pieces = read_pieces(vocabulary.content, vocabulary.path)
    by_text = {piece.text: piece for piece in pieces[:4]}
    first_pieces = [by_text[name] for name in ("<unk>", "<s>", "</s>")]
    charsmap = vocabulary.settings.charsmap
    return make_model([*first_pieces, *pieces[4:-1]], charsmap, unknown=0, pad=None)


def _added_tokens(vocabulary):
    """The special pieces, which transformers finds in text only if listed here."""
    is_wordpiece = isinstance(vocabulary, WordPiece)
    return [
        {
            "id": index,
            "content": vocabulary.id_to_piece(index),
            "single_word": False,
            # The space before [MASK] belongs to the masked piece.
            "lstrip": index == vocabulary.mask_id and not is_wordpiece,
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
        steps.append(_precompiled(settings))
    steps += [
        # The first "▁" of a text is that of its first word, below.
        _replace({"Regex": f"^{MARK}"}, 2 * MARK),
        _replace({"Regex": " {2,}"}, " "),
        # Text after [MASK] keeps its first space.
        _replace({"Regex": f"[ {MARK}]+$"}, ""),
        _replace({"String": " "}, MARK),
    ]
    return {"type": "Sequence", "normalizers": steps}


def _precompiled(settings: Settings):
    charsmap = base64.b64encode(settings.charsmap).decode("ascii")
    return {"type": "Precompiled", "precompiled_charsmap": charsmap}


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

    template = [special(cls, 0), text("A", 0), special(sep, 0)]
    separators, type_id = vocabulary.pairs
    middle = [special(sep, 0)] * (separators - 1)
    return {
        "type": "TemplateProcessing",
        "single": template,
        "pair": [*template, *middle, text("B", type_id), special(sep, type_id)],
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


def _tokenizer_config(vocabulary, model, spellings):
    added_tokens = {
        str(entry["id"]): {key: value for key, value in entry.items() if key != "id"}
        for entry in _added_tokens(vocabulary)
    }
    # transformers' own class for RemBERT fixes ids of special pieces, and returns no
    # token types unless asked.
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if isinstance(vocabulary, WordPiece) and vocabulary.rules.longest_word == 100:
        rules = vocabulary.rules
        kind = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": rules.lower,
            "strip_accents": rules.strip_accents,
            "tokenize_chinese_chars": rules.chinese,
        }
    elif _is_like_xlm_r(vocabulary):
        kind = {"tokenizer_class": "XLMRobertaTokenizer"}
        inputs = ["input_ids", "attention_mask"]
    if not vocabulary.pairs.fit(model):
        # All tokens then have the only type that the model has.
        inputs = ["input_ids", "attention_mask"]
    return {
        **kind,
        "model_max_length": model.max_positions,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": added_tokens,
        **spellings,
    }
