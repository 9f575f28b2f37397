"""The plan of one run: what a core holds, computes and sends, and how long it takes.

`predict` models a step as three consecutive parts: the matrix products, at a given
share of the peak; the optimizer, which reads and writes weights and slots once at the
bandwidth of the memory; and the collective operations, as rings of chips at the
bandwidth of the links, in both directions along one dimension of the slice. XLA can use
more than one dimension and overlap some of this. The time that the program waits for
the host is not included.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from decoupled.configs import PlanConfig, PretrainConfig
from decoupled.planning.costs import (
    Collective,
    MemoryUse,
    collectives_of,
    flops_of,
    memory_of,
)
from decoupled.planning.hardware import Topology
from decoupled.planning.program import build_program, feature_specs
from decoupled.training.graph import check_graph, pretraining_graph

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
    tpu: Topology,
    flops: Mapping[str, int],
    memory: MemoryUse,
    collectives: list[Collective],
    efficiency: float,
    precision: str,
) -> Times:
    """The times of a step, from the costs of a core.

    efficiency: share of the peak that matrix products reach, including the time of all
    operations between them. precision: of products of float32.
    """
    peaks = {dtype: tpu.core_flops_in(dtype, precision) for dtype in flops}
    moved_bytes = 2 * (memory.weights + memory.slots) + memory.all_gradients
    return Times(
        products=sum(n / (peaks[dtype] * efficiency) for dtype, n in flops.items()),
        optimizer=moved_bytes / tpu.core_hbm_bandwidth,
        collectives=sum(c.count * seconds(c, tpu) for c in collectives),
    )


def seconds(collective: Collective, tpu: Topology) -> float:
    """Seconds of one collective operation.

    The cores of a chip first add up in its memory; then the chips exchange parts in a
    ring. If only one core of each chip belongs to the group, the group of the other
    core uses the links at the same time.
    """
    chips = {coordinates[:3] for coordinates in collective.group}
    cores_per_chip = len(collective.group) / len(chips)
    sharers = tpu.generation.cores / cores_per_chip
    passes = {"CrossReplicaSum": 2, "AllToAll": 1, "CollectivePermute": 1}
    share = (len(chips) - 1) / len(chips)
    ring_bytes = passes[collective.kind] * share * collective.bytes * sharers
    ring_seconds = ring_bytes / (2 * tpu.generation.link_bandwidth)
    chip_bytes = 2 * collective.bytes if cores_per_chip > 1 else 0.0
    return chip_bytes / tpu.core_hbm_bandwidth + ring_seconds


class SlicedVariable(NamedTuple):
    """A weight's whole shape and that of a core's slice."""

    name: str
    shape: list[int]
    slice: list[int]


class Plan(NamedTuple):
    """The costs of a step.

    assumptions: of the prediction. flops: of a core's matrix products, by dtype.
    variables: the weights. infeed_bytes: of a step's features, for every host.
    """

    tpu: Topology
    run: PretrainConfig
    assumptions: PlanConfig
    memory: MemoryUse
    flops: dict[str, int]
    collectives: list[Collective]
    times: Times
    variables: list[SlicedVariable]
    infeed_bytes: int

    @property
    def fits(self) -> bool:
        """Whether a core's memory holds the peak."""
        return self.memory.total <= self.usable_bytes

    @property
    def usable_bytes(self) -> int:
        """Bytes of a core's memory that a step may use."""
        return int(self.tpu.program_bytes * self.assumptions.memory_share)

    @property
    def steps(self) -> int:
        """Steps of the run, or of its last phase, which is the planned one."""
        phase = self.run.phases[-1]
        return phase.last - phase.first

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step's batch, padding included."""
        return self.run.training.batch_size * self.run.masking.sequence_length


def check_run(run: PretrainConfig) -> None:
    """Checks that mesh, model and the batches of all phases fit each other."""
    for phase in run.phases:
        graph, training = pretraining_graph(phase.config), phase.config.training
        # Evaluations, whose batches the mesh may enlarge, are not planned.
        batch_size = training.batch_size // training.gradient_accumulation
        training = dataclasses.replace(training, eval_batch_size=batch_size)
        check_graph(graph.network, training, graph.frozen)


def make_plan(run: PretrainConfig, tpu: Topology, assumptions: PlanConfig) -> Plan:
    """Builds a run's program for a slice and adds up its costs.

    Raises:
      UserError: mesh, layout, model, batch and slice do not fit each other.
    """
    check_run(run)
    microbatches = run.training.gradient_accumulation
    batch_size = run.training.batch_size
    features = feature_specs(run.masking, batch_size)
    program = build_program(pretraining_graph(run), features, tpu)
    memory = memory_of(program)
    flops = flops_of(program, microbatches)
    places = tpu.places(program.mesh.shape.to_integer_list)
    is_gpu = tpu.generation.card is not None
    collectives = collectives_of(program, microbatches, places, is_gpu)
    variables = [
        SlicedVariable(
            v.name, v.shape.to_integer_list, program.mesh.slice_shape(v.shape)
        )
        for v in program.lowered.lowering.graph.trainable_variables
    ]
    precision = run.mesh.matmul_precision
    times = predict(tpu, flops, memory, collectives, assumptions.efficiency, precision)
    infeed = sum(s.shape.num_elements() * s.dtype.size for s in features.values())
    return Plan(
        tpu, run, assumptions, memory, flops, collectives, times, variables, infeed
    )
