"""A folder of transformers' save_pretrained -> a folder like that of a run.

It converts RemBERT, and BERT, which is a coupled model whose E_in is H. Neither PyTorch
nor transformers is needed, and no code in the folder is run.

BERT cuts text into WordPieces (vocab.txt), and our pipeline into SentencePiece's
pieces. A piece that is also a WordPiece gets its row. Any other piece gets the mean of
the rows of the WordPieces into which BERT cuts its characters. "▁the" begins a word, as
"the" does in BERT; "ing" continues one, as "##ing" does.
"""

import dataclasses
import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.configs.finetuning import REGRESSION
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.files import check_target
from decoupled.data.vocabulary import FILE_NAME, PAD, UNKNOWN, Vocabulary
from decoupled.exports.interop.conversion import (
    Contents,
    Matching,
    check_complete,
    check_shape,
    initial_value,
    match,
    write_converted_folder,
)
from decoupled.exports.interop.huggingface_format import (
    BERT,
    CONFIG,
    DECODER,
    DECODER_BIAS,
    MASKED_LM,
    REMBERT,
    HuggingFaceModel,
    canonical_names,
    huggingface_name,
    huggingface_shape,
    is_transposed,
    read_config,
)
from decoupled.exports.interop.safetensors_files import SafetensorsFolder, aligned_empty
from decoupled.model import variables as names
from decoupled.runs import run_folder
from decoupled.tasks.registry import CLASSIFICATION, QUESTION_ANSWERING

WORDPIECE = "vocab.txt"

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORD_START = "▁"
# Of BERT's tokenization.py, _is_chinese_char and _is_punctuation.
_CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df"
    "\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_SYMBOLS = "$+<=>^`|~"
_PROJECTION = (f"{names.PROJECTION}/kernel", f"{names.PROJECTION}/bias")


def _words(text: str) -> Iterator[tuple[str, bool]]:
    """The words that BERT cuts a text into, and whether one is a single character.

    Chinese characters, punctuation and ASCII's symbols are words of their own.
    """
    for alone, characters in itertools.groupby(text, _is_alone):
        if alone:
            yield from ((character, True) for character in characters)
        else:
            yield "".join(characters), False


def _is_alone(character):
    is_punctuation = unicodedata.category(character).startswith("P")
    return is_punctuation or character in _SYMBOLS or bool(_CHINESE.match(character))


def _without_accents(text: str) -> str:
    """As BERT's tokenizer for lower-cased models."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


class WordPieceRows:
    """Converts rows of WordPieces to rows of pieces.

    Attributes:
      summary: how many pieces are a WordPiece, consist of several, or are unknown to
        BERT.

    Raises:
      UserError: vocab.txt lacks a special piece, or has another size than the model.
    """

    def __init__(self, path: str, vocab_size: int, vocabulary: Vocabulary):
        lines = files.read_text(path).splitlines()
        if len(lines) != vocab_size:
            raise UserError(
                f"{path}: {len(lines)} pieces, but the model has {vocab_size} rows"
            )
        self._ids = {piece: index for index, piece in enumerate(lines)}
        for piece in _SPECIAL:
            if piece not in self._ids:
                raise UserError(f"{path}: has no piece {piece}")
        # The vocab.txt of a lower-cased model contains no upper case.
        self._lower = not any(
            piece != piece.lower() for piece in lines if not piece.startswith("[")
        )
        self._parts = [
            self._parts_of(vocabulary.id_to_piece(index), index, vocabulary)
            for index in range(vocabulary.size)
        ]
        unknown = [self._ids["[UNK]"]]
        self.summary = {
            "one_wordpiece": sum(len(p) == 1 and p != unknown for p in self._parts),
            "several_wordpieces": sum(len(p) > 1 for p in self._parts),
            "unknown_to_bert": sum(p == unknown for p in self._parts),
        }

    def convert(self, rows: np.ndarray) -> np.ndarray:
        """float32 [WordPieces, ...] -> [pieces, ...], means over a piece's parts."""
        converted = np.empty((len(self._parts), *rows.shape[1:]), np.float32)
        for index, parts in enumerate(self._parts):
            converted[index] = (
                rows[parts[0]] if len(parts) == 1 else rows[parts].mean(0)
            )
        return converted

    def _parts_of(self, piece: str, index: int, vocabulary: Vocabulary) -> list[int]:
        if index in (vocabulary.pad_id, vocabulary.unk_id):
            names = PAD if index == vocabulary.pad_id else UNKNOWN
            return [self._ids[names[1]]]
        if piece in _SPECIAL:
            return [self._ids[piece]]
        if index in vocabulary.special_ids:
            return [self._ids["[UNK]"]]
        starts = piece.startswith(_WORD_START)
        text = piece.removeprefix(_WORD_START)
        if self._lower:
            text = _without_accents(text.lower())
        return self._cut(text, starts) or [self._ids["[UNK]"]]

    def _cut(self, text: str, starts_word: bool) -> Sequence[int]:
        """The WordPieces of a piece; [] if a part has none."""
        parts = []
        for word, alone in _words(text):
            found = self._longest_matches(word, starts_word or alone)
            if not found:
                return []
            parts += found
            # What follows punctuation begins a word.
            starts_word = alone
        return parts

    def _longest_matches(self, word: str, starts_word: bool) -> list[int]:
        parts = []
        while word:
            prefix = "" if starts_word and not parts else "##"
            for end in range(len(word), 0, -1):
                found = self._ids.get(prefix + word[:end])
                # A character that BERT knows at the start of words alone.
                if found is None and end == 1:
                    found = self._ids.get(word[0])
                if found is not None:
                    break
            else:
                return []
            parts.append(found)
            word = word[end:]
        return parts


class _Source(NamedTuple):
    """The folder, with its config and names checked."""

    described: HuggingFaceModel
    stored: SafetensorsFolder
    parameters: dict[str, str]  # today's name -> name in the file


def from_huggingface(
    folder: str, model_dir: str, vocabulary: str | None, allowed: Sequence[str]
) -> dict[str, Any]:
    """Converts a folder.

    Args:
      folder: config.json and safetensors, of RemBERT or BERT.
      model_dir: written; it must not exist yet, or be empty.
      vocabulary: a SentencePiece model; by default the folder's own. If the folder has
        BERT's vocab.txt instead, rows of the embeddings are converted (see the module).
      allowed: patterns of names that may stay unused or without value. Variables
        without value are initialised as for training from scratch.

    Returns:
      The content of conversion.json.

    Raises:
      UserError: the folder cannot be converted; nothing is written.
    """
    check_target(model_dir)
    source = _open(folder)
    pieces, rows = _vocabulary(folder, vocabulary, source.described.model)
    model = source.described.model
    if rows is not None:
        model = dataclasses.replace(model, vocab_size=pieces.size)
    head = _head(source)
    shapes = names.shapes(source.described.model, head)
    theirs = {
        name: huggingface_name(name, source.described.family, source.described.head)
        for name in shapes
    }
    matching = match(theirs, source.parameters)
    where = source.stored.folder
    for name, found in matching.sources.items():
        wanted = huggingface_shape(name, shapes[name])
        check_shape(where, found, source.stored.tensors[found].shape, wanted, CONFIG)
    check_complete(where, matching, allowed)
    report = _report(source, matching, shapes, rows)
    contents = Contents(
        model=model,
        vocabulary=pieces,
        task=_task(source, head.labels),
        variables=list(shapes),
        value_of=_reader(source.stored, matching, model, head, rows),
        step=0,
        report=report,
    )
    write_converted_folder(model_dir, contents)
    return report


def _open(folder: str) -> _Source:
    described = read_config(folder)
    stored = SafetensorsFolder(folder)
    parameters = canonical_names(stored.tensors, described.family, folder)
    if described.family is BERT and described.model.coupled:
        words = huggingface_name(names.WORD_EMBEDDINGS, BERT, None)
        _join_tied(stored, parameters, DECODER, words)
        _join_tied(stored, parameters, DECODER_BIAS, BERT.output_bias)
    elif described.family is BERT and DECODER_BIAS in parameters:
        # An untied BERT still has the other bias, but does not add it.
        parameters[BERT.output_bias] = parameters.pop(DECODER_BIAS)
    return _Source(_without_identity(described, stored, parameters), stored, parameters)


def _join_tied(
    stored: SafetensorsFolder, parameters: dict[str, str], second: str, first: str
) -> None:
    """Joins two names of one parameter; a file may contain either or both."""
    if second not in parameters:
        return
    if first not in parameters:
        parameters[first] = parameters.pop(second)
        return
    if not stored.same_content(parameters[first], parameters[second]):
        raise UserError(
            f"{stored.folder}: {CONFIG} ties {second} to {first}, but they differ"
        )
    del parameters[second]


def _without_identity(
    described: HuggingFaceModel, stored: SafetensorsFolder, parameters: dict[str, str]
) -> HuggingFaceModel:
    """The model without its input projection, if that is a unit matrix.

    transformers' RemBERT projects E_in to H even if the two are equal. Our model does
    that only with `project_equal_widths`. `to_huggingface` writes a unit matrix for
    models without projection, and this function removes it again.
    """
    model = described.model
    if (
        described.family is not REMBERT
        or model.input_embedding_size != model.hidden_size
    ):
        return described
    kernel, bias = (huggingface_name(name, REMBERT, None) for name in _PROJECTION)
    if kernel not in parameters or bias not in parameters:
        return described
    unit = np.eye(model.hidden_size, dtype=np.float32)
    is_unit = np.array_equal(stored.read(parameters[kernel]), unit)
    if is_unit and not np.any(stored.read(parameters[bias])):
        del parameters[kernel], parameters[bias]
        return described
    projected = dataclasses.replace(model, project_equal_widths=True)
    return described._replace(model=projected)


def _head(source: _Source) -> names.Head:
    """The head of the model, according to config.json and the parameters."""
    family, head = source.described.family, source.described.head
    pooler = huggingface_name(f"{names.POOLER}/kernel", family, None)
    return names.Head(
        masked_lm=head == MASKED_LM,
        pooler=head == CLASSIFICATION or pooler in source.parameters,
        labels=0 if head in (None, MASKED_LM) else _label_count(source),
    )


def _label_count(source: _Source) -> int:
    described = source.described
    if described.head == QUESTION_ANSWERING:
        return names.SPANS.labels
    name = huggingface_name(names.TASK_WEIGHTS, described.family, described.head)
    found = source.parameters.get(name)
    if found is None:
        raise UserError(f"{source.stored.folder}: no {name}, which the head needs")
    count = (source.stored.tensors[found].shape or (0,))[0]
    if described.labels is not None and len(described.labels) != count:
        raise UserError(
            f"{source.stored.folder}: {found} has {count} rows, {CONFIG} has "
            f"{len(described.labels)} labels"
        )
    return count


def _task(source: _Source, count: int) -> dict[str, Any] | None:
    """The task of config.json, with so many labels; None for an encoder."""
    described = source.described
    if not count:
        return None
    labels, kind = described.labels, described.head
    if kind == CLASSIFICATION and count == 1:
        kind = REGRESSION
    if kind in (QUESTION_ANSWERING, REGRESSION):
        labels = []
    elif labels is None:
        labels = [f"LABEL_{index}" for index in range(count)]
    return {
        "name": run_folder.task_name(described.task or "") or "converted",
        "labels": labels,
        "kind": kind,
    }


def _vocabulary(
    folder: str, given: str | None, model: ModelConfig
) -> tuple[Vocabulary, WordPieceRows | None]:
    """The vocabulary; and the conversion of rows of WordPieces to its rows, or None."""
    own, wordpiece = os.path.join(folder, FILE_NAME), os.path.join(folder, WORDPIECE)
    if not given and not files.exists(own):
        has = f"only {WORDPIECE}" if files.exists(wordpiece) else f"no {FILE_NAME}"
        raise UserError(
            f"{folder}: has {has}; name the vocabulary of your data with "
            f"--vocabulary={FILE_NAME}"
        )
    pieces = Vocabulary(given or own)
    if (
        given
        and files.exists(own)
        and pieces.fingerprint != Vocabulary(own).fingerprint
    ):
        raise UserError(f"--vocabulary: {given} is not {own}; the folder's own is used")
    if not files.exists(own) and files.exists(wordpiece):
        return pieces, WordPieceRows(wordpiece, model.vocab_size, pieces)
    if pieces.size > model.vocab_size:
        raise UserError(
            f"{pieces.path}: {pieces.size} pieces, but {CONFIG} says vocab_size "
            f"{model.vocab_size}; it is another vocabulary"
        )
    return pieces, None


def _reader(
    stored: SafetensorsFolder,
    matching: Matching,
    model: ModelConfig,
    head: names.Head,
    rows: WordPieceRows | None,
) -> Callable[[str], np.ndarray]:
    """The function from the name of a variable to its value, in our shape."""
    # `model` already has the size of the new vocabulary.
    variables = names.declare(model, head)

    def value_of(name: str) -> np.ndarray:
        variable = variables[name]
        if name not in matching.sources:
            return initial_value(variable, model)
        value = stored.read(matching.sources[name])
        if rows is not None and variable.dims[0].name == "vocab":
            return rows.convert(value)
        if not is_transposed(name):
            return value
        turned = aligned_empty(variable.shape)
        turned[...] = value.T
        return turned

    return value_of


def _report(source, matching, shapes, rows):
    described = source.described
    return {
        "source": os.path.abspath(source.stored.folder),
        "kind": f"{described.family.name} ({described.head or 'encoder'})",
        "variables": len(matching.sources),
        "parameters": sum(int(np.prod(shapes[name])) for name in matching.sources),
        "renamed": {},
        "unused": matching.unused,
        "unset": matching.unset,
        "encoder_only": described.head is None,
        "vocabulary": None if rows is None else rows.summary,
    }
