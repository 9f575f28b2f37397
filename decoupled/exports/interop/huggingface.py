"""Folders of transformers' save_pretrained, read and written.

RemBERT is our model with decoupled embeddings. BERT and XLM-R are coupled models whose
E_in is H. Neither PyTorch nor transformers is needed, and no code in a folder is run.

Kernels are [inputs, outputs] here and in the original TensorFlow checkpoints, and
[outputs, inputs] in PyTorch. Embeddings and output layers have the same shape in both.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.configs.finetuning import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.core.files import check_target, new_folder
from decoupled.data.vocabulary import XLM_R as XLM_R_PIECES
from decoupled.exports.interop.conversion import (
    Contents,
    initial_value,
    match,
    write_converted_folder,
)
from decoupled.exports.interop.huggingface_config import (
    BERT,
    CONFIG,
    MASKED_LM,
    REMBERT,
    XLM_R,
    Family,
    HuggingFaceModel,
    make_config,
    read_config,
)
from decoupled.exports.interop.huggingface_tokenizer import (
    open_tokenizer,
    write_tokenizer,
)
from decoupled.exports.interop.safetensors_files import (
    FILE_NAME,
    SafetensorsFolder,
    write_safetensors,
)
from decoupled.exports.served_task import LABELLED, ServedTask, read_task, task_head
from decoupled.model import variables as names
from decoupled.model.variables import Shape
from decoupled.runs import run_folder
from decoupled.runs.saved_run import Model, open_model

_LAYER_NORM = {"gamma": "weight", "beta": "bias"}
_TOKEN_LAYERS = {TAGGING: "classifier", QUESTION_ANSWERING: "qa_outputs"}
_KERNEL, _BIAS = (f"{names.PROJECTION}/{part}" for part in ("kernel", "bias"))


class _Source(NamedTuple):
    """A folder with its config and names checked.

    parameters: current name -> name in the file.
    """

    described: HuggingFaceModel
    stored: SafetensorsFolder
    parameters: dict[str, str]


def from_huggingface(
    folder: str, model_dir: str, vocabulary: str | None, allowed: Sequence[str]
) -> dict[str, Any]:
    """Converts a folder of transformers; returns the content of conversion.json.

    `vocabulary` is a SentencePiece model, if the folder has only its tokenizer.json.
    `allowed` are patterns of names that may stay unused or without value. A variable
    without value is initialised as for training from scratch.
    """
    check_target(model_dir)
    source = _open(folder)
    described, stored, parameters = source
    model, family, notes = described.model, described.family, list(described.notes)
    pieces = open_tokenizer(folder, vocabulary, described, notes)
    head = _head_of_source(source)
    shapes = names.shapes(model, head)
    targets = {
        name: (
            huggingface_name(name, family, described.head),
            huggingface_shape(name, shape, family),
        )
        for name, shape in shapes.items()
    }
    sources = {
        name: (parameter, stored.tensors[parameter].shape)
        for name, parameter in parameters.items()
    }
    matching = match(folder, targets, sources, CONFIG, allowed)
    variables = names.declare(model, head)

    def value_of(name: str) -> np.ndarray:
        if name not in matching.sources:
            return initial_value(variables[name], model)
        return our_value(name, stored.read(matching.sources[name]), family)

    contents = Contents(
        source=os.path.abspath(folder),
        kind=f"{family.name} ({described.head or 'encoder'})",
        model=model,
        vocabulary=pieces,
        task=_task(described),
        shapes=shapes,
        value_of=value_of,
        step=0,
        about={
            "unused": matching.unused,
            "unset": matching.unset,
            "encoder_only": described.head is None,
            "notes": notes,
        },
        data={"classifier_dropout": described.classifier_dropout},
    )
    return write_converted_folder(model_dir, contents)


def _open(folder: str) -> _Source:
    described = read_config(folder)
    family = described.family
    stored = SafetensorsFolder(folder)
    parameters = canonical_names(stored.tensors, family, folder)
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
    parameter = parameters.pop(second)
    if first not in parameters:
        parameters[first] = parameter
    elif not stored.same_content(parameters[first], parameter):
        raise UserError(
            f"{stored.folder}: {CONFIG} ties {second} to {first}, but they differ"
        )


def _without_identity(
    described: HuggingFaceModel, stored: SafetensorsFolder, parameters: dict[str, str]
) -> HuggingFaceModel:
    """The model without its input projection, if that is a unit matrix.

    transformers' RemBERT projects E_in to H even if the two are equal. Our model does
    that only with `project_equal_widths`. `to_huggingface` writes a unit matrix for
    models without projection, and this function removes it again.
    """
    model = described.model
    kernel, bias = (huggingface_name(name, REMBERT, None) for name in (_KERNEL, _BIAS))
    if (
        described.family is not REMBERT
        or model.input_embedding_size != model.hidden_size
        or not {kernel, bias} <= parameters.keys()
    ):
        return described
    unit = np.eye(model.hidden_size, dtype=np.float32)
    is_unit = np.array_equal(stored.read(parameters[kernel]), unit)
    if is_unit and not np.any(stored.read(parameters[bias])):
        del parameters[kernel], parameters[bias]
        return described
    projected = dataclasses.replace(model, project_equal_widths=True)
    return described._replace(model=projected)


def _head_of_source(source: _Source) -> names.Head:
    family, head = source.described.family, source.described.head
    pooler = huggingface_name(f"{names.POOLER}/kernel", family, None)
    return names.Head(
        masked_lm=head == MASKED_LM,
        pooler=head in (CLASSIFICATION, REGRESSION) or pooler in source.parameters,
        labels=0 if head in (None, MASKED_LM) else _label_count(source),
    )


def _label_count(source: _Source) -> int:
    described, stored, parameters = source
    if described.head == QUESTION_ANSWERING:
        return names.SPANS.labels
    name = huggingface_name(names.TASK_WEIGHTS, described.family, described.head)
    if name not in parameters:
        raise UserError(f"{stored.folder}: no {name}, which the head needs")
    parameter = parameters[name]
    count = (stored.tensors[parameter].shape or (0,))[0]
    labels = len(described.labels or [REGRESSION])
    if labels != count:
        raise UserError(
            f"{stored.folder}: {parameter} has {count} rows, {CONFIG} has {labels} "
            "labels"
        )
    return count


def _task(described: HuggingFaceModel) -> dict[str, Any] | None:
    if described.head in (None, MASKED_LM):
        return None
    return {
        "name": run_folder.task_name(described.task or "") or "converted",
        "labels": described.labels or [],
        "kind": described.head,
    }


def to_huggingface(
    model_dir: str, checkpoint: str | None, hf_dir: str, encoder_only: bool
) -> dict[str, Any]:
    """Writes a folder that transformers loads: config.json, model.safetensors and the
    tokenizer's files.

    Returns:
      What was written: `architecture`, `tensors`, `parameters`, `left_out` (names).
    """
    check_target(hf_dir)
    model = open_model(model_dir, checkpoint, verify=False)
    task = read_task(model)
    has_mlm = task.head is None and names.OUTPUT_BIAS in model.weights
    head = None if encoder_only else MASKED_LM if has_mlm else task.head
    family = _family(model, head)
    variables = _head_to_write(model, task, head)
    model.weights.check(model.config, variables)
    shapes = names.shapes(model.config, variables)
    config = make_config(
        model.config,
        model.vocabulary,
        family,
        head,
        list(task.labels) if head in LABELLED else None,
        None if encoder_only else task.name,
        None if encoder_only else run_folder.classifier_dropout(model.folder),
    )
    with new_folder(hf_dir) as folder:
        path = os.path.join(folder, FILE_NAME)
        written = _write_weights(model, family, head, shapes, path)
        write_tokenizer(folder, model.vocabulary, model.config)
        files.write_json(os.path.join(folder, CONFIG), config)
    left_out = sorted(set(model.weights) - set(shapes))
    for name in left_out:
        console.say(f"  left out: {name}")
    report = {
        "architecture": config["architectures"][0],
        "tensors": len(written),
        "parameters": sum(int(np.prod(shape)) for shape in written.values()),
        "left_out": left_out,
    }
    console.say(
        f"{hf_dir}: {report['architecture']}, {report['tensors']} tensors, "
        f"{report['parameters']:,} parameters"
    )
    return report


def _family(model: Model, head: str | None) -> Family:
    """The architecture that computes the same; raises UserError if there is none."""
    model_dir, config = model.folder, model.config
    if head == MASKED_LM and config.mlm_transform != "dense_activation_norm":
        raise UserError(
            f"{model_dir}: its MLM head is the plain projection of the paper "
            "(mlm_transform), transformers' heads have activation and layer norm; "
            "convert it with --encoder_only"
        )
    if config.coupled and not config.projects_input:
        vocabulary = model.vocabulary
        # XLM-R's positions follow the id of padding.
        positions_agree = vocabulary.pad_id + 1 == XLM_R.unused_positions
        is_xlm_r = vocabulary.kind == XLM_R_PIECES and positions_agree
        if config.type_vocab_size > 1 or not is_xlm_r:
            return BERT
        if head == MASKED_LM and config.activation != "gelu":
            raise UserError(
                f"{model_dir}: its activation is {config.activation!r}, transformers' "
                "MLM head of XLM-R always has 'gelu'; convert it with --encoder_only"
            )
        return XLM_R
    if config.coupled and head == MASKED_LM:
        raise UserError(
            f"{model_dir}: one table of width {config.input_embedding_size} is input "
            f"and output embedding of a model of width {config.hidden_size}; "
            "transformers has no such BERT or RemBERT; convert it with --encoder_only"
        )
    return REMBERT


def _head_to_write(model: Model, task: ServedTask, head: str | None) -> names.Head:
    if head == MASKED_LM:
        return names.MASKED_LM
    if head is None:
        return names.Head(pooler=f"{names.POOLER}/kernel" in model.weights)
    return task_head(head, len(task.labels))


def _write_weights(
    model: Model,
    family: Family,
    head: str | None,
    shapes: dict[str, Shape],
    path: str,
) -> dict[str, Shape]:
    """Writes the weights one by one; returns the shapes by transformers' names."""
    ours = {huggingface_name(name, family, head): name for name in shapes}
    theirs = {
        parameter: huggingface_shape(name, shapes[name], family)
        for parameter, name in ours.items()
    }
    made = _identity_projection(model.config, family)
    theirs |= {parameter: value.shape for parameter, value in made.items()}

    def value_of(parameter: str) -> np.ndarray:
        if parameter in made:
            return made[parameter]
        name = ours[parameter]
        return huggingface_value(name, model.weights[name], family)

    write_safetensors(path, theirs, value_of)
    return theirs


def _identity_projection(config: ModelConfig, family: Family) -> dict[str, np.ndarray]:
    """The input projection of RemBERT as a unit matrix, if our model has none."""
    size = config.hidden_size
    if family is not REMBERT or config.projects_input:
        return {}
    return {
        huggingface_name(_KERNEL, REMBERT, None): np.eye(size, dtype=np.float32),
        huggingface_name(_BIAS, REMBERT, None): np.zeros(size, np.float32),
    }


def huggingface_name(name: str, family: Family, head: str | None) -> str:
    """The parameter that holds our variable `name` in a model with this head."""
    if name == names.OUTPUT_EMBEDDING:
        return f"{family.decoder}.weight"
    if name == names.OUTPUT_BIAS:
        return family.output_bias
    is_classifier = head in (CLASSIFICATION, REGRESSION)
    if name in (names.TASK_WEIGHTS, names.TASK_BIAS):
        layer = family.classifier if is_classifier else _TOKEN_LAYERS[head]
        return f"{layer}.{'weight' if name == names.TASK_WEIGHTS else 'bias'}"
    layer, _, last = name.rpartition("/")
    if last.endswith("_embeddings"):
        layer, last = name, "kernel"
    last = "weight" if last == "kernel" else _LAYER_NORM.get(last, last)
    renamed = {names.TRANSFORM: family.dense, names.TRANSFORM_NORM: family.norm}
    if is_classifier and family.classifier_pooler:
        renamed[names.POOLER] = family.classifier_pooler
    if layer not in renamed:
        layer = re.sub(r"^bert/", f"{family.prefix}/", layer)
        layer = re.sub(r"/layer_(\d+)", r"/layer/\1", layer).replace("/", ".")
    return f"{renamed.get(layer, layer)}.{last}"


def huggingface_shape(name: str, shape: Shape, family: Family) -> Shape:
    """The shape of our variable in PyTorch."""
    if name == names.POSITION_EMBEDDINGS:
        return (shape[0] + family.unused_positions, *shape[1:])
    return shape[::-1] if name.endswith("/kernel") else shape


def our_value(name: str, stored: np.ndarray, family: Family) -> np.ndarray:
    """A view of a parameter in the shape of our variable `name`."""
    if name == names.POSITION_EMBEDDINGS:
        return stored[family.unused_positions :]
    return stored.T if name.endswith("/kernel") else stored


def huggingface_value(name: str, value: np.ndarray, family: Family) -> np.ndarray:
    """The reverse of `our_value`; unused positions are zero, as padding's is there."""
    if name == names.POSITION_EMBEDDINGS:
        return np.pad(value, [(family.unused_positions, 0), (0, 0)])
    return value.T if name.endswith("/kernel") else value


def canonical_names(
    parameters: Iterable[str], family: Family, folder: str
) -> dict[str, str]:
    """Current parameter names -> the names in a file, which may be older.

    Early BERT files use gamma and beta, and the parameters of a bare encoder lack the
    family's prefix. Position ids, which old versions saved, are not parameters.
    """
    canonical = {}
    for name in sorted(parameters):
        if name.endswith(".position_ids"):
            continue
        modern = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        modern = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", modern)
        if modern.startswith(("embeddings.", "encoder.", "pooler.")):
            modern = f"{family.prefix}.{modern}"
        if modern in canonical:
            raise UserError(
                f"{folder}: {canonical[modern]} and {name} are the same parameter"
            )
        canonical[modern] = name
    return canonical
