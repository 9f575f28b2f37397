"""A folder of transformers' save_pretrained -> a folder like that of a run.

It converts RemBERT, and BERT and XLM-R, which are coupled models whose E_in is H.
Neither PyTorch nor transformers is needed, and no code in the folder is run.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.configs.finetuning import CLASSIFICATION, QUESTION_ANSWERING, REGRESSION
from decoupled.core.errors import UserError
from decoupled.core.files import check_target
from decoupled.exports.interop.conversion import (
    Contents,
    Matching,
    check_complete,
    check_shape,
    initial_value,
    match,
    write_converted_folder,
)
from decoupled.exports.interop.huggingface_config import (
    CONFIG,
    HuggingFaceModel,
    read_config,
)
from decoupled.exports.interop.huggingface_format import (
    MASKED_LM,
    REMBERT,
    canonical_names,
    huggingface_name,
    huggingface_shape,
    our_value,
)
from decoupled.exports.interop.huggingface_tokenizer import open_tokenizer
from decoupled.exports.interop.safetensors_files import SafetensorsFolder, aligned_empty
from decoupled.model import variables as names
from decoupled.runs import run_folder

_PROJECTION = (f"{names.PROJECTION}/kernel", f"{names.PROJECTION}/bias")


class _Source(NamedTuple):
    """The folder, with its config and names checked."""

    described: HuggingFaceModel
    stored: SafetensorsFolder
    parameters: dict[str, str]  # today's name -> name in the file


def from_huggingface(
    folder: str, model_dir: str, vocabulary: str | None, allowed: Sequence[str]
) -> dict[str, Any]:
    """Converts a folder of transformers to a new or empty `model_dir`.

    Args:
      vocabulary: a SentencePiece model, if the folder has only its tokenizer.json.
      allowed: patterns of names that may stay unused or without value. Variables
        without value are initialised as for training from scratch.

    Returns:
      The content of conversion.json.

    Raises:
      UserError: the folder cannot be converted; nothing is written.
    """
    check_target(model_dir)
    source = _open(folder)
    described = source.described
    model, notes, family = described.model, list(described.notes), described.family
    pieces = open_tokenizer(folder, vocabulary, described, notes)
    head = _head(source)
    shapes = names.shapes(described.model, head)
    theirs = {name: huggingface_name(name, family, described.head) for name in shapes}
    matching = match(theirs, source.parameters)
    where = source.stored.folder
    for name, parameter in matching.sources.items():
        expected = huggingface_shape(name, shapes[name], family)
        check_shape(
            where, parameter, source.stored.tensors[parameter].shape, expected, CONFIG
        )
    check_complete(where, matching, allowed)
    contents = Contents(
        source=os.path.abspath(where),
        kind=f"{family.name} ({described.head or 'encoder'})",
        model=model,
        vocabulary=pieces,
        task=_task(source),
        shapes=names.shapes(model, head),
        value_of=_reader(source, matching, model, head),
        step=0,
        about={
            "unused": matching.unused,
            "unset": matching.unset,
            "encoder_only": described.head is None,
            "notes": notes,
        },
        classifier_dropout=described.classifier_dropout,
    )
    return write_converted_folder(model_dir, contents)


def _open(folder: str) -> _Source:
    described = read_config(folder)
    stored = SafetensorsFolder(folder)
    parameters = canonical_names(stored.tensors, described.family, folder)
    family = described.family
    decoder_bias = f"{family.decoder}.bias"
    if described.model.coupled:
        words = huggingface_name(names.WORD_EMBEDDINGS, family, None)
        _join_tied(stored, parameters, f"{family.decoder}.weight", words)
        _join_tied(stored, parameters, decoder_bias, family.output_bias)
    elif decoder_bias in parameters:
        # An untied BERT still has the other bias, but does not add it.
        parameters[family.output_bias] = parameters.pop(decoder_bias)
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
    family, head = source.described.family, source.described.head
    pooler = huggingface_name(f"{names.POOLER}/kernel", family, None)
    return names.Head(
        masked_lm=head == MASKED_LM,
        pooler=head in (CLASSIFICATION, REGRESSION) or pooler in source.parameters,
        labels=0 if head in (None, MASKED_LM) else _label_count(source),
    )


def _label_count(source: _Source) -> int:
    described = source.described
    if described.head == QUESTION_ANSWERING:
        return names.SPANS.labels
    name = huggingface_name(names.TASK_WEIGHTS, described.family, described.head)
    stored = source.parameters.get(name)
    if stored is None:
        raise UserError(f"{source.stored.folder}: no {name}, which the head needs")
    count = (source.stored.tensors[stored].shape or (0,))[0]
    labels = len(described.labels or [REGRESSION])
    if labels != count:
        raise UserError(
            f"{source.stored.folder}: {stored} has {count} rows, {CONFIG} has "
            f"{labels} labels"
        )
    return count


def _task(source: _Source) -> dict[str, Any] | None:
    described = source.described
    if described.head in (None, MASKED_LM):
        return None
    return {
        "name": run_folder.task_name(described.task or "") or "converted",
        "labels": described.labels or [],
        "kind": described.head,
    }


def _reader(
    source: _Source,
    matching: Matching,
    model: ModelConfig,
    head: names.Head,
) -> Callable[[str], np.ndarray]:
    """The function from the name of a variable to its value, in our shape."""
    variables = names.declare(model, head)

    def value_of(name: str) -> np.ndarray:
        variable = variables[name]
        if name not in matching.sources:
            return initial_value(variable, model)
        stored = source.stored.read(matching.sources[name])
        view = our_value(name, stored, source.described.family)
        if view is stored:
            return stored
        value = aligned_empty(variable.shape)
        value[...] = view
        return value

    return value_of
