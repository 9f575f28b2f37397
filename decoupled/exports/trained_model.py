"""What is exported: sizes, vocabulary and checkpoint of a model folder."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from decoupled import model_dir as model_dirs
from decoupled.configs import ModelConfig
from decoupled.data.vocabulary import Vocabulary
from decoupled.errors import UserError
from decoupled.exports import weights as names
from decoupled.exports.weights import CheckpointWeights
from decoupled.training.checkpoints import find_checkpoint
from decoupled.training.saved_run import read_folder
from decoupled.training.selection import chosen_checkpoint

# [CLS] and two [SEP], and a piece for each of two segments.
_SHORTEST = 5
# TF Hub's text preprocessors pack to this length by default.
_HUB_SEQUENCE_LENGTH = 128
_CLASSIFICATION = "classification"


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """What is exported.

    config: the model's sizes. vocabulary: its pieces. weights: its names.
    labels: of a sequence classifier, in the order of their ids; None for an encoder.
    trained_length: tokens of the inputs in training; None where the folder does not
      say, as that of a conversion.
    """

    config: ModelConfig
    vocabulary: Vocabulary
    weights: CheckpointWeights
    labels: Sequence[str] | None
    trained_length: int | None

    @property
    def default_length(self) -> int:
        """The length of training; where it is unknown TF Hub's, if the model has it."""
        return self.trained_length or min(
            _HUB_SEQUENCE_LENGTH, self.config.max_positions
        )

    @property
    def kind(self) -> str:
        """`encoder` or `classifier`."""
        return "encoder" if self.labels is None else "classifier"

    def check(self, sequence_length: int, mlm: bool) -> None:
        """Refuses what cannot be exported, before anything is written.

        Raises:
          UserError: a variable is missing or has another shape, the MLM head is asked
            for and not there, or the sequence length is impossible.
        """
        longest = self.config.max_positions
        if not _SHORTEST <= sequence_length <= longest:
            raise UserError(
                f"--sequence_length: {sequence_length} is not between {_SHORTEST} and "
                f"the model's max_positions = {longest}"
            )
        expected = names.encoder_shapes(self.config)
        if self.labels is not None:
            expected |= names.classifier_shapes(self.config, len(self.labels))
        if mlm:
            if names.OUTPUT_BIAS not in self.weights:
                raise UserError(
                    f"{self.weights.path}: holds no MLM head (fine-tuning drops it); "
                    "export without --mlm, or a pre-training checkpoint"
                )
            expected |= names.masked_lm_shapes(self.config)
        self.weights.check(expected)


def read_model_dir(model_dir: str, checkpoint: str | None = None) -> TrainedModel:
    """Opens a model that `pretrain` or `finetune` made.

    Args:
      model_dir: the run's folder.
      checkpoint: a prefix, or the name of one in `model_dir`; by default the best one
        where fine-tuning chose it, else the newest complete one.

    Raises:
      UserError: a file is missing or not ours, the vocabulary is not the one that the
        model was trained with, or there is no complete checkpoint.
    """
    described, vocabulary = read_folder(model_dir)
    prefix = _find(model_dir, checkpoint)
    path = os.path.join(model_dir, model_dirs.CONFIG)
    return TrainedModel(
        config=described.model,
        vocabulary=vocabulary,
        weights=CheckpointWeights(prefix),
        labels=_labels(path, described.task),
        trained_length=_trained_length(path, described),
    )


def _labels(path: str, task: dict[str, Any] | None) -> list[str] | None:
    """A classifier's labels; None where the model has no task."""
    if task is None:
        return None
    labels = task.get("labels")
    classifies = task.get("kind", _CLASSIFICATION) == _CLASSIFICATION
    strings = labels and all(isinstance(label, str) for label in labels)
    if not (classifies and strings):
        raise UserError(
            f'{path}: "task" has no list of labels; only sequence classifiers and '
            "pre-trained encoders can be exported"
        )
    return labels


def _trained_length(path: str, described: model_dirs.ModelDir) -> int | None:
    """What `finetune` or `pretrain` wrote about the length of its inputs."""
    data = described.data if isinstance(described.data, dict) else {}
    for part, name in (
        ("features", "max_sequence_length"),
        ("masking", "sequence_length"),
    ):
        settings = data.get(part)
        if not isinstance(settings, dict) or name not in settings:
            continue
        length, longest = settings[name], described.model.max_positions
        if type(length) is not int or not 1 <= length <= longest:
            raise UserError(
                f"{path}: {name} is {length!r}, not between 1 and the model's "
                f"max_positions = {longest}"
            )
        return length
    return None


def _find(model_dir: str, checkpoint: str | None) -> str:
    """The prefix; a bare name, e.g. `model.ckpt-100`, is one in `model_dir`."""
    if not checkpoint:
        return chosen_checkpoint(model_dir).prefix
    if "/" not in checkpoint:
        checkpoint = os.path.join(model_dir, checkpoint)
    return find_checkpoint(checkpoint)
