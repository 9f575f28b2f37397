"""Random weights of this project's models, and a checkpoint of them."""

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.model.variables import GLOBAL_STEP, Head, shapes
from decoupled.training.checkpoint_files import CheckpointWriter


def random_weights(model: ModelConfig, head: Head) -> dict[str, np.ndarray]:
    """Weights, the same in every process; layer norms start from the identity."""
    generator = np.random.default_rng(0)
    return {
        name: np.ones(shape, np.float32)
        if name.endswith("gamma")
        else generator.normal(0, model.initializer_range, shape).astype(np.float32)
        for name, shape in shapes(model, head).items()
    }


def write_checkpoint(prefix: str, model: ModelConfig, head: Head) -> int:
    """Writes random weights as a checkpoint of step 0; returns how many there are."""
    weights = random_weights(model, head)
    with CheckpointWriter(prefix) as writer:
        for name, value in weights.items():
            writer.add(name, value)
        writer.add(GLOBAL_STEP, np.array(0, np.int64))
    return sum(value.size for value in weights.values())
