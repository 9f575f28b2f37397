"""What the settings that save memory save and cost, on this machine's CPUs.

  python -m benchmarks.memory_levers

Each setting runs in a process of its own: peak memory is the kernel's count over the
life of the process, the time the median of its steps after the first.
"""

import argparse
import dataclasses
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.sizes import NARROW, NARROW_BATCH
from decoupled.configs import ModelConfig
from decoupled.core import console

# Activations outweigh the weights here, as in a long run on TPUs.
MODEL = dataclasses.replace(NARROW, vocab_size=8_000, output_embedding_size=256)
SEQUENCES, LENGTH, PREDICTIONS = NARROW_BATCH
ADAFACTOR = {"name": "adafactor", "weight_decay": 0.0, "beta1": 0.0}
BFLOAT16 = {"activation_dtype": "bfloat16"}
SLICES = {"slice_dtype": "bfloat16"}
# Here weights outweigh the rest, on devices that have their own beside what is saved.
LARGE = {"vocab_size": 120_000, "num_layers": 1}
TWO_DEVICES = {"mesh_shape": "d:2", "layout_rules": "batch:d", **BFLOAT16}


class Lever(NamedTuple):
    """Changes of the graph, of the mesh, of the optimizer and of the model's sizes."""

    graph: dict = {}
    mesh: dict = {}
    optimizer: dict = {}
    model: dict = {}


LEVERS = {
    "none": Lever(),
    "recompute_layers": Lever({"recompute_layers": True}),
    "4 microbatches": Lever({"accumulation": 4}),
    "both": Lever({"recompute_layers": True, "accumulation": 4}),
    "bfloat16 activations": Lever(mesh=BFLOAT16),
    "bfloat16 slices": Lever(mesh=SLICES),
    "bfloat16 activations and slices": Lever(mesh={**BFLOAT16, **SLICES}),
    "adafactor": Lever(optimizer=ADAFACTOR),
    "120,000 pieces, 2 devices": Lever(mesh=TWO_DEVICES, model=LARGE),
    "120,000 pieces, 2 devices, bfloat16 slices": Lever(
        mesh={**TWO_DEVICES, **SLICES}, model=LARGE
    ),
}


def main(arguments: list[str] | None = None) -> None:
    """Measures all settings, or the one that --lever names, and prints a table."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.memory_levers")
    options.add_argument(
        "--lever", choices=list(LEVERS), help="this setting alone, as JSON"
    )
    options.add_argument("--steps", type=int, default=5, help="timed steps (5)")
    given = options.parse_args(arguments)
    if given.lever:
        print(json.dumps(measure(given.lever, given.steps)))
        return
    rows = []
    for name in console.track(list(LEVERS), "measuring"):
        command = [sys.executable, "-m", "benchmarks.memory_levers", "--lever", name]
        command += ["--steps", str(given.steps)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        rows.append([name, f"{found['peak'] / 1e6:.0f} MB", f"{found['step']:.2f} s"])
    console.table("Settings that save memory", ["setting", "peak", "step"], rows)


def measure(name: str, steps: int, model: ModelConfig = MODEL) -> dict[str, float]:
    """Bytes at the peak of this process, and seconds of a step, with one setting.

    Args:
      name: of `LEVERS`. steps: that are timed.
      model: sizes that the lever changes.
    """
    import numpy as np

    from decoupled.configs import (
        MaskingConfig,
        MeshConfig,
        OptimizerConfig,
        ScheduleConfig,
    )
    from decoupled.core.compat import tf
    from decoupled.tasks.mlm import MaskedLM
    from decoupled.training.graph import build_step
    from decoupled.training.mesh import session_config
    from decoupled.training.network import Network, TrainingGraph

    lever = LEVERS[name]
    model = dataclasses.replace(model, **lever.model)
    optimizer = {
        **dict(name="adamw", learning_rate=1e-4, weight_decay=0.01, beta1=0.9),
        **dict(beta2=0.999, epsilon=1e-6, clip_norm=1.0),
        **lever.optimizer,
    }
    settings = {
        **dict(mesh_shape="all:1", layout_rules="", activation_dtype="float32"),
        **dict(embedding_lookup="gather", slice_dtype="float32", stack_mib=0),
        **lever.mesh,
    }
    masking = MaskingConfig(LENGTH, PREDICTIONS, 0.15, 0.8, 0.1)
    task = MaskedLM(masking, label_smoothing=0.0)
    mesh = MeshConfig(**settings)
    config = TrainingGraph(
        Network(task, model, mesh),
        optimizer=OptimizerConfig(**optimizer),
        schedule=ScheduleConfig(100, 0, "constant", None, 0.0),
        **{"accumulation": 1, "seed": 0, "frozen": (), **lever.graph},
    )
    rng = np.random.default_rng(0)
    ids = rng.integers(0, model.vocab_size, [SEQUENCES, LENGTH]).astype(np.int32)
    places = np.arange(PREDICTIONS, dtype=np.int32)
    features = {
        "input_word_ids": ids,
        "input_mask": np.ones_like(ids),
        "input_type_ids": np.zeros_like(ids),
        "masked_lm_positions": np.tile(places, [SEQUENCES, 1]),
        "masked_lm_ids": ids[:, :PREDICTIONS],
        "masked_lm_weights": np.ones([SEQUENCES, PREDICTIONS], np.float32),
    }
    with tf.Graph().as_default():
        constants = {key: tf.constant(value) for key, value in features.items()}
        tf.train.get_or_create_global_step()
        lowered = build_step(config, constants)
        copy = lowered.lowering.copy_masters_to_slices()
        with tf.Session(config=session_config(mesh)) as session:
            session.run(tf.global_variables_initializer())
            session.run(copy)
            times = []
            for _ in range(steps + 1):
                start = time.monotonic()
                session.run(lowered.update)
                times.append(time.monotonic() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak": peak, "step": statistics.median(times[1:])}


if __name__ == "__main__":
    main()
