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

from benchmarks import command, machine
from benchmarks.interleave import Skip, Worker, ratio, seconds
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
    times,
)

NAME = "processes"
PROCESSORS = (2, 4)
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
    results = command.open_results(arguments, NAME)
    for dtype in arguments.dtypes:
        for processors in PROCESSORS:
            title = f"{dtype}: {processors} processors"
            if command.is_chosen(arguments, title):
                results.measure(
                    title,
                    lambda n=processors, d=dtype: _workers(n, d, arguments.quick),
                    arguments.rounds,
                    arguments.steps,
                )
    command.show_all(tables, results)


def _workers(processors, dtype, quick):
    if not quick:
        needed = BYTES_PER_PARAMETER * PARAMETERS + PROGRAM * 2 * processors
        available = machine.memory()["MemAvailable"]
        if needed > available:
            raise Skip(
                f"needs about {gigabytes(needed)}, {gigabytes(available)} are free"
            )
    model, batch = (TINY, QUICK_BATCH) if quick else (REFERENCE, REFERENCE_BATCH)
    case = pretraining_case(model, batch, dtype, f"m:{processors}", LAYOUT)
    return [
        Worker(
            _name(processes),
            command.python("decoupled"),
            "decoupled_processes",
            {**case, "processes": processes},
        )
        for processes in (1, processors)
    ]


def _name(processes):
    return "1 process" if processes == 1 else f"{processes} processes"


def tables(comparisons: list[Comparison]) -> list[Table]:
    """A row for each worker."""
    rows = []
    for comparison in comparisons:
        if comparison.skipped:
            rows.append([comparison.title, comparison.skipped, *[""] * 4])
            continue
        alone = comparison.workers[0]
        for worker in comparison.workers:
            rows.append(
                [
                    comparison.title,
                    worker.name,
                    milliseconds_or_seconds(seconds(worker)),
                    "" if worker is alone else times(ratio(worker, alone)),
                    megabytes([worker.facts["wire_bytes"]]),
                    gigabytes(worker.peak_resident),
                ]
            )
    columns = [
        "mesh", "processes", "step", "time, against one process",
        "bytes over the wire a step", "peak memory of the driver",
    ]  # fmt: skip
    return [Table(NAME, "One mesh in one process and in several", columns, rows)]


if __name__ == "__main__":
    command.run(NAME, main)
