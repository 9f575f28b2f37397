"""What this machine's processor is fast at."""

import functools

from decoupled.compat import tf

_DESCRIPTION = "/proc/cpuinfo"
_VENDOR, _FLAGS = "vendor_id", "flags"


def bfloat16_is_slow() -> bool:
    """Whether products of bfloat16 matrices take longer than those of float32 ones.

    A processor without instructions for them imitates them, and the AVX-512 ones of
    Intel's are slower than float32's: 145 against 245 GFLOP/s on two cores of a
    Sapphire Rapids, 52 without them (docs/performance.md). Fast are matrix units (AMX),
    AMD's AVX-512, and GPUs. A processor that does not describe itself as Linux has it
    on x86 is taken to be fast.
    """
    return not tf.config.list_physical_devices("GPU") and _slow(*_described())


def _slow(vendor, flags):
    if not flags or "amx_bf16" in flags:
        return False
    return not ("avx512_bf16" in flags and vendor == "AuthenticAMD")


@functools.cache
def _described():
    """(vendor, flags) of the first core; empty where there is no such description."""
    try:
        with open(_DESCRIPTION, encoding="utf-8", errors="replace") as lines:
            pairs = (line.partition(":") for line in lines)
            found = {}
            for name, _, value in pairs:
                found.setdefault(name.strip(), value.strip())
    except OSError:
        found = {}
    return found.get(_VENDOR, ""), frozenset(found.get(_FLAGS, "").split())
