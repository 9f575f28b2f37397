"""Pre-training steps of this project and of its peers, interleaved.

Measures seconds a step and peak memory of
  decoupled            this project
  transformers         Hugging Face's RemBertForMaskedLM as shipped: its head runs on
                       every position
  transformers masked  the same with the head on the masked positions: the fair peer
  mesh_tensorflow.bert the stock BERT of Mesh-TensorFlow, in float32: tied embeddings,
                       E = H
and the machine's own rate of matrix products. The first three are one comparison and
the fourth another, each with this project, because all of them together need about
28 GB. The first three are compared once more at the sizes of
in_small of gin/sweeps/reproduce.gin, 256 sequences of 32 tokens: "mini".
"""

import functools
from collections.abc import Iterator

from benchmarks.flops import pretraining_flops
from benchmarks.interleave import MeasuredWorker, Spread, Worker, rate, ratio, seconds
from benchmarks.results import Comparison, Plan
from benchmarks.sizes import (
    DTYPES,
    MINI,
    MINI_BATCH,
    QUICK,
    QUICK_BATCH,
    REFERENCE,
    REFERENCE_BATCH,
    Batch,
    pretraining_case,
)
from benchmarks.tables import (
    OURS,
    BenchmarkTable,
    Suite,
    gigabytes,
    milliseconds_or_seconds,
    percent,
    with_range,
    worker_table,
)
from decoupled.configs import ModelConfig

FAIR_PEER = "transformers masked"
MESH_BERT = "mesh_tensorflow.bert"
# A step takes a twentieth of a second.
MINI_TITLE, MINI_STEPS = ": mini", 60
# [2048, 2048] times [2048, 2048]: large enough for the full rate, small enough for
# caches that every machine has.
MATMUL_SIZE, MATMUL_STEPS = 2048, 30


def comparisons(arguments, folder) -> Iterator[Plan]:
    """Comparisons with transformers and Mesh-TensorFlow's BERT, and of tiny models."""
    del folder
    quick = arguments.quick
    for dtype in arguments.dtypes:
        sizes = (QUICK, QUICK_BATCH) if quick else (REFERENCE, REFERENCE_BATCH)
        case = pretraining_case(*sizes, dtype)
        make_workers = functools.partial(_with_products, case, quick)
        yield Plan(f"{dtype}: transformers", make_workers)
        if dtype == "float32":
            yield Plan(
                f"{dtype}: {MESH_BERT}", functools.partial(_against_mesh_bert, case)
            )
        sizes = (QUICK, QUICK_BATCH) if quick else (MINI, MINI_BATCH)
        case = pretraining_case(*sizes, dtype)
        make_workers = functools.partial(_against_transformers, case)
        yield Plan(dtype + MINI_TITLE, make_workers, 2 if quick else MINI_STEPS)


def _against_transformers(case):
    return [
        Worker(name, "torch", "transformers_pretraining", {**case, "masked": is_masked})
        for name, is_masked in (("transformers", False), (FAIR_PEER, True))
    ] + [our_worker(case)]


def _with_products(case, quick):
    # They run in the same rounds: a machine's rate changes with time.
    product = {"size": 64 if quick else MATMUL_SIZE, "dtype": case["dtype"]}
    return _against_transformers(case) + [
        Worker(f"matmul {name}", framework, f"matmul_{name}", product, MATMUL_STEPS)
        for name, framework in (("tensorflow", "decoupled"), ("torch", "torch"))
    ]


def _against_mesh_bert(case):
    peer = Worker(MESH_BERT, "mesh_bert", "mesh_bert_pretraining", case)
    return [peer, our_worker(case)]


def our_worker(case: dict) -> Worker:
    """This project's worker, for a case of `pretraining_case`."""
    return Worker(OURS, "decoupled", "decoupled_pretraining", case)


def tables(results: list[Comparison]) -> list[BenchmarkTable]:
    """Steps, and rates of matrix products."""
    columns = [
        "model", "activations", "step", "against ours", "FLOP/s in matmuls",
        "peak memory",
    ]  # fmt: skip
    rates = [row for comparison in results for row in _rate_rows(comparison)]
    return [
        worker_table("pretraining", "Pre-training step", columns, results, _step_cells),
        BenchmarkTable(
            "matmul",
            "Matrix products of this machine",
            ["framework", "type", "rate", "our step's share of it"],
            rates,
        ),
    ]


def _step_cells(comparison, worker, slowdown):
    suffix = ", mini" if comparison.title.endswith(MINI_TITLE) else ""
    return [
        worker.name + suffix,
        worker.case["dtype"],
        milliseconds_or_seconds(seconds(worker)),
        slowdown,
        f"{step_flops(worker) / seconds(worker).median / 1e9:,.0f} GFLOP/s",
        gigabytes(worker.peak_resident),
    ]


def _rate_rows(comparison) -> Iterator[list[str]]:
    for worker in comparison.workers:
        if worker.name.startswith("matmul "):
            reference = comparison.worker(OURS)
            flops = 2 * worker.case["size"] ** 3
            count = step_flops(reference) / flops
            shares = Spread(*(count * each for each in ratio(worker, reference)))
            yield [
                worker.name.removeprefix("matmul "),
                worker.case["dtype"],
                with_range(rate(worker, flops / 1e9), "GFLOP/s"),
                percent(shares),
            ]


def step_flops(worker: MeasuredWorker) -> int:
    """Matmul FLOPs of a step of a worker of this suite."""
    sizes = dict(worker.case["model"])
    predictions = worker.case["predictions"]
    if worker.case.get("masked") is False:
        predictions = worker.case["sequence_length"]
    if worker.name == MESH_BERT:
        hidden = sizes["hidden_size"]
        widths = {"input_embedding_size": hidden, "output_embedding_size": hidden}
        sizes |= widths | {"coupled": True}
    batch = Batch(worker.case["batch"], worker.case["sequence_length"], predictions)
    return pretraining_flops(ModelConfig(**sizes), batch, whole=worker.name != OURS)


SUITE = Suite(comparisons, tables, rounds=5, steps=3, dtypes=DTYPES)

if __name__ == "__main__":
    from benchmarks.__main__ import run_module

    run_module("pretraining")
