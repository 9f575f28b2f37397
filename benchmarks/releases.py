"""Training steps with the newest and with the oldest TensorFlow, interleaved.

Measures seconds a step and peak memory of this project with the TensorFlow of `.venv`
and with that of `.venv-oldest`, which `make .venv-oldest/.installed` installs:
  pre-training   the reference sizes, and the fair peer of benchmarks.pretraining:
                 transformers with its head on the masked positions
  tiny           pre-training of a model of 2 layers and 32 numbers a token
  fine-tuning    the sizes of benchmarks.finetuning, without dropout

Writes benchmarks/results/releases.json.

Examples:
  python -m benchmarks.releases --quick
  python -m benchmarks.releases --only=fine-tuning --dtypes=bfloat16
"""

import functools

from benchmarks import command
from benchmarks.finetuning import finetuning_case
from benchmarks.interleave import Measured, Worker, seconds
from benchmarks.pretraining import fair_peer
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
    milliseconds_or_seconds,
    worker_table,
)

NAME = "releases"
NEWEST = "newest TensorFlow"
OLDEST = "oldest TensorFlow"
# A tiny step is over in milliseconds.
TINY_STEPS = 100


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=5, steps=2)
    arguments = command.parse(options)
    comparisons = [
        command.Planned(
            f"{dtype}: {kind}",
            functools.partial(_workers, kind, dtype, arguments.quick),
        )
        for dtype in arguments.dtypes
        for kind in ("pre-training", "tiny", "fine-tuning")
    ]
    command.measure(arguments, NAME, comparisons, tables)


def _workers(kind, dtype, quick):
    if kind == "fine-tuning":
        case = finetuning_case(quick, dtype, dropout=0.0)
        return _both(case, "decoupled_finetuning")
    sizes = (REFERENCE, REFERENCE_BATCH)
    if quick or kind == "tiny":
        sizes = (QUICK, QUICK_BATCH)
    case = pretraining_case(*sizes, dtype)
    if kind == "tiny":
        return _both(case, "decoupled_pretraining", TINY_STEPS)
    return [*_both(case, "decoupled_pretraining"), fair_peer(case)]


def _both(case, script, steps=None):
    return [
        Worker(NEWEST, command.python("decoupled"), script, case, steps),
        Worker(OLDEST, command.python("oldest"), script, case, steps),
    ]


def tables(comparisons: list[Comparison]) -> list[Table]:
    """One table: a row for each worker of each comparison."""
    columns = ["step", "with", "time", "against the newest", "peak memory", "loss"]
    title = "Newest and oldest TensorFlow"
    return [worker_table(NAME, title, columns, comparisons, NEWEST, _cells)]


def _cells(comparison: Comparison, worker: Measured, against: str) -> list[str]:
    versions = worker.facts["versions"]
    release = versions.get("tensorflow")
    return [
        comparison.title,
        f"TensorFlow {release}" if release else worker.name,
        milliseconds_or_seconds(seconds(worker)),
        against,
        gigabytes(worker.peak_resident),
        f"{worker.rounds[-1].loss:.6g}",
    ]


if __name__ == "__main__":
    command.run(NAME, main)
