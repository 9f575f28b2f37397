"""Calls `rembert_reference.py` in the interpreter that has PyTorch."""

import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile

import numpy as np
import pytest

from decoupled.configs import ModelConfig

SCRIPT = pathlib.Path(__file__).parent / "rembert_reference.py"
PYTHON = os.environ.get("DECOUPLED_INTEROP_PYTHON")
NEEDS_TRANSFORMERS = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not PYTHON,
        reason="DECOUPLED_INTEROP_PYTHON names no interpreter with torch, transformers",
    ),
]


def run_reference(
    weights: dict[str, np.ndarray], config: ModelConfig, batch: dict[str, np.ndarray]
) -> dict:
    """RemBERT with these weights on this batch, without dropout, in float64.

    The weights are of the encoder and its MLM head or tagger, the features those of
    that task. Gives `logits`, `loss` (a float), `hidden_states` [layers, batch, length,
    H], and `gradients` by the names of the weights.
    """
    arrays = {"config": np.array(json.dumps(dataclasses.asdict(config)))}
    arrays |= {f"weight:{name}": value for name, value in weights.items()}
    arrays |= {f"feature:{name}": value for name, value in batch.items()}
    with tempfile.TemporaryDirectory() as folder:
        given, made = os.path.join(folder, "in.npz"), os.path.join(folder, "out.npz")
        np.savez(given, **arrays)
        result = subprocess.run(
            [PYTHON, "-I", str(SCRIPT), given, made],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if result.returncode:
            raise RuntimeError(f"{SCRIPT.name} failed:\n{result.stderr[-3000:]}")
        with np.load(made, allow_pickle=False) as archive:
            results = dict(archive)
    gradients = {
        key.removeprefix("gradient:"): results.pop(key)
        for key in list(results)
        if key.startswith("gradient:")
    }
    return results | {"loss": float(results["loss"]), "gradients": gradients}
