"""A model folder of ours -> a folder that transformers loads.

RemBERT's architecture where the embeddings are decoupled, BERT's where they are
coupled and as wide as the hidden layers. What neither can be is refused.
"""

import os
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import FILE_NAME, Vocabulary
from decoupled.exports.interop.checkpoint_files import CheckpointFile
from decoupled.exports.interop.huggingface_config import CONFIG, make_config
from decoupled.exports.interop.huggingface_names import (
    BERT,
    MASKED_LM,
    REMBERT,
    Family,
    huggingface_name,
    huggingface_shape,
    is_transposed,
)
from decoupled.exports.interop.matching import check_shape
from decoupled.exports.interop.safetensors_files import FILE_NAME as WEIGHTS
from decoupled.exports.interop.safetensors_files import Shape, write_safetensors
from decoupled.exports.interop.tokenizer_files import write_tokenizer
from decoupled.exports.new_folder import check_target, new_folder
from decoupled.model import variables as names
from decoupled.runs import run_folder as model_dirs
from decoupled.runs.saved_run import read_folder
from decoupled.tasks.registry import CLASSIFICATION, QUESTION_ANSWERING, TAGGING

_KINDS = (CLASSIFICATION, TAGGING, QUESTION_ANSWERING)


class _Model(NamedTuple):
    """What is written.

    head: a value of `huggingface_names.HEADS`. labels, task: of a task's model.
    """

    config: ModelConfig
    vocabulary: Vocabulary
    stored: CheckpointFile
    family: Family
    head: str | None
    labels: list[str] | None
    task: str | None


def to_huggingface(
    model_dir: str, prefix: str, hf_dir: str, encoder_only: bool
) -> dict[str, Any]:
    """Writes config.json, model.safetensors and the tokenizer's files.

    Args:
      model_dir: folder of a run, or of a conversion.
      prefix: its checkpoint.
      hf_dir: written; it must not exist yet, or be empty.
      encoder_only: leave the head out.

    Returns:
      What was written: `architecture`, `tensors`, `parameters`, `left_out` (names).

    Raises:
      UserError: the checkpoint is not of the folder's model, or the architecture is
        one that transformers does not have; nothing is written.
    """
    check_target(hf_dir)
    model = _open(model_dir, prefix, encoder_only)
    shapes = _wanted_shapes(model)
    for name, shape in shapes.items():
        if name not in model.stored.shapes:
            raise UserError(f"{prefix}: no variable {name} {list(shape)}")
        found = model.stored.shapes[name]
        check_shape(prefix, name, found, shape, model_dirs.CONFIG)
    left = sorted(
        name
        for name in model.stored.shapes
        if name not in shapes and name != names.GLOBAL_STEP and not names.is_slot(name)
    )
    for name in names.foreign(model.config, left):
        raise UserError(
            f"{prefix}: {name} is not part of the model that {model_dirs.CONFIG} "
            "describes"
        )
    config = _write(model, shapes, hf_dir)
    return {
        "architecture": config["architectures"][0],
        "tensors": len(shapes),
        "parameters": sum(int(np.prod(shape)) for shape in shapes.values()),
        "left_out": left,
    }


def _open(model_dir, prefix, encoder_only):
    described, vocabulary = read_folder(model_dir)
    stored = CheckpointFile(prefix)
    head, labels, task = _head(model_dir, described.task, stored)
    if encoder_only:
        head, labels, task = None, None, None
    family = _family(model_dir, described.model, head)
    return _Model(described.model, vocabulary, stored, family, head, labels, task)


def _head(model_dir, task, stored):
    """(head, labels, name of the task)."""
    if task is None:
        head = MASKED_LM if names.OUTPUT_BIAS in stored.shapes else None
        return head, None, None
    kind = task.get("kind", CLASSIFICATION)
    path = os.path.join(model_dir, model_dirs.CONFIG)
    if kind not in _KINDS:
        raise UserError(
            f"{path}: a task of the kind {kind!r}; known: {', '.join(_KINDS)}"
        )
    if kind == QUESTION_ANSWERING:
        return kind, None, task.get("name")
    labels = task.get("labels")
    if not labels or not all(isinstance(label, str) for label in labels):
        raise UserError(f'{path}: "task" has no list of labels')
    return kind, list(labels), task.get("name")


def _family(model_dir, config: ModelConfig, head) -> Family:
    """The architecture that computes the same, or a refusal."""
    if head == MASKED_LM and config.mlm_transform != "dense_activation_norm":
        raise UserError(
            f"{model_dir}: its MLM head is the plain projection of the paper "
            "(mlm_transform), transformers' heads have activation and layer norm; "
            "convert it with --encoder_only"
        )
    if head == MASKED_LM and config.output_embedding_rank:
        raise UserError(
            f"{model_dir}: its output embedding is a product of two matrices "
            f"(output_embedding_rank = {config.output_embedding_rank}), transformers "
            "has one matrix; convert it with --encoder_only"
        )
    if config.coupled and not config.projects_input:
        return BERT
    if config.coupled and head == MASKED_LM:
        raise UserError(
            f"{model_dir}: one table of width {config.input_embedding_size} is input "
            f"and output embedding of a model of width {config.hidden_size}; "
            "transformers has no such BERT or RemBERT; convert it with --encoder_only"
        )
    return REMBERT


def _wanted_shapes(model: _Model) -> dict[str, Shape]:
    labels = 0
    if model.head not in (None, MASKED_LM):
        spans = model.head == QUESTION_ANSWERING
        labels = names.SPANS.labels if spans else len(model.labels)
    own_pooler = model.head is None and f"{names.POOLER}/kernel" in model.stored.shapes
    head = names.Head(
        masked_lm=model.head == MASKED_LM,
        pooler=model.head == CLASSIFICATION or own_pooler,
        labels=labels,
    )
    return names.shapes(model.config, head)


def _write(model, shapes, hf_dir):
    config = make_config(
        model.config,
        model.vocabulary,
        model.family,
        model.head,
        model.labels,
        model.task,
    )
    with new_folder(hf_dir) as folder:
        files.make_folder(folder)
        _write_weights(model, shapes, os.path.join(folder, WEIGHTS))
        write_tokenizer(folder, model.vocabulary, model.config)
        with files.atomic_write(os.path.join(folder, FILE_NAME), "wb") as handle:
            handle.write(model.vocabulary.model_bytes)
        files.write_json(os.path.join(folder, CONFIG), config)
    return config


def _write_weights(model, shapes, path):
    """Streams the weights, and the unit matrix that RemBERT wants where E_in = H."""
    ours = {huggingface_name(name, model.family, model.head): name for name in shapes}
    theirs = {
        parameter: huggingface_shape(name, shapes[name])
        for parameter, name in ours.items()
    }
    made = _identity_projection(model)
    theirs |= {parameter: value.shape for parameter, value in made.items()}

    def value_of(parameter):
        if parameter in made:
            return made[parameter]
        value = model.stored.read(ours[parameter])
        return value.T if is_transposed(ours[parameter]) else value

    write_safetensors(path, theirs, value_of)


def _identity_projection(model):
    """What RemBERT has between embeddings and layers of one width, and ours has not."""
    size = model.config.hidden_size
    if model.family is not REMBERT or model.config.projects_input:
        return {}
    values = {
        f"{names.PROJECTION}/kernel": np.eye(size, dtype=np.float32),
        f"{names.PROJECTION}/bias": np.zeros(size, np.float32),
    }
    return {huggingface_name(n, REMBERT, None): value for n, value in values.items()}
