"""This machine's processor, as the system describes it. Needs nothing but Python."""

import functools
import os
import platform
from typing import NamedTuple

_DESCRIPTION = "/proc/cpuinfo"


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
