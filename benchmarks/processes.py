"""Training over several processes beside one process with as many virtual devices.

The same mesh, with the vocabulary, heads and feed-forward layers split over 2 and 4
processors: once as virtual devices of one process, once as processes that talk over
the loopback interface. Both have the machine's cores to themselves in their turn; what
the second takes longer is what processes cost.

Writes benchmarks/results/processes.json.

Examples:
  python -m benchmarks.processes --quick
  python -m benchmarks.processes --only="2 processors"
"""

import dataclasses
import functools

from benchmarks import command
from benchmarks.interleave import Worker, seconds
from benchmarks.results import Comparison
from benchmarks.sizes import (
    QUICK,
    QUICK_BATCH,
    REFERENCE,
    REFERENCE_BATCH,
    pretraining_case,
)
from benchmarks.tables import (
    Table,
    gigabytes,
    megabytes,
    milliseconds_or_seconds,
    worker_table,
)

NAME = "processes"
PROCESSORS = (2, 4)
ALONE = "1 process"
# Four heads, for four processors.
TINY = dataclasses.replace(QUICK, num_heads=4, head_size=8)
LAYOUT = "vocab:m;heads:m;intermediate:m"
# Bytes for each parameter on both sides together: weights and two slots, saved and in
# slices, gradients; twice, and for each processor what TensorFlow takes.
BYTES_PER_PARAMETER = 4 * 7 * 2
PARAMETERS = 193e6
PROGRAM = 0.9e9


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=5, steps=2, dtypes=["float32"])
    arguments = command.parse(options)
    comparisons = [
        command.Planned(
            f"{dtype}: {processors} processors",
            functools.partial(_workers, processors, dtype, arguments.quick),
        )
        for dtype in arguments.dtypes
        for processors in PROCESSORS
    ]
    command.measure(arguments, NAME, comparisons, tables)


def _workers(processors, dtype, quick):
    if not quick:
        needed = BYTES_PER_PARAMETER * PARAMETERS + PROGRAM * 2 * processors
        command.require_memory(needed)
    model, batch = (TINY, QUICK_BATCH) if quick else (REFERENCE, REFERENCE_BATCH)
    case = pretraining_case(model, batch, dtype, f"m:{processors}", LAYOUT)
    return [
        Worker(
            name,
            command.python("decoupled"),
            "decoupled_processes",
            {**case, "processes": processes},
        )
        for processes, name in ((1, ALONE), (processors, f"{processors} processes"))
    ]


def tables(comparisons: list[Comparison]) -> list[Table]:
    """One table: a row for each worker of each comparison."""
    columns = [
        "mesh", "processes", "step", "time, against one process",
        "bytes over the wire a step", "peak memory of the driver",
    ]  # fmt: skip
    title = "One mesh in one process and in several"
    return [worker_table(NAME, title, columns, comparisons, ALONE, _cells)]


def _cells(comparison, worker, against):
    return [
        comparison.title,
        worker.name,
        milliseconds_or_seconds(seconds(worker)),
        against,
        megabytes([worker.facts["wire_bytes"]]),
        gigabytes(worker.peak_resident),
    ]


if __name__ == "__main__":
    command.run(NAME, main)
