"""The folder of a run: config.json and sentencepiece.model beside the checkpoints.

config.json says what the folder's model is. It is written when a run starts for the
first time, and later starts must agree with it, so that a folder never mixes two
models. It holds values only: reading one from elsewhere runs no code.
"""

import os
from typing import Any, NamedTuple

from decoupled import files
from decoupled.configs import ModelConfig
from decoupled.errors import UserError

FORMAT = "decoupled-model-1"
CONFIG = "config.json"
VOCABULARY = "sentencepiece.model"
# How a reader chose answers when it was last run, which decides nothing in training.
ANSWERS = "answers.json"


class ModelDir(NamedTuple):
    """What config.json says.

    command: "pretrain" or "finetune". model: sizes.
    vocabulary_fingerprint: SHA-256 of the vocabulary that the model was trained with.
    task: name, labels and the like of a fine-tuned model, or None.
    data: what else decides the order of the data (seed, batch size, masking, ...).
    """

    command: str
    model: ModelConfig
    vocabulary_fingerprint: str
    task: dict[str, Any] | None
    data: dict[str, Any]


def vocabulary_path(model_dir: str) -> str:
    """The vocabulary beside the checkpoints."""
    return os.path.join(model_dir, VOCABULARY)


def read(model_dir: str) -> ModelDir:
    """Reads config.json.

    Raises:
      UserError: it is missing, or not a description of a model of this version.
    """
    path = os.path.join(model_dir, CONFIG)
    if not files.exists(path):
        raise UserError(
            f"{model_dir}: no {CONFIG}; is it a folder that pretrain or finetune wrote?"
        )
    saved = _completed(files.read_json(path))
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise UserError(
            f'{path}: not the description of a model ("format": "{FORMAT}")'
        )
    try:
        return ModelDir(
            command=saved["command"],
            model=ModelConfig(**saved["model"]),
            vocabulary_fingerprint=saved["vocabulary"]["fingerprint"],
            task=saved["task"],
            data=saved["data"],
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: does not fit this version ({files.reason(error)})"
        ) from error


def claim(model_dir: str, description: ModelDir, vocabulary: str) -> None:
    """Makes the folder this model's, or checks that it is.

    Args:
      model_dir: made if it does not exist.
      description: of the run that starts.
      vocabulary: path of its vocabulary, copied into the folder.

    Raises:
      UserError: the folder cannot be written to, or holds another model; each setting
        that differs is named with both values.
    """
    files.make_folder(model_dir)
    path = os.path.join(model_dir, CONFIG)
    wanted = _as_json(description)
    if files.exists(path):
        _check_same(model_dir, _completed(files.read_json(path)), wanted)
        return
    if files.exists(os.path.join(model_dir, "checkpoint")):
        raise UserError(
            f"{model_dir}: holds checkpoints but no {CONFIG}; use an empty folder"
        )
    with files.atomic_write(vocabulary_path(model_dir), "wb") as handle:
        handle.write(files.read_bytes(vocabulary))
    files.write_json(path, wanted)


def _completed(saved):
    """Adds what config.json did not say when models had no choice about it."""
    model = saved.get("model") if isinstance(saved, dict) else None
    if isinstance(model, dict):
        model.setdefault("project_equal_widths", False)
    return saved


def _as_json(description):
    return {
        "format": FORMAT,
        "command": description.command,
        "model": vars(description.model),
        "vocabulary": {
            "fingerprint": description.vocabulary_fingerprint,
            "vocab_size": description.model.vocab_size,
        },
        "task": description.task,
        "data": description.data,
    }


def _check_same(model_dir, saved, wanted):
    differing = list(_differences("", saved, wanted))
    if differing:
        raise UserError(
            f"{model_dir}: holds another model: {'; '.join(differing)}; use its "
            "settings to go on, or another --model_dir"
        )


def _differences(name, saved, wanted):
    """Yields "a.b is 1, not 2" for every leaf that differs."""
    if not (isinstance(saved, dict) and isinstance(wanted, dict)):
        if saved != wanted:
            yield f"{name} is {saved!r}, not {wanted!r}"
        return
    for key in sorted(set(saved) | set(wanted)):
        inner = f"{name}.{key}" if name else key
        yield from _differences(inner, saved.get(key), wanted.get(key))
