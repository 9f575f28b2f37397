"""Pre-training steps of this project and of its peers, interleaved.

Measures seconds a step and peak memory of
  decoupled            this project
  transformers         Hugging Face's RemBertForMaskedLM as shipped: its head runs on
                       every position
  transformers masked  the same with the head on the masked positions: the fair peer
  mesh_tensorflow.bert the stock BERT of Mesh-TensorFlow: tied embeddings, E = H
and the machine's own rate of matrix products. In each type the first three are one
comparison and the fourth another, each with this project, because all of them together
need about 28 GB. The first three are compared once more at the sizes of
gin/models/mini_in_small.gin, 256 sequences of 32 tokens: "mini". Then 200 steps of this
project alone, to see whether memory grows.

Writes benchmarks/results/pretraining.json.

Examples:
  python -m benchmarks.pretraining --quick
  python -m benchmarks.pretraining --dtypes=bfloat16 --only=transformers
"""

import functools
from collections.abc import Iterator

from benchmarks import command, machine
from benchmarks.flops import pretraining_flops
from benchmarks.interleave import Measured, Worker, seconds
from benchmarks.results import Comparison
from benchmarks.sizes import (
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
    Table,
    gigabytes,
    milliseconds_or_seconds,
    percent,
    with_range,
    worker_table,
)
from decoupled.configs import ModelConfig

NAME = "pretraining"
OURS = "decoupled"
FAIR_PEER = "transformers masked"
MESH_BERT = "mesh_tensorflow.bert"
GROWTH = ": growth"
# A step takes a twentieth of a second.
MINI_TITLE, MINI_STEPS = ": mini", 60
GROWTH_ROUNDS = 20


def main() -> None:
    """Measures what the command line asks for and prints all tables."""
    options = command.parser(NAME, __doc__, rounds=5, steps=3)
    options.add_argument(
        "--growth_steps", type=int, default=200,
        help="steps over which growth of memory is looked for; 0: not at all (200)",
    )  # fmt: skip
    arguments = command.parse(options)
    quick = arguments.quick
    steps = GROWTH_ROUNDS if quick else arguments.growth_steps
    comparisons = []
    for dtype in arguments.dtypes:
        sizes = (QUICK, QUICK_BATCH) if quick else (REFERENCE, REFERENCE_BATCH)
        case = pretraining_case(*sizes, dtype)
        against_transformers = functools.partial(_with_products, case, quick)
        against_mesh_bert = functools.partial(_against_mesh_bert, case)
        alone = functools.partial(_alone, case)
        comparisons += [
            command.Planned(f"{dtype}: transformers", against_transformers),
            command.Planned(f"{dtype}: {MESH_BERT}", against_mesh_bert),
        ]
        small = (QUICK, QUICK_BATCH) if quick else (MINI, MINI_BATCH)
        mini = pretraining_case(*small, dtype)
        comparisons.append(
            command.Planned(
                dtype + MINI_TITLE,
                functools.partial(_against_transformers, mini),
                steps=2 if quick else MINI_STEPS,
            )
        )
        if steps:
            each = -(-steps // GROWTH_ROUNDS)
            planned = command.Planned(dtype + GROWTH, alone, GROWTH_ROUNDS, each)
            comparisons.append(planned)
    command.measure(arguments, NAME, comparisons, tables)


def _against_transformers(case):
    return [
        _transformers_worker("transformers", case, masked=False),
        fair_peer(case),
        our_worker(case),
    ]


def _with_products(case, quick):
    products = command.matmul_workers(case["dtype"], quick, ("tensorflow", "torch"))
    return [*_against_transformers(case), *products]


def _against_mesh_bert(case):
    python = command.python("mesh_bert")
    return [
        Worker(MESH_BERT, python, "mesh_bert_pretraining", case),
        our_worker(case),
    ]


def _alone(case):
    return [our_worker(case)]


def our_worker(case: dict, name: str = OURS) -> Worker:
    """This project's worker, for a case of `pretraining_case`."""
    return Worker(name, command.python("decoupled"), "decoupled_pretraining", case)


def fair_peer(case: dict) -> Worker:
    """The worker of transformers whose head runs on the masked positions alone, for a
    case of `pretraining_case`."""
    return _transformers_worker(FAIR_PEER, case, masked=True)


def _transformers_worker(name, case, masked):
    return Worker(
        name,
        command.python("torch"),
        "transformers_pretraining",
        {**case, "masked": masked},
    )


def tables(comparisons: list[Comparison]) -> list[Table]:
    """Steps, rates of matrix products, and growth of memory."""
    steps = [c for c in comparisons if not c.title.endswith(GROWTH)]
    columns = [
        "model", "activations", "step", "against ours", "FLOP/s in matmuls",
        "peak memory",
    ]  # fmt: skip
    rates = [row for c in comparisons for row in _rate_rows(c)]
    growth = [row for c in comparisons for row in _growth_rows(c)]
    return [
        worker_table(NAME, "Pre-training step", columns, steps, OURS, _step_cells),
        Table(
            "matmul",
            "Matrix products of this machine",
            ["framework", "type", "rate", "our step's share of it"],
            rates,
        ),
        Table(
            "growth",
            "Resident memory of our step",
            ["activations", "steps", "after the first round", "after the last",
             "growth", "peak"],
            growth,
        ),
    ]  # fmt: skip


def _step_cells(comparison, worker, against):
    mini = ", mini" if comparison.title.endswith(MINI_TITLE) else ""
    return [
        worker.name + mini,
        worker.case["dtype"],
        milliseconds_or_seconds(seconds(worker)),
        against,
        f"{step_flops(worker) / seconds(worker).median / 1e9:,.0f} GFLOP/s",
        gigabytes(worker.peak_resident),
    ]


def _rate_rows(comparison) -> Iterator[list[str]]:
    for worker in filter(machine.is_matmul, comparison.workers):
        ours = comparison.worker(OURS)
        rates = machine.matmul_rates(worker)
        yield [
            worker.name.removeprefix("matmul "),
            worker.case["dtype"],
            with_range(type(rates)(*(rate / 1e9 for rate in rates)), "GFLOP/s"),
            percent(machine.share(step_flops(ours), ours, worker)),
        ]


def _growth_rows(comparison) -> Iterator[list[str]]:
    if comparison.skipped or not comparison.title.endswith(GROWTH):
        return
    ours = comparison.worker(OURS)
    first, last = ours.rounds[0].resident, ours.rounds[-1].resident
    yield [
        ours.case["dtype"],
        str(sum(len(chunk.seconds) for chunk in ours.rounds)),
        gigabytes(first),
        gigabytes(last),
        f"{(last - first) / 1e6:+,.0f} MB",
        gigabytes(ours.peak_resident),
    ]


def step_flops(worker: Measured) -> int:
    """Matmul FLOPs of a step of a worker of this suite."""
    sizes = dict(worker.case["model"])
    predictions = worker.case["predictions"]
    if worker.case.get("masked") is False:
        predictions = worker.case["sequence_length"]
    if worker.name == MESH_BERT:
        hidden = sizes["hidden_size"]
        tied = {"input_embedding_size": hidden, "output_embedding_size": hidden}
        sizes |= tied | {"coupled": True}
    batch = Batch(worker.case["batch"], worker.case["sequence_length"], predictions)
    return pretraining_flops(ModelConfig(**sizes), batch, whole=worker.name != OURS)


if __name__ == "__main__":
    command.run(NAME, main)
