"""Serving on this processor: SavedModels beside transformers, eager and compiled.

Measures seconds a call and peak memory of
  decoupled              the SavedModel of `decoupled export`, through its
                         signature `serving_default`; of encoders also with its
                         matrices in bfloat16, float16 and int8 (--weights), of
                         classifiers also through `predict`
  transformers eager     RemBertModel or RemBertForSequenceClassification
  transformers compiled  the same through torch.compile
at the reference sizes, in float32, for batches of 1 and of 32 sequences of 128 tokens
without padding, and the machine's own rate of matrix products.

Writes benchmarks/results/inference.json.

Examples:
  python -m benchmarks.inference --quick
  python -m benchmarks.inference --only="encoder, batch 1"
"""

import functools
from typing import Any

from benchmarks import command, machine
from benchmarks.finetuning import LABELS
from benchmarks.flops import encoder_flops
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
from decoupled.exports.serving.stored import FLOAT32, STORED_AS

NAME = "inference"
OURS = "decoupled"
KINDS = ("encoder", "classifier")
BATCH_SIZES = (1, 32)
LENGTH = 128
QUICK_LENGTH = 16
# Name of a way to run transformers -> whether it compiles the model.
PEERS = {"transformers eager": False, "transformers compiled": True}


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=5, steps=5, dtypes=["float32"])
    arguments = command.parse(options)
    quick = arguments.quick
    comparisons = [
        command.Planned(
            f"{kind}, batch {batch_size}",
            functools.partial(_workers, inference_case(quick, kind, batch_size), quick),
        )
        for kind in KINDS
        for batch_size in BATCH_SIZES
    ]
    command.measure(arguments, NAME, comparisons, tables)


def inference_case(quick: bool, kind: str, batch_size: int) -> dict[str, Any]:
    """The case of an inference worker, of either framework."""
    model, length = (QUICK, QUICK_LENGTH) if quick else (REFERENCE, LENGTH)
    case = pretraining_case(model, Batch(batch_size, length, 0), "float32")
    return {**case, "kind": kind, "labels": LABELS}


def our_worker(case: dict, name: str = OURS) -> Worker:
    """This project's worker, for a case of `inference_case`."""
    return Worker(name, command.python("decoupled"), "decoupled_inference", case)


def other_ways(case: dict) -> list[Worker]:
    """An encoder with matrices in fewer bits, a classifier's prediction alone."""
    if case["kind"] != "encoder":
        return [our_worker(case | {"signature": "predict"}, f"{OURS}, predict")]
    return [
        our_worker(case | {"stored_as": stored_as}, f"{OURS}, {stored_as}")
        for stored_as in STORED_AS
        if stored_as != FLOAT32
    ]


def _workers(case, quick):
    torch = command.python("torch")
    peers = [
        Worker(name, torch, "transformers_inference", {**case, "compiled": compiled})
        for name, compiled in PEERS.items()
    ]
    ours = [our_worker(case), *other_ways(case)]
    return [*peers, *ours, *command.matmul_workers(case["dtype"], quick)]


def tables(comparisons: list[Comparison]) -> list[Table]:
    """One table: a row for each worker of each comparison."""
    columns = [
        "model", "what", "batch", "call", "against ours", "share of the matmul rate",
        "peak memory", "files",
    ]  # fmt: skip
    return [worker_table(NAME, "Serving", columns, comparisons, OURS, _cells)]


def _cells(comparison, worker, against):
    matmul = comparison.worker("matmul tensorflow")
    return [
        worker.name,
        worker.case["kind"],
        str(worker.case["batch"]),
        milliseconds_or_seconds(seconds(worker)),
        against,
        percent(machine.share(call_flops(worker), worker, matmul)),
        gigabytes(worker.peak_resident),
        _files(worker),
    ]


def _files(worker):
    size = worker.facts.get("files")
    return f"{size / 1e6:,.0f} MB" if size else ""


def call_flops(worker: Measured) -> int:
    """Matmul FLOPs of a call; what follows the encoder is one token each, left out."""
    model = ModelConfig(**worker.case["model"])
    return encoder_flops(model, worker.case["batch"], worker.case["sequence_length"])


if __name__ == "__main__":
    command.run(NAME, main)
