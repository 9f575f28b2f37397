"""Worker: training steps of a program of ours, on the device that JAX finds."""

import pathlib
import sys
import time

import protocol

sys.path.append(str(pathlib.Path(__file__).parents[2]))
from decoupled.planning import jax_step  # noqa: E402


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds the "folder" of the program, "deterministic" (as in
    `MeshConfig`) and "block", the steps between two readings of the loss."""
    began = time.monotonic()
    running = jax_step.Running(
        pathlib.Path(case["folder"]), "default", case["deterministic"]
    )
    compiled = time.monotonic() - began

    def step():
        for _ in range(case["block"]):
            loss, _ = running.step()
        return float(loss)

    step()
    return step, {
        "attention": running.attention, "compiled_in": compiled, **facts(),
    }  # fmt: skip


def facts() -> dict:
    """What the results tell about the device."""
    import jax

    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "device_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "versions": {"jax": jax.__version__},
    }


if __name__ == "__main__":
    protocol.serve(build)
