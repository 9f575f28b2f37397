"""Whether this machine is fast at bfloat16."""

from decoupled.core.compat import tf
from decoupled.core.processor import Processor, processor


def bfloat16_is_slow() -> bool:
    """Whether products of bfloat16 matrices take longer than those of float32 ones.

    A processor without instructions for them imitates them, and the AVX-512 ones of
    Intel's are slower than float32's: 145 against 245 GFLOP/s on two cores of a
    Sapphire Rapids, 52 without them (docs/performance_xeon.md). Fast are matrix units
    (AMX), AMD's AVX-512, and GPUs. A processor that does not describe itself as Linux
    has it on x86 is taken to be fast.
    """
    return not tf.config.list_physical_devices("GPU") and _slow(processor())


def _slow(described: Processor) -> bool:
    known = described.vendor and described.flags
    if not known or "amx_bf16" in described.flags:
        return False
    is_amd = described.vendor == "AuthenticAMD"
    return not (is_amd and "avx512_bf16" in described.flags)
