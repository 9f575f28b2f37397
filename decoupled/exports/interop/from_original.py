"""An original TensorFlow checkpoint -> a folder like that of a run.

Checkpoints of gs://gresearch/rembert and of google-research/bert: the variables of
their encoders have BERT's names, as ours do. The names in the masked-LM head of the
released RemBERT are not documented. Names that are not BERT's are matched by shape.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.files import check_target
from decoupled.core.release import tf
from decoupled.data.tokenizer_checks import VOCAB
from decoupled.data.vocabulary import FILE_NAME, open_vocabulary
from decoupled.exports.interop.conversion import (
    Contents,
    initial_value,
    match,
    write_converted_folder,
)
from decoupled.exports.interop.huggingface_config import original_settings
from decoupled.exports.interop.huggingface_tokenizer import unused_rows
from decoupled.model import variables as names
from decoupled.model.variables import Shape
from decoupled.training.checkpoint_files import CheckpointFile

_SIZES = "the model's gin file"
# Of google-research/bert.
_BERT_CONFIG = "bert_config.json"
# The last part of a name -> the role of the variable. Other names may have any role.
_ROLES = {
    "kernel": "kernel",
    "gamma": "gamma",
    "scale": "gamma",
    "beta": "beta",
    "bias": "bias",
    "output_bias": "bias",
}


def from_original(
    checkpoint: str,
    model_dir: str,
    model: ModelConfig,
    vocabulary: str,
    allowed_patterns: Sequence[str],
) -> dict[str, Any]:
    """Converts a checkpoint and its vocabulary; returns the content of conversion.json.

    `allowed_patterns` are as for `from_huggingface`.
    """
    check_target(model_dir)
    original = CheckpointFile(checkpoint)
    pieces = open_vocabulary(vocabulary)
    notes = []
    _check_folder(os.path.dirname(checkpoint), model, pieces, notes)
    weights = {
        name: shape
        for name, shape in original.shapes.items()
        if name != names.GLOBAL_STEP and not names.is_moment(name)
    }
    encoder = names.declare(model, names.NO_HEAD)
    head_shapes = names.shapes(model, names.MASKED_LM)
    head = {name: shape for name, shape in head_shapes.items() if name not in encoder}
    renames = match_by_shape(checkpoint, head, weights)
    has_head = bool(renames or set(head) & set(weights))
    kept_head = names.Head(has_head, pooler=f"{names.POOLER}/kernel" in weights)
    shapes, variables = names.shapes(model, kept_head), names.declare(model, kept_head)
    targets = {name: (renames.get(name, name), shapes[name]) for name in shapes}
    sources = {name: (name, shape) for name, shape in weights.items()}
    matching = match(checkpoint, targets, sources, _SIZES, allowed_patterns)
    slots = _moments(original, matching.sources, shapes)
    origins = matching.sources | slots
    about = {
        "renamed": {old: new for new, old in sorted(renames.items())},
        "unused": matching.unused,
        "unset": matching.unset,
        "encoder_only": not has_head,
        "optimizer_slots": len(slots),
        "notes": notes,
    }

    def value_of(name: str) -> np.ndarray | tf.Tensor:
        if name in origins:
            return original.read_tensor(origins[name])
        return initial_value(variables[name], model)

    return write_converted_folder(
        model_dir,
        Contents(
            source=os.path.abspath(checkpoint),
            kind="original TensorFlow checkpoint",
            model=model,
            vocabulary=pieces,
            task=None,
            shapes=shapes,
            value_of=value_of,
            step=original.global_step or 0,
            about=about,
            slots=list(slots),
        ),
    )


def _check_folder(folder, model, vocabulary, notes) -> None:
    """Compares sizes and vocabulary with the files beside a checkpoint, which has
    neither the vocabulary nor all sizes."""
    rows = model.vocab_size
    names = (os.path.join(folder, name) for name in (VOCAB, FILE_NAME))
    path = next(filter(files.exists, names), os.path.join(folder, FILE_NAME))
    is_beside = files.exists(path)
    if is_beside and open_vocabulary(path).fingerprint != vocabulary.fingerprint:
        raise UserError(f"--vocabulary: {vocabulary.path} is not {path}")
    if vocabulary.size > rows or (vocabulary.size < rows and not is_beside):
        raise UserError(
            f"{vocabulary.path}: {vocabulary.size} pieces, the model has {rows} rows; "
            f"only {path} may have fewer pieces"
        )
    if vocabulary.size < rows:
        notes.append(unused_rows(vocabulary, rows))
    path = os.path.join(folder, _BERT_CONFIG)
    if not files.exists(path):
        return
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: not an object")
    for name, value in original_settings(model).items():
        setting = content.get(name, value)
        if setting != value:
            raise UserError(
                f"{path}: {name} is {setting!r}, but {value!r} in {_SIZES}; correct it"
            )


def match_by_shape(
    where: str, head: Mapping[str, Shape], weights: Mapping[str, Shape]
) -> dict[str, str]:
    """Variables of the masked-LM head that have other names in the checkpoint.

    A variable outside of the encoder is matched with a variable of the head if it is
    the only one of that shape whose role fits. The last part of its name (gamma, beta,
    bias, kernel) may say its role. Returns our name -> the checkpoint's.
    """
    free_names = [n for n in weights if n not in head and not n.startswith("bert/")]
    matches = {}
    for name, shape in head.items():
        if name in weights:
            continue
        candidates = [
            other
            for other in free_names
            if weights[other] == shape and _role(other) in (_role(name), "")
        ]
        if len(candidates) > 1:
            raise UserError(
                f"{where}: {' and '.join(candidates)} could each be {name} "
                f"{list(shape)}; save the checkpoint without one of them"
            )
        if candidates:
            matches[name] = candidates[0]
            free_names.remove(candidates[0])
    return matches


def _role(name: str) -> str:
    scope, _, part = name.rpartition("/")
    role = _ROLES.get(part, "")
    return "beta" if role == "bias" and "norm" in scope.lower() else role


def _moments(
    original: CheckpointFile, sources: Mapping[str, str], shapes: Mapping[str, Shape]
) -> dict[str, str]:
    """Our slot -> the checkpoint's, for variables with both moments there."""
    moments = {}
    for name, source in sources.items():
        source_slots = names.slots(source)
        if all(original.shapes.get(slot) == shapes[name] for slot in source_slots):
            moments |= zip(names.slots(name), source_slots, strict=True)
    return moments
