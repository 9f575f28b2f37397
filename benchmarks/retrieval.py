"""Retrieval of translations: encoding and search.

Measures pairs of sentences a second of
  decoupled     what `decoupled retrieve` does: graphs are built, a checkpoint
                is restored, sentences are encoded and searched in both directions
  transformers  RemBertModel in a loop over batches sorted by length, means over tokens,
                all cosines at once by NumPy
at the sizes of the demo and of the reference configuration, on random sentences as
short as those of Tatoeba; tokenised, and with the peer's model loaded, before the clock
starts.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.interleave import Worker, rate
from benchmarks.results import Comparison, Plan
from benchmarks.sizes import QUICK, REFERENCE, Batch, pretraining_case, shipped_model
from benchmarks.tables import (
    OURS,
    BenchmarkTable,
    Suite,
    gigabytes,
    with_range,
    worker_table,
)
from decoupled.configs import ModelConfig, RetrievalConfig

PEER = "transformers"
RETRIEVAL = RetrievalConfig(max_sequence_length=64)


class Setting(NamedTuple):
    """Sizes at which encoding and search are measured."""

    name: str
    model: ModelConfig
    pairs: int


SETTINGS = (
    Setting("demo", shipped_model("demo_decoupled"), 5000),
    Setting("reference", REFERENCE, 1000),
)
QUICK_SETTINGS = (Setting("quick", QUICK, 20),)


def comparisons(arguments, folder) -> Iterator[Plan]:
    """A comparison for each size and type."""
    del folder
    for setting in QUICK_SETTINGS if arguments.quick else SETTINGS:
        for dtype in arguments.dtypes:
            case = retrieval_case(setting, dtype)
            yield Plan(
                f"{setting.name}: {dtype}",
                lambda case=case: [our_worker(case), _peer_worker(case)],
            )


def retrieval_case(setting: Setting, dtype: str) -> dict[str, Any]:
    """The case of a worker that encodes and searches, of either framework."""
    length = RETRIEVAL.max_sequence_length
    case = pretraining_case(setting.model, Batch(64, length, 0), dtype)
    return {
        **case,
        "pairs": setting.pairs,
        "retrieval": dataclasses.asdict(RETRIEVAL),
        # A step is long; workers warm up with a part of one.
        "warmup": 0,
    }


def our_worker(case: dict) -> Worker:
    """This project's encoder and search."""
    return Worker(OURS, "decoupled", "decoupled_retrieval", case)


def _peer_worker(case):
    return Worker(PEER, "torch", "transformers_retrieval", case)


def tables(results: list[Comparison]) -> list[BenchmarkTable]:
    """One table: a row for each worker of each comparison."""
    columns = [
        "what", "with", "pairs", "pairs a second", "time against ours", "peak memory",
    ]  # fmt: skip
    return [worker_table("retrieval", "Retrieval", columns, results, _cells)]


def _cells(comparison, worker, slowdown):
    pairs = worker.case["pairs"]
    return [
        comparison.title,
        worker.name,
        f"{pairs:,}",
        with_range(rate(worker, pairs), "/s"),
        slowdown,
        gigabytes(worker.peak_resident),
    ]


SUITE = Suite(comparisons, tables, rounds=3, steps=1)

if __name__ == "__main__":
    from benchmarks.__main__ import run_module

    run_module("retrieval")
