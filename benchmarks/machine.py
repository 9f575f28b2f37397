"""The machine that results belong to, and its own rate of matrix products.

The rate is measured by workers of its own (`matmul_workers`), in the same rounds as the
steps that are compared with it: a share of a rate measured at another time says little.
"""

import pathlib
import platform
import subprocess
from typing import Any

from benchmarks.interleave import Measured, Spread, Worker, spread
from decoupled.core.machine import memory_sizes, processor, usable_cores

ROOT = pathlib.Path(__file__).parent.parent
# [2048, 2048] times [2048, 2048]: large enough for the full rate, small enough for
# caches that every machine has.
MATMUL_SIZE = 2048
MATMUL_STEPS = 30
_CODE = (".", ":!benchmarks/results*", ":!docs/performance*.md")


def facts() -> dict[str, Any]:
    """Processor, usable cores, memory in bytes, system and Python of this process."""
    return {
        "processor": processor().description(),
        "features": processor().features(),
        "cores": usable_cores(),
        "memory": memory_sizes()["MemTotal"],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def commit() -> str | None:
    """The checkout's commit, with "+" where files differ from it; None without git.

    Results and the document that they go to are not looked at.
    """
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--", *_CODE) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments):
    finished = subprocess.run(
        ["git", "-C", str(ROOT), *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return finished.stdout.strip()


def matmul_workers(
    pythons: dict[str, str], dtype: str, size: int = MATMUL_SIZE
) -> list[Worker]:
    """Workers whose step is one product of two [size, size] matrices.

    Args:
      pythons: framework ("tensorflow", "torch") -> interpreter that has it.
      dtype: "float32" or "bfloat16".
      size: rows and columns.
    """
    case = {"size": size, "dtype": dtype}
    return [
        Worker(f"matmul {name}", python, f"matmul_{name}", case, steps=MATMUL_STEPS)
        for name, python in pythons.items()
    ]


def is_matmul(measured: Measured) -> bool:
    """Whether this is a worker of `matmul_workers`."""
    return measured.name.startswith("matmul ")


def matmul_rates(measured: Measured) -> Spread:
    """FLOP/s of a worker of `matmul_workers`, over rounds."""
    flops = 2 * measured.case["size"] ** 3
    return spread([flops / seconds for seconds in measured.medians()])


def share(step_flops: float, step: Measured, matmul: Measured) -> Spread:
    """Achieved FLOP/s of a step as a share of the matmul rate, round by round.

    Args:
      step_flops: FLOPs of one step.
      step: the worker that runs these steps.
      matmul: a worker of `matmul_workers`, of the same comparison.
    """
    flops = 2 * matmul.case["size"] ** 3
    pairs = zip(step.medians(), matmul.medians(), strict=True)
    return spread([(step_flops / own) / (flops / best) for own, best in pairs])
