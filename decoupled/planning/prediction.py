"""How long a step and a run take, from what a core computes, moves and sends.

A step is, one after the other: the matrix products at a stated share of the peak; the
optimizer, which reads and writes weights and slots once at the memory's bandwidth; and
the collective operations as rings of chips at the bandwidth of the links, both ways
round, along one dimension of the slice. XLA can use more than one dimension and overlap
some of it; what the program waits for the host is not counted.
"""

from typing import NamedTuple

from decoupled.planning.hardware import Slice
from decoupled.planning.memory import Memory
from decoupled.planning.traffic import Collective

_DAY = 86_400.0


class Times(NamedTuple):
    """Seconds of a step."""

    products: float
    optimizer: float
    collectives: float

    @property
    def step(self) -> float:
        """All of it."""
        return sum(self)

    def days(self, steps: float) -> float:
        """Days of a run."""
        return self.step * steps / _DAY


def predict(
    tpu: Slice,
    flops: int,
    memory: Memory,
    collectives: list[Collective],
    efficiency: float,
) -> Times:
    """The times of a step.

    Args:
      tpu: the slice. flops: of a core. memory: of a core.
      collectives: of a core.
      efficiency: share of the peak that matrix products reach, with all that stands
        between them.
    """
    moved = 2 * (memory.weights + memory.slots) + memory.all_gradients
    return Times(
        products=flops / (tpu.core_flops * efficiency),
        optimizer=moved / tpu.core_hbm_bandwidth,
        collectives=sum(c.count * seconds(c, tpu) for c in collectives),
    )


def seconds(collective: Collective, tpu: Slice) -> float:
    """Seconds of one collective operation.

    The cores of a chip add up first, in its memory; then the chips pass parts round a
    ring. Where only one core of each chip belongs to the group, the other core's group
    uses the links at the same time.
    """
    chips = {coordinates[:3] for coordinates in collective.group}
    cores_here = len(collective.group) / len(chips)
    sharing = tpu.generation.cores / cores_here
    passes = {"CrossReplicaSum": 2, "AllToAll": 1, "CollectivePermute": 1}
    share = (len(chips) - 1) / len(chips)
    ring = passes[collective.kind] * share * collective.bytes * sharing
    here = 2 * collective.bytes / tpu.core_hbm_bandwidth if cores_here > 1 else 0.0
    return here + ring / (2 * tpu.generation.link_bandwidth)
