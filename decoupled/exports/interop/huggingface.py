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

    config: HuggingFaceModel
    weights: SafetensorsFolder
    parameters: dict[str, str]


def from_huggingface(
    folder: str, model_dir: str, vocabulary: str | None, allowed_patterns: Sequence[str]
) -> dict[str, Any]:
    """Converts a folder of transformers; returns the content of conversion.json.

    `vocabulary` is a SentencePiece model, if the folder has only its tokenizer.json.
    `allowed_patterns` are of names that may stay unused or without value. A variable
    without value is initialised as for training from scratch.
    """
    check_target(model_dir)
    source = _open(folder)
    config, weights, parameters = source
    model, family, notes = config.model, config.family, list(config.notes)
    pieces = open_tokenizer(folder, vocabulary, config, notes)
    head = _head_of_source(source)
    shapes = names.shapes(model, head)
    targets = {
        name: (
            huggingface_name(name, family, config.head),
            huggingface_shape(name, shape, family),
        )
        for name, shape in shapes.items()
    }
    sources = {
        name: (parameter, weights.tensors[parameter].shape)
        for name, parameter in parameters.items()
    }
    matching = match(folder, targets, sources, CONFIG, allowed_patterns)
    variables = names.declare(model, head)

    def value_of(name: str) -> np.ndarray:
        if name not in matching.sources:
            return initial_value(variables[name], model)
        return our_value(name, weights.read(matching.sources[name]), family)

    contents = Contents(
        source=os.path.abspath(folder),
        kind=f"{family.name} ({config.head or 'encoder'})",
        model=model,
        vocabulary=pieces,
        task=_task(config),
        shapes=shapes,
        value_of=value_of,
        step=0,
        about={
            "unused": matching.unused,
            "unset": matching.unset,
            "encoder_only": config.head is None,
            "notes": notes,
        },
        data={"classifier_dropout": config.classifier_dropout},
    )
    return write_converted_folder(model_dir, contents)


def _open(folder: str) -> _Source:
    config = read_config(folder)
    family = config.family
    weights = SafetensorsFolder(folder)
    parameters = canonical_names(weights.tensors, family, folder)
    decoder_bias = f"{family.decoder}.bias"
    if config.model.coupled:
        words = huggingface_name(names.WORD_EMBEDDINGS, family, None)
        _join_tied(weights, parameters, f"{family.decoder}.weight", words)
        _join_tied(weights, parameters, decoder_bias, family.output_bias)
    elif decoder_bias in parameters:
        # An untied BERT still has the other bias, but does not add it.
        parameters[family.output_bias] = parameters.pop(decoder_bias)
    return _Source(_without_identity(config, weights, parameters), weights, parameters)


def _join_tied(
    weights: SafetensorsFolder, parameters: dict[str, str], duplicate: str, name: str
) -> None:
    """Joins two names of one parameter; a file may contain either or both."""
    if duplicate not in parameters:
        return
    parameter = parameters.pop(duplicate)
    if name not in parameters:
        parameters[name] = parameter
    elif not weights.same_content(parameters[name], parameter):
        raise UserError(
            f"{weights.folder}: {CONFIG} ties {duplicate} to {name}, but they differ"
        )


def _without_identity(
    config: HuggingFaceModel, weights: SafetensorsFolder, parameters: dict[str, str]
) -> HuggingFaceModel:
    """The model without its input projection, if that is a unit matrix.

    transformers' RemBERT projects E_in to H even if the two are equal. Our model does
    that only with `project_equal_widths`. `to_huggingface` writes a unit matrix for
    models without projection, and this function removes it again.
    """
    model = config.model
    kernel, bias = (huggingface_name(name, REMBERT, None) for name in (_KERNEL, _BIAS))
    if (
        config.family is not REMBERT
        or model.input_embedding_size != model.hidden_size
        or not {kernel, bias} <= parameters.keys()
    ):
        return config
    identity = np.eye(model.hidden_size, dtype=np.float32)
    is_identity = np.array_equal(weights.read(parameters[kernel]), identity)
    if is_identity and not np.any(weights.read(parameters[bias])):
        del parameters[kernel], parameters[bias]
        return config
    projected_model = dataclasses.replace(model, project_equal_widths=True)
    return config._replace(model=projected_model)


def _head_of_source(source: _Source) -> names.Head:
    family, head = source.config.family, source.config.head
    pooler = huggingface_name(f"{names.POOLER}/kernel", family, None)
    return names.Head(
        masked_lm=head == MASKED_LM,
        pooler=head in (CLASSIFICATION, REGRESSION) or pooler in source.parameters,
        labels=0 if head in (None, MASKED_LM) else _label_count(source),
    )


def _label_count(source: _Source) -> int:
    config, weights, parameters = source
    if config.head == QUESTION_ANSWERING:
        return names.SPANS.labels
    name = huggingface_name(names.TASK_WEIGHTS, config.family, config.head)
    if name not in parameters:
        raise UserError(f"{weights.folder}: no {name}, which the head needs")
    parameter = parameters[name]
    count = (weights.tensors[parameter].shape or (0,))[0]
    labels = len(config.labels or [REGRESSION])
    if labels != count:
        raise UserError(
            f"{weights.folder}: {parameter} has {count} rows, {CONFIG} has {labels} "
            "labels"
        )
    return count


def _task(config: HuggingFaceModel) -> dict[str, Any] | None:
    if config.head in (None, MASKED_LM):
        return None
    return {
        "name": run_folder.task_name(config.task or "") or "converted",
        "labels": config.labels or [],
        "kind": config.head,
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
        tensor_shapes = _write_weights(model, family, head, shapes, path)
        write_tokenizer(folder, model.vocabulary, model.config)
        files.write_json(os.path.join(folder, CONFIG), config)
    unused_names = sorted(set(model.weights) - set(shapes))
    for name in unused_names:
        console.say(f"  left out: {name}")
    report = {
        "architecture": config["architectures"][0],
        "tensors": len(tensor_shapes),
        "parameters": sum(int(np.prod(shape)) for shape in tensor_shapes.values()),
        "left_out": unused_names,
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
    our_names = {huggingface_name(name, family, head): name for name in shapes}
    tensor_shapes = {
        parameter: huggingface_shape(name, shapes[name], family)
        for parameter, name in our_names.items()
    }
    projection = _identity_projection(model.config, family)
    tensor_shapes |= {parameter: value.shape for parameter, value in projection.items()}

    def value_of(parameter: str) -> np.ndarray:
        if parameter in projection:
            return projection[parameter]
        name = our_names[parameter]
        return huggingface_value(name, model.weights[name], family)

    write_safetensors(path, tensor_shapes, value_of)
    return tensor_shapes


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
    layer, _, part = name.rpartition("/")
    if part.endswith("_embeddings"):
        layer, part = name, "kernel"
    part = "weight" if part == "kernel" else _LAYER_NORM.get(part, part)
    layer_names = {names.TRANSFORM: family.dense, names.TRANSFORM_NORM: family.norm}
    if is_classifier and family.classifier_pooler:
        layer_names[names.POOLER] = family.classifier_pooler
    if layer not in layer_names:
        layer = re.sub(r"^bert/", f"{family.prefix}/", layer)
        layer = re.sub(r"/layer_(\d+)", r"/layer/\1", layer).replace("/", ".")
    return f"{layer_names.get(layer, layer)}.{part}"


def huggingface_shape(name: str, shape: Shape, family: Family) -> Shape:
    """The shape of our variable in PyTorch."""
    if name == names.POSITION_EMBEDDINGS:
        return (shape[0] + family.unused_positions, *shape[1:])
    return shape[::-1] if name.endswith("/kernel") else shape


def our_value(name: str, parameter: np.ndarray, family: Family) -> np.ndarray:
    """A view of a parameter in the shape of our variable `name`."""
    if name == names.POSITION_EMBEDDINGS:
        return parameter[family.unused_positions :]
    return parameter.T if name.endswith("/kernel") else parameter


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
    result = {}
    for name in sorted(parameters):
        if name.endswith(".position_ids"):
            continue
        current_name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        current_name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", current_name)
        if current_name.startswith(("embeddings.", "encoder.", "pooler.")):
            current_name = f"{family.prefix}.{current_name}"
        if current_name in result:
            raise UserError(
                f"{folder}: {result[current_name]} and {name} are the same parameter"
            )
        result[current_name] = name
    return result
