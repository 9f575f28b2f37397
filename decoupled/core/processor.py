"""This machine's processor and GPUs, as the system describes them. Needs nothing but
Python."""

import functools
import os
import pathlib
import platform
import subprocess
from typing import NamedTuple

_DESCRIPTION = "/proc/cpuinfo"
_DEVICES = "/dev"
# NVIDIA's tool, and how long it may take where its driver hangs.
_NVIDIA_SMI, _SECONDS = "nvidia-smi", 20


class Processor(NamedTuple):
    """name: of the model. vendor: such as "AuthenticAMD", "" where unknown. flags: its
    instruction sets as Linux names them; none where it does not."""

    name: str
    vendor: str
    flags: frozenset[str]


@functools.cache
def processor() -> Processor:
    """The first core, to which the others of a machine are alike."""
    found = {}
    try:
        with open(_DESCRIPTION, encoding="utf-8", errors="replace") as lines:
            for name, _, value in (line.partition(":") for line in lines):
                found.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    return Processor(
        found.get("model name") or platform.processor() or platform.machine(),
        found.get("vendor_id", ""),
        # An ARM core has "Features".
        frozenset(found.get("flags", found.get("Features", "")).split()),
    )


def usable_cores() -> int:
    """Cores that this process may use, which a container or taskset can limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def nvidia_gpus() -> int:
    """GPUs of NVIDIA that this process may use, whether or not TensorFlow can.

    A line of `nvidia-smi -L` each; where that tool is missing, a device file each.
    """
    try:
        done = subprocess.run(
            [_NVIDIA_SMI, "-L"], capture_output=True, text=True, timeout=_SECONDS
        )
        if done.returncode == 0:
            return sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    except (OSError, subprocess.TimeoutExpired):
        pass
    return len(list(pathlib.Path(_DEVICES).glob("nvidia[0-9]*")))
