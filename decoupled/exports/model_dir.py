"""Reads a model folder: config.json, sentencepiece.model, a checkpoint."""

import os
from typing import Any

from decoupled import files
from decoupled.configs import ModelConfig
from decoupled.data.vocabulary import Vocabulary
from decoupled.errors import UserError
from decoupled.exports.saved_model import TrainedModel
from decoupled.exports.weights import CheckpointWeights
from decoupled.training.checkpoints import find_checkpoint

FORMAT = "decoupled-model-1"
CONFIG = "config.json"
VOCABULARY = "sentencepiece.model"


def read_model_dir(model_dir: str, checkpoint: str | None = None) -> TrainedModel:
    """Opens a model that `pretrain` or `finetune` made.

    Args:
      model_dir: the run's folder.
      checkpoint: a prefix, or the name of one in `model_dir`; by default the newest
        complete one.

    Raises:
      UserError: a file is missing or not ours, the vocabulary is not the one that the
        model was trained with, or there is no complete checkpoint.
    """
    path = os.path.join(model_dir, CONFIG)
    saved = files.read_json(path)
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise UserError(
            f'{path}: not the description of a model ("format": "{FORMAT}")'
        )
    config = _model_config(path, saved.get("model"))
    vocabulary = Vocabulary(os.path.join(model_dir, VOCABULARY))
    fingerprint = (saved.get("vocabulary") or {}).get("fingerprint")
    if fingerprint != vocabulary.fingerprint:
        raise UserError(
            f"{vocabulary.path}: is not the vocabulary that the model was trained with "
            f"(fingerprint {vocabulary.fingerprint}, {CONFIG} says {fingerprint})"
        )
    prefix = find_checkpoint(_resolve(model_dir, checkpoint))
    labels = _labels(path, saved.get("task"))
    return TrainedModel(config, vocabulary, CheckpointWeights(prefix), labels)


def _model_config(path: str, fields: Any) -> ModelConfig:
    try:
        return ModelConfig(**fields)
    except TypeError as error:
        raise UserError(
            f'{path}: "model" does not fit this version ({files.reason(error)})'
        ) from error


def _labels(path: str, task: Any) -> list[str] | None:
    """A classifier's labels; None where the model has no task."""
    if not task:
        return None
    labels = task.get("labels") if isinstance(task, dict) else None
    if not labels or not all(isinstance(label, str) for label in labels):
        raise UserError(
            f'{path}: "task" has no list of labels; only sequence classifiers and '
            "pre-trained encoders can be exported"
        )
    return labels


def _resolve(model_dir: str, checkpoint: str | None) -> str:
    """A bare name, e.g. `model.ckpt-100`, is one in `model_dir`."""
    if not checkpoint:
        return model_dir
    return checkpoint if "/" in checkpoint else os.path.join(model_dir, checkpoint)
