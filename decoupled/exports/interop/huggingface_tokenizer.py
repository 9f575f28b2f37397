"""The vocabulary of a folder of transformers, and whether it is the model's.

A row of the embeddings belongs to a piece only by its number. The vocabulary is
therefore the folder's own (`data.tokenizer_folder`): one from elsewhere cannot be
checked against the weights.
"""

import os

from decoupled.configs.finetuning import CLASSIFICATION, QUESTION_ANSWERING
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.tokenizer_checks import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    entry,
    items,
    read_object,
)
from decoupled.data.vocabulary import SENTENCEPIECE, Vocabulary, open_vocabulary
from decoupled.exports.interop.huggingface_config import CONFIG, HuggingFaceModel

SENTENCES = "sentence_bert_config.json"
# A table may have a few more rows than there are pieces, for the sake of its size.
_MOST_UNUSED = 128


def open_tokenizer(
    folder: str, model: str | None, described: HuggingFaceModel, notes: list[str]
) -> Vocabulary:
    """The vocabulary; what the user should know is added to `notes`.

    Args:
      model: a sentencepiece.model, if the folder has only its tokenizer.json.

    Raises:
      UserError: the folder has no vocabulary, or one that does not fit the model; or
        the tokenizer does something else to text than we do.
    """
    if files.exists(os.path.join(folder, "adapter_config.json")):
        raise UserError(
            f"{folder}: has an adapter (adapter_config.json), which transformers adds "
            "to the weights; merge it (merge_and_unload) and save the model again"
        )
    _note_modules(folder, notes)
    vocabulary = open_vocabulary(folder, notes, model)
    rows, size = described.model.vocab_size, vocabulary.size
    is_padded = vocabulary.kind == SENTENCEPIECE or rows - size < _MOST_UNUSED
    if size > rows or not is_padded:
        raise UserError(
            f"{vocabulary.path}: {size} pieces, but {CONFIG} says vocab_size {rows}; "
            "it is another vocabulary"
        )
    if size < rows:
        notes.append(unused_rows(size, rows))
    _check_types(folder, vocabulary, described, notes)
    _check_ids(folder, vocabulary, described, notes)
    _note_length(folder, described, notes)
    return vocabulary


def unused_rows(pieces: int, rows: int) -> str:
    """What the user should know of a vocabulary that is smaller than the model's."""
    return f"{pieces:,} pieces, {rows:,} rows of embeddings: no text uses the last rows"


def _check_types(folder, vocabulary, described, notes) -> None:
    """Whether the second text of a pair has another type in transformers, too."""
    inputs = read_object(folder, TOKENIZER_CONFIG).get("model_input_names")
    has_types = inputs is None or "token_type_ids" in items(inputs)
    if has_types or not vocabulary.pairs.second_type:
        return
    no_types = f"{TOKENIZER_CONFIG}: pairs get no token types; here the second text"
    if described.head == QUESTION_ANSWERING and described.model.type_vocab_size > 1:
        raise UserError(f"{folder}/{no_types} has type 1; set model_input_names")
    if described.head == CLASSIFICATION:
        notes.append(f"{no_types} of a pair has type 1")


def _check_ids(folder, vocabulary, described, notes) -> None:
    expected = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id)
    for name, setting, index in zip(
        ("pad", "bos", "eos"), described.special_ids, expected, strict=True
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


def _note_length(folder, described, notes) -> None:
    config = read_object(folder, TOKENIZER_CONFIG)
    lengths = [config.get(name) for name in ("model_max_length", "max_len")]
    truncation = entry(read_object(folder, TOKENIZER), "truncation")
    lengths.append(truncation.get("max_length"))
    # sentence-transformers sets the tokenizer's limits anew.
    sentences = read_object(folder, SENTENCES).get("max_seq_length")
    lengths = lengths if sentences is None else [sentences]
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


def _note_modules(folder, notes) -> None:
    path = os.path.join(folder, "modules.json")
    if not files.exists(path):
        return
    kinds = [str(entry({"": m}, "").get("type")) for m in items(files.read_json(path))]
    others = [kind.rpartition(".")[2] for kind in kinds[1:]]
    notes.append(
        f"modules.json: the model alone is converted, without {', '.join(others)}"
    )
    if read_object(folder, SENTENCES).get("do_lower_case"):
        raise UserError(
            f"{folder}/{SENTENCES}: do_lower_case is true, which "
            "lower-cases text before the tokenizer; no text is lower-cased so here"
        )
