"""Fine-tuning steps of a sequence classifier, this project's and transformers'.

Measures seconds a step and peak memory of
  decoupled     this project, through the graph that trains
  transformers  Hugging Face's RemBertForSequenceClassification
at the reference sizes, 32 sequences of 128 tokens, with dropout before the classifier
as in gin/runs/finetune.gin and with none, and the machine's own rate of matrix
products.

Writes benchmarks/results/finetuning.json.

Examples:
  python -m benchmarks.finetuning --quick
  python -m benchmarks.finetuning --dtypes=bfloat16 --only="no dropout"
"""

import functools
from typing import Any

from benchmarks import command, machine
from benchmarks.flops import encoder_flops, training_flops
from benchmarks.interleave import Measured, Worker, seconds
from benchmarks.results import Comparison
from benchmarks.sizes import QUICK, REFERENCE, Batch, pretraining_case
from benchmarks.tables import (
    Table,
    gigabytes,
    milliseconds_or_seconds,
    percent,
    worker_table,
)
from decoupled.configs import ModelConfig

NAME = "finetuning"
OURS = "decoupled"
PEER = "transformers"
LABELS = 3
# Of gin/runs/finetune.gin (paper: Table 10), and what costs nothing.
DROPOUTS = (0.1, 0.0)
BATCH = Batch(sequences=32, length=128, predictions=0)
QUICK_BATCH = Batch(sequences=4, length=16, predictions=0)


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=5, steps=1)
    arguments = command.parse(options)
    quick = arguments.quick
    comparisons = [
        command.Planned(
            f"{dtype}: dropout {dropout}" if dropout else f"{dtype}: no dropout",
            functools.partial(_workers, finetuning_case(quick, dtype, dropout), quick),
        )
        for dtype in arguments.dtypes
        for dropout in DROPOUTS
    ]
    command.measure(arguments, NAME, comparisons, tables)


def finetuning_case(quick: bool, dtype: str, dropout: float) -> dict[str, Any]:
    """The case of a fine-tuning worker, of either framework."""
    model, batch = (QUICK, QUICK_BATCH) if quick else (REFERENCE, BATCH)
    case = pretraining_case(model, batch, dtype)
    return {**case, "labels": LABELS, "dropout": dropout}


def our_worker(case: dict) -> Worker:
    """This project's worker, for a case of `finetuning_case`."""
    return Worker(OURS, command.python("decoupled"), "decoupled_finetuning", case)


def _workers(case, quick):
    return [
        Worker(PEER, command.python("torch"), "transformers_finetuning", case),
        our_worker(case),
        *command.matmul_workers(case["dtype"], quick, ("tensorflow", "torch")),
    ]


def tables(comparisons: list[Comparison]) -> list[Table]:
    """One table: a row for each worker of each comparison."""
    columns = [
        "model", "activations", "dropout", "step", "against ours",
        "share of the matmul rate", "peak memory",
    ]  # fmt: skip
    title = "Fine-tuning step"
    return [worker_table(NAME, title, columns, comparisons, OURS, _cells)]


def _cells(comparison, worker, against):
    matmul = comparison.worker("matmul tensorflow")
    return [
        worker.name,
        worker.case["dtype"],
        str(worker.case["dropout"]),
        milliseconds_or_seconds(seconds(worker)),
        against,
        percent(machine.share(step_flops(worker), worker, matmul)),
        gigabytes(worker.peak_resident),
    ]


def step_flops(worker: Measured) -> int:
    """Matmul FLOPs of a step; pooler and classifier, one token each, are left out."""
    model = ModelConfig(**worker.case["model"])
    batch, length = worker.case["batch"], worker.case["sequence_length"]
    # Of the last layer this project computes what the classifier reads, one token.
    outputs = 1 if worker.name == OURS else None
    return training_flops(encoder_flops(model, batch, length, outputs))


if __name__ == "__main__":
    command.run(NAME, main)
