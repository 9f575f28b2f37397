"""A sweep of small jobs: forks of a process that has imported TensorFlow, or not.

Measures the seconds of a whole sweep of tiny models, pre-trained and fine-tuned for a
few steps each, divided by its jobs
  warm processes     jobs are forks of a process that has imported TensorFlow
                     (`SweepConfig.warm_processes`)
  a process each     each job imports TensorFlow itself
with one job at a time, and with as many as there are cores, four at most. The start of
the warm processes is part of a sweep. Both compute the same.

Writes benchmarks/results/sweep_jobs.json.

Examples:
  python -m benchmarks.sweep_jobs --quick
  python -m benchmarks.sweep_jobs --rounds=3 --only="1 at a time"
"""

import functools

from benchmarks import command
from benchmarks.interleave import Measured, Spread, Worker, seconds
from benchmarks.results import Comparison
from benchmarks.tables import Table, milliseconds_or_seconds, worker_table
from decoupled.core.machine import usable_cores

NAME = "sweep_jobs"
WARM, ALONE = "warm processes", "a process each"
MOST_JOBS = 4
CASE = {
    "rows": ["e_out_128", "e_out_768"],
    "seeds": [0, 1],
    "pretraining_steps": 100,
    "finetuning_epochs": 3.0,
}
QUICK_CASE = {
    "rows": ["e_out_128"],
    "seeds": [0],
    "pretraining_steps": 2,
    "finetuning_epochs": 0.1,
}


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=5, steps=1, dtypes=["float32"])
    arguments = command.parse(options)
    cores = usable_cores()
    comparisons = [
        command.Planned(
            f"{parallel} at a time",
            functools.partial(_workers, parallel, arguments.quick),
            steps=1,
        )
        for parallel in sorted({1, min(cores, MOST_JOBS)})
    ]
    command.measure(arguments, NAME, comparisons, tables)


def _workers(parallel, quick):
    case = {**(QUICK_CASE if quick else CASE), "parallel": parallel}
    return [
        Worker(
            name,
            command.python("decoupled"),
            "decoupled_sweep",
            {**case, "warm": name == WARM, "warmup": 0 if quick else 1},
        )
        for name in (WARM, ALONE)
    ]


def tables(comparisons: list[Comparison]) -> list[Table]:
    """One table: a row for each worker of each comparison."""
    columns = ["jobs", "processes", "a job", "time, against warm processes", "sweep"]
    title = "A sweep of small jobs"
    return [worker_table(NAME, title, columns, comparisons, WARM, _cells)]


def _cells(comparison: Comparison, worker: Measured, against: str) -> list[str]:
    sweep, jobs = seconds(worker), worker.facts["jobs"]
    return [
        f"{jobs}, {comparison.title}",
        worker.name,
        milliseconds_or_seconds(Spread(*(value / jobs for value in sweep))),
        against,
        milliseconds_or_seconds(sweep),
    ]


if __name__ == "__main__":
    command.run(NAME, main)
