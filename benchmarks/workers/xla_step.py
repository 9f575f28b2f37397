"""Worker: training steps of a program of ours, on the device that JAX finds."""

import itertools
import json
import pathlib
import sys

import numpy as np
import protocol
import synthetic

sys.path.append(str(pathlib.Path(__file__).parents[2]))
from decoupled.planning import jax_step  # noqa: E402


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds the "folder" of the program, "deterministic" (as in
    `MeshConfig`) and "block", the steps between two readings of the loss."""
    import jax

    jax.config.update("jax_enable_x64", True)
    folder = pathlib.Path(case["folder"])
    description = json.loads((folder / "step.json").read_text(encoding="utf-8"))
    results, device = description["results"], jax.devices()[0]
    with np.load(folder / "features.npz") as arrays:
        batches = [
            [
                jax.device_put(arrays[f"{number}-{name}"], device)
                for name, *_ in description["features"]
            ]
            for number in range(len(arrays.files) // len(description["features"]))
        ]
    program, attention = jax_step.compiled_step(
        folder, [device], "default", load=True, deterministic=case["deterministic"]
    )
    state = [
        jax.device_put(synthetic.start_value(index, *variable), device)
        for index, variable in enumerate(description["variables"])
    ]
    batch_cycle = itertools.cycle(batches)

    def step():
        nonlocal state
        for _ in range(case["block"]):
            outputs = program.execute_sharded(next(batch_cycle) + state)
            arrays = outputs.disassemble_into_single_device_arrays()
            arrays = [array for (array,) in arrays]
            state = arrays[len(results) :]
        return float(arrays[results.index("loss")])

    step()
    return step, {"attention": attention, **facts()}


def facts() -> dict:
    """The facts of the results about the device."""
    import jax

    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "device_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "versions": {"jax": jax.__version__},
    }


if __name__ == "__main__":
    protocol.serve(build)
