"""Serving on this processor: SavedModels beside transformers, eager and compiled.

Measures seconds a call and peak memory of
  decoupled              the SavedModel of `decoupled export`, through its signature
                         `serving_default`; also with its matrices in bfloat16, float16
                         and int8 (--weights)
  transformers eager     RemBertModel
  transformers compiled  the same through torch.compile
at the reference sizes, in float32, for batches of 1 and of 32 sequences of 128 tokens
without padding.
"""

import functools
from collections.abc import Iterator
from typing import Any

from benchmarks.interleave import Worker, seconds
from benchmarks.results import Comparison, Plan
from benchmarks.sizes import QUICK, REFERENCE, Batch, pretraining_case
from benchmarks.tables import (
    OURS,
    BenchmarkTable,
    Suite,
    gigabytes,
    milliseconds_or_seconds,
    worker_table,
)
from decoupled.exports.serving.encoder import FLOAT32, STORED_AS

BATCH_SIZES = (1, 32)
LENGTH, QUICK_LENGTH = 128, 16
# Name of a way to run transformers -> whether it compiles the model.
PEERS = {"transformers eager": False, "transformers compiled": True}


def comparisons(arguments, folder) -> Iterator[Plan]:
    """A comparison for each batch size."""
    del folder
    for size in BATCH_SIZES:
        case = inference_case(arguments.quick, size)
        yield Plan(f"encoder, batch {size}", functools.partial(_workers, case))


def inference_case(quick: bool, batch_size: int) -> dict[str, Any]:
    """The case of an inference worker, of either framework."""
    model, length = (QUICK, QUICK_LENGTH) if quick else (REFERENCE, LENGTH)
    return pretraining_case(model, Batch(batch_size, length, 0), "float32")


def our_workers(case: dict) -> list[Worker]:
    """This project's encoder, its matrices in float32 and in fewer bits."""
    return [
        Worker(
            OURS if stored_as == FLOAT32 else f"{OURS}, {stored_as}",
            "decoupled",
            "decoupled_inference",
            case | {"stored_as": stored_as},
        )
        for stored_as in STORED_AS
    ]


def _workers(case):
    peers = [
        Worker(name, "torch", "transformers_inference", {**case, "compiled": compiles})
        for name, compiles in PEERS.items()
    ]
    return [*peers, *our_workers(case)]


def tables(results: list[Comparison]) -> list[BenchmarkTable]:
    """One table: a row for each worker of each comparison."""
    columns = ["model", "batch", "call", "against ours", "peak memory", "files"]
    return [worker_table("inference", "Serving", columns, results, _cells)]


def _cells(comparison, worker, slowdown):
    file_bytes = worker.facts.get("files")
    return [
        worker.name,
        str(worker.case["batch"]),
        milliseconds_or_seconds(seconds(worker)),
        slowdown,
        gigabytes(worker.peak_resident),
        f"{file_bytes / 1e6:,.0f} MB" if file_bytes else "",
    ]


SUITE = Suite(comparisons, tables, rounds=5, steps=5)

if __name__ == "__main__":
    from benchmarks.__main__ import run_module

    run_module("inference")
