"""Parameters per group of a model's variables; no graph is built."""

import dataclasses

from decoupled.configs import ModelConfig
from decoupled.core.errors import UserError
from decoupled.model.variables import GROUPS, MASKED_LM, Head, Role, declare


def pretraining_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters of the masked-LM model (the paper's PT) per group of variables."""
    return _count(config, MASKED_LM)


def finetuning_counts(config: ModelConfig, keep_layers: int = 0) -> dict[str, int]:
    """Parameters of a classifier (the paper's FT) per group of variables.

    The pooler is counted, the task's own last layer is not.

    Args:
      config: of pre-training.
      keep_layers: the first so many layers are used; 0 keeps all.

    Raises:
      UserError: `keep_layers` is negative or more than the model has.
    """
    if type(keep_layers) is not int or not 0 <= keep_layers <= config.num_layers:
        raise UserError(
            f"keep_layers: {keep_layers!r} is not a number of layers from 1 to "
            f"{config.num_layers}, nor 0, which keeps all"
        )
    kept = dataclasses.replace(config, num_layers=keep_layers or config.num_layers)
    return _count(kept, Head(pooler=True))


def _count(config, head):
    groups = [group for group, role in GROUPS.items() if role is not Role.TASK_HEAD]
    counts = dict.fromkeys(groups, 0)
    for variable in declare(config, head).values():
        counts[variable.group] += variable.size
    return counts
