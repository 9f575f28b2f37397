"""A run's folder -> a folder that transformers loads.

The architecture is RemBERT if the embeddings are decoupled. If they are coupled and as
wide as the hidden layers, it is XLM-R with XLM-R's pieces and one token type, and else
BERT. Other models are refused.
"""

import os
from typing import Any

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.core.files import check_target, new_folder
from decoupled.data.vocabulary import XLM_R as XLM_R_PIECES
from decoupled.exports.interop.huggingface_config import CONFIG, make_config
from decoupled.exports.interop.huggingface_format import (
    BERT,
    MASKED_LM,
    REMBERT,
    XLM_R,
    Family,
    huggingface_name,
    huggingface_shape,
    huggingface_value,
)
from decoupled.exports.interop.safetensors_files import FILE_NAME as WEIGHTS
from decoupled.exports.interop.safetensors_files import write_safetensors
from decoupled.exports.interop.tokenizer_json import write_tokenizer
from decoupled.exports.served_task import LABELLED, ServedTask, read_task, task_head
from decoupled.model import variables as names
from decoupled.runs import run_folder
from decoupled.runs.saved_run import Model, open_model


def to_huggingface(
    model_dir: str, checkpoint: str | None, hf_dir: str, encoder_only: bool
) -> dict[str, Any]:
    """Writes config.json, model.safetensors and the tokenizer's files, and says so.

    Returns:
      What was written: `architecture`, `tensors`, `parameters`, `left_out` (names).

    Raises:
      UserError: the checkpoint is not of the folder's model, or the architecture is
        one that transformers does not have; nothing is written.
    """
    check_target(hf_dir)
    model = open_model(model_dir, checkpoint, verify=False)
    task = read_task(model)
    head = None if encoder_only else _head(model, task)
    family = _family(model, head)
    variables = _variables(model, task, head)
    model.weights.check(model.config, variables)
    shapes = names.shapes(model.config, variables)
    config = make_config(
        model.config,
        model.vocabulary,
        family,
        head,
        list(task.labels) if head in LABELLED else None,
        None if encoder_only else task.name,
        None if encoder_only else run_folder.classifier_dropout(model_dir),
    )
    with new_folder(hf_dir) as folder:
        files.make_folder(folder)
        path = os.path.join(folder, WEIGHTS)
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


def _head(model: Model, task: ServedTask) -> str | None:
    if task.head is None and names.OUTPUT_BIAS in model.weights:
        return MASKED_LM
    return task.head


def _family(model: Model, head: str | None) -> Family:
    """The architecture that computes the same; raises UserError if there is none."""
    model_dir, config = model.folder, model.config
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


def _variables(model: Model, task: ServedTask, head: str | None) -> names.Head:
    """The head in our declaration; an encoder keeps its pooler if it has one."""
    if head == MASKED_LM:
        return names.MASKED_LM
    if head is None:
        return names.Head(pooler=f"{names.POOLER}/kernel" in model.weights)
    return task_head(head, len(task.labels))


def _write_weights(
    model: Model,
    family: Family,
    head: str | None,
    shapes: dict[str, names.Shape],
    path: str,
) -> dict[str, names.Shape]:
    """Writes the weights one by one, and the unit matrix that RemBERT needs if
    E_in = H; returns the shapes by transformers' names."""
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
    values = {
        f"{names.PROJECTION}/kernel": np.eye(size, dtype=np.float32),
        f"{names.PROJECTION}/bias": np.zeros(size, np.float32),
    }
    return {huggingface_name(n, REMBERT, None): value for n, value in values.items()}
