"""What determines a graph: the network, and how it is trained."""

from collections.abc import Mapping
from typing import NamedTuple

from decoupled.configs import (
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ScheduleConfig,
)
from decoupled.model.variables import Variable, declare
from decoupled.tasks.mlm import MaskedLM
from decoupled.tasks.task import Task


class Network(NamedTuple):
    """What a graph needs to predict, besides the features.

    task: with its head. model: sizes of the encoder. mesh: its shape and layout.
    """

    task: Task
    model: ModelConfig
    mesh: MeshConfig

    @property
    def variables(self) -> Mapping[str, Variable]:
        """All variables of the encoder and the head, by name, without slots."""
        return declare(self.model, self.task.head)


class TrainingGraph(NamedTuple):
    """What a graph needs to train a network.

    optimizer, schedule: of the updates. accumulation: microbatches per step.
    seed: of initial weights, dropout and stochastic rounding.
    frozen: names of variables that are not trained.
    recompute_layers: gradient checkpointing of every encoder layer.
    """

    network: Network
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    accumulation: int
    seed: int
    frozen: tuple[str, ...]
    recompute_layers: bool = False


def pretraining_graph(config: PretrainConfig, pad_id: int = 0) -> TrainingGraph:
    """The graph of a pre-training run.

    Args:
      config: the settings. pad_id: see `MaskedLM`.
    """
    training = config.training
    task = MaskedLM(config.masking, training.label_smoothing, pad_id)
    return TrainingGraph(
        network=Network(task, config.model, config.mesh),
        optimizer=config.optimizer,
        schedule=config.schedule,
        accumulation=training.gradient_accumulation,
        seed=training.seed,
        frozen=(),
        recompute_layers=training.recompute_layers,
    )
