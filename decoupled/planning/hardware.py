"""Cloud TPU slices: memory and speed of a core, and links between chips.

Sources:
  [arch] Google Cloud, "System architecture" pages of TPU v2, v3 and v4
    (docs.cloud.google.com/tpu/docs/v3, .../v4): peak bf16 FLOP/s, memory and its
    bandwidth per chip, largest slice, shape of the network.
  [cacm] Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural
    Networks, CACM 63(7), 2020: links of v2 and v3, 4 of 496 and 656 Gbit/s a chip in
    each direction; v2's 700 GB/s of memory bandwidth.
  [isca] Jouppi et al., TPU v4, ISCA 2023: 6 links of 50 GB/s in each direction.

The page of v3 gives 6.4 TB/s of bisection bandwidth for 32 x 32 chips. That is 50 GB/s
for each direction of a link, not 82 as in [cacm]. The page of v4 gives 24 TB/s, or 47
GB/s a link, which agrees with [isca].
"""

import math
import re
from typing import NamedTuple

from decoupled.core.errors import UserError

GIB = 2**30
# In every generation.
_CHIPS_OF_A_HOST = 4


class Generation(NamedTuple):
    """One generation of chips; all numbers are of one chip.

    cores: devices that a program sees; v4 joins its two cores into one.
    hbm_bytes, hbm_bandwidth: bytes, bytes/s. flops: bf16 FLOP/s.
    link_bandwidth: bytes/s of one link in one direction.
    slice_chips: chips -> shape of the slice, as Google lists them.
    """

    cores: int
    hbm_bytes: int
    hbm_bandwidth: float
    flops: float
    link_bandwidth: float
    slice_chips: dict[int, tuple[int, ...]]


_SQUARES = {4: (2, 2), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16)}
_CUBES = {
    4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4), 64: (4, 4, 4),
    128: (4, 4, 8), 256: (4, 8, 8), 512: (8, 8, 8), 1024: (8, 8, 16),
    2048: (8, 16, 16),
}  # fmt: skip

GENERATIONS = {
    # Peak and memory [arch]; memory bandwidth and links [cacm].
    "v2": Generation(2, 16 * GIB, 700e9, 46e12, 62e9, _SQUARES),
    # Peak, memory and its bandwidth [arch]; links [cacm].
    "v3": Generation(
        2, 32 * GIB, 900e9, 123e12, 82e9,
        {**_SQUARES, 512: (16, 32), 1024: (32, 32)},
    ),
    # Peak, memory and its bandwidth [arch]; links [isca].
    "v4": Generation(1, 32 * GIB, 1200e9, 275e12, 50e9, _CUBES),
}  # fmt: skip


class Slice(NamedTuple):
    """A TPU slice.

    name: e.g. "v3-128". generation: of its chips. chips: the shape of their grid.
    """

    name: str
    generation: Generation
    chips: tuple[int, ...]

    @property
    def cores(self) -> int:
        """The number of devices that the mesh must have."""
        return self.generation.cores * math.prod(self.chips)

    @property
    def hosts(self) -> int:
        """Machines that the chips are connected to."""
        return math.prod(self.chips) // _CHIPS_OF_A_HOST

    @property
    def core_hbm_bytes(self) -> int:
        """Memory of a core."""
        return self.generation.hbm_bytes // self.generation.cores

    @property
    def core_flops(self) -> float:
        """Peak FLOP/s of a core."""
        return self.generation.flops / self.generation.cores

    @property
    def core_hbm_bandwidth(self) -> float:
        """Bytes/s between a core and its memory."""
        return self.generation.hbm_bandwidth / self.generation.cores


def parse_topology(name: str) -> Slice:
    """The slice of an accelerator type, e.g. "v3-8": generation and TensorCores.

    Raises:
      UserError: no such slice, or one that TPUEstimator cannot use.
    """
    version, dash, size = name.partition("-")
    if re.match(r"(v|tpu)([5-9]|\d\d)", version):
        raise UserError(
            f"--topology: {name}: TPUEstimator does not run on {version} (it needs the "
            "runtime that v2, v3 and v4 have); choose one of those"
        )
    if version not in GENERATIONS or not dash or not size.isdigit():
        raise UserError(
            f"--topology: {name!r} is no slice; write the generation, "
            f"{', '.join(GENERATIONS)}, and the number of cores, e.g. v3-8"
        )
    generation = GENERATIONS[version]
    # Names count two TensorCores a chip in every generation.
    chips = generation.slice_chips.get(int(size) // 2)
    if chips is None or int(size) % 2:
        sizes = ", ".join(f"{version}-{2 * n}" for n in generation.slice_chips)
        raise UserError(f"--topology: {name!r} is no slice; one of {sizes}")
    return Slice(name, generation, chips)
