"""Worker: fine-tuning steps of this project's classifier, in the graph of training."""

import protocol
import synthetic
from decoupled_pretraining import parameters, training_step

from decoupled.configs import (
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from decoupled.tasks.classification import Classification
from decoupled.training.network import Network, TrainingGraph


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds a batch's sizes (see `synthetic`), "dropout" before the classifier,
    and the fields of configurations: "model", "mesh" and "optimizer"."""
    step, lowered = training_step(
        _graph_config(case), synthetic.classification_batch(case)
    )
    return step, {
        "parameters": parameters(lowered),
        "versions": protocol.versions("decoupled", "tensorflow", "mesh-tensorflow"),
    }


def _graph_config(case):
    task = Classification(
        name="classification",
        labels=[str(label) for label in range(case["labels"])],
        sequence_length=case["sequence_length"],
        dropout=case["dropout"],
        label_smoothing=0.0,
    )
    model, mesh = ModelConfig(**case["model"]), MeshConfig(**case["mesh"])
    return TrainingGraph(
        Network(task, model, mesh),
        optimizer=OptimizerConfig(**case["optimizer"]),
        schedule=ScheduleConfig(100_000, 0, "constant", None, 0.0),
        accumulation=1,
        seed=1,
        frozen=(),
    )


if __name__ == "__main__":
    protocol.serve(build)
