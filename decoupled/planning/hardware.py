"""Cloud TPU slices, and GPUs of a host: memory and speed of a device, and links.

A GPU is a file of numbers with their sources, `cards/NAME.json`, which also has what
XLA's compiler for GPUs must know of a card that is not there. Another card is another
file.

Sources of TPUs, all of Google (docs.cloud.google.com/tpu/docs/...) but the last two:
  [v2] .. [v4]: peak bf16 FLOP/s, memory and its bandwidth of a chip, largest slice.
  [v5e], [v5p], [v6e], [tpu7x]: the same, and the bandwidth of all links of a chip in
    both directions together: 400 GB/s over 4 links, 1200 over 6, 800 over 4, and 1200
    over 6. A link has half of its share in each direction.
  [cacm] Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural
    Networks, CACM 63(7), 2020: links of v2 and v3, 4 of 496 and 656 Gbit/s a chip in
    each direction; v2's 700 GB/s of memory bandwidth.
  [isca] Jouppi et al., TPU v4, ISCA 2023: 6 links of 50 GB/s in each direction.

The page of v3 gives 6.4 TB/s of bisection bandwidth for 32 x 32 chips. That is 50 GB/s
for each direction of a link, not 82 as in [cacm]. The page of v4 gives 24 TB/s, or 47
GB/s a link, which agrees with [isca]; those of v5e and v6e give 1.6 and 3.2 TB/s for
16 x 16 chips, or 50 and 100 GB/s, which agrees with the bandwidths of their chips.
"""

import itertools
import json
import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from decoupled.core.errors import UserError
from decoupled.ops.meshes.device_order import Place, device_order

GIB = 2**30
_CARDS = pathlib.Path(__file__).with_name("cards")
# NVIDIA's hosts have up to 8 cards, joined by switches.
_CARDS_OF_A_HOST = ((1,), (2,), (4,), (8,))
# JAX takes so much of a GPU's memory, unless XLA_PYTHON_CLIENT_MEM_FRACTION says more.
_JAX_SHARE = 0.75
# Products of bfloat16 that XLA makes of one of float32 on a TPU, by
# `MeshConfig.matmul_precision`.
_PASSES = {"highest": 6, "high": 3, "default": 1}


class Generation(NamedTuple):
    """One generation of chips; all numbers are of one chip.

    cores: devices that a program sees; v4 and v5p join two TensorCores into one.
    units: what a slice's name counts: 2 TensorCores a chip, or the chip.
    hbm_bytes, hbm_bandwidth: bytes, bytes/s. flops: bf16 FLOP/s. float32_flops: of a
      GPU, in float32 and in TensorFloat-32.
    link_bandwidth: bytes/s of one link in one direction.
    host_chips: of the largest slice of one host; hosts of a larger slice have 4.
    grids: the shapes of slices, as Google lists them.
    prefix: of the names of slices, where it is not the generation's name.
    card: what the compiler must know of a GPU; None for a TPU.
    """

    cores: int
    units: int
    hbm_bytes: int
    hbm_bandwidth: float
    flops: float
    link_bandwidth: float
    host_chips: int
    grids: tuple[tuple[int, ...], ...]
    prefix: str | None = None
    float32_flops: tuple[float, float] | None = None
    card: dict | None = None


_SQUARES = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_FROM_ONE_CHIP = ((1, 1), (2, 2), (2, 4), *_SQUARES[1:])
_CUBES = (
    (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8),
    (8, 8, 8), (8, 8, 16), (8, 16, 16),
)  # fmt: skip

GENERATIONS = {
    "v2": Generation(2, 2, 16 * GIB, 700e9, 46e12, 62e9, 4, _SQUARES),
    "v3": Generation(
        2, 2, 32 * GIB, 900e9, 123e12, 82e9, 4, (*_SQUARES, (16, 32), (32, 32))
    ),
    "v4": Generation(1, 2, 32 * GIB, 1200e9, 275e12, 50e9, 4, _CUBES),
    "v5e": Generation(
        1, 1, 16 * GIB, 819e9, 197e12, 50e9, 8, _FROM_ONE_CHIP, prefix="v5litepod"
    ),
    "v5p": Generation(
        1, 2, 95 * GIB, 2765e9, 459e12, 100e9, 4,
        (*_CUBES, (16, 16, 16), (16, 16, 24)),
    ),
    "v6e": Generation(1, 1, 32 * GIB, 1638e9, 918e12, 100e9, 8, _FROM_ONE_CHIP),
    "tpu7x": Generation(2, 2, 192 * GIB, 7380e9, 2307e12, 100e9, 4, _CUBES),
}  # fmt: skip


def _card(path: pathlib.Path) -> Generation:
    numbers = json.loads(path.read_text(encoding="utf-8"))
    return Generation(
        cores=1,
        units=1,
        hbm_bytes=numbers["compiler"]["gpu_device_info"]["device_memory_size"],
        hbm_bandwidth=numbers["memory_bandwidth"],
        flops=numbers["bfloat16_flops"],
        # A ring sends over two links of each chip.
        link_bandwidth=numbers["bandwidth_to_others"] / 2,
        host_chips=8,
        grids=_CARDS_OF_A_HOST,
        float32_flops=(numbers["float32_flops"], numbers["tensorfloat32_flops"]),
        card=numbers["compiler"],
    )


GENERATIONS |= {path.stem: _card(path) for path in sorted(_CARDS.glob("*.json"))}


class Topology(NamedTuple):
    """A TPU slice, or GPUs of a host.

    name: e.g. "v3-128", "h100-8". version: its generation's name. chips: the shape of
    their grid.
    """

    name: str
    version: str
    chips: tuple[int, ...]

    @property
    def generation(self) -> Generation:
        """The generation of its chips."""
        return GENERATIONS[self.version]

    @property
    def topology(self) -> str:
        """The name by which the compiler knows it, e.g. "v3:8x8"; of GPUs slices, hosts
        and cards, "1x1x8"."""
        if self.generation.card:
            return f"1x1x{self.cores}"
        return f"{self.version}:{'x'.join(map(str, self.chips))}"

    @property
    def device_kind(self) -> str:
        """The kind of its devices, e.g. "TPU v3", or "GPU"."""
        return "GPU" if self.generation.card else f"TPU {self.version}"

    @property
    def cores(self) -> int:
        """The number of devices that the mesh must have."""
        return self.generation.cores * math.prod(self.chips)

    @property
    def hosts(self) -> int:
        """Machines that the chips are connected to."""
        chips = math.prod(self.chips)
        return 1 if chips <= self.generation.host_chips else chips // 4

    def places(self, mesh: Sequence[int]) -> list[Place]:
        """The place of each processor's device, of a mesh with axes of these sizes."""
        sides = (*self.chips, 1, 1)[:3]
        devices = list(itertools.product(*map(range, (*sides, self.generation.cores))))
        return [devices[index] for index in device_order(devices, mesh)]

    @property
    def core_hbm_bytes(self) -> int:
        """Memory of a core."""
        return self.generation.hbm_bytes // self.generation.cores

    @property
    def program_bytes(self) -> int:
        """Memory of a core that a program may have."""
        share = _JAX_SHARE if self.generation.card else 1
        return int(self.core_hbm_bytes * share)

    @property
    def core_flops(self) -> float:
        """Peak FLOP/s of a core in bfloat16."""
        return self.generation.flops / self.generation.cores

    def core_flops_in(self, dtype: str, precision: str) -> float:
        """Peak FLOP/s of a core in products of a dtype.

        precision: of float32, `MeshConfig.matmul_precision`.
        """
        if dtype != "float32":
            return self.core_flops
        if self.generation.float32_flops:
            return self.generation.float32_flops[precision != "highest"]
        return self.core_flops / _PASSES[precision]

    @property
    def core_hbm_bandwidth(self) -> float:
        """Bytes/s between a core and its memory."""
        return self.generation.hbm_bandwidth / self.generation.cores


def parse_topology(name: str) -> Topology:
    """The slice of an accelerator type, e.g. "v3-8", "v5litepod-16" or "v5e-16"."""
    # The name of a card's file may have a hyphen.
    prefix, _, size = name.rpartition("-")
    version = next((v for v, g in GENERATIONS.items() if g.prefix == prefix), prefix)
    if version not in GENERATIONS or not size.isdecimal():
        raise UserError(
            f"--topology: {name!r} is no slice; write the generation, "
            f"{', '.join(GENERATIONS)}, and the number of TensorCores (v5e, v6e: "
            "chips; GPUs: cards), e.g. v3-8, v6e-8 or h100-8"
        )
    generation = GENERATIONS[version]
    grids = {generation.units * math.prod(grid): grid for grid in generation.grids}
    if int(size) not in grids:
        sizes = ", ".join(f"{prefix}-{size}" for size in grids)
        raise UserError(f"--topology: {name!r} is no slice; one of {sizes}")
    return Topology(name, version, grids[int(size)])
