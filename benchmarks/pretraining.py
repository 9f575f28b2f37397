"""Pre-training steps of this project and of its peers, interleaved.

Measures seconds a step and peak memory of
  decoupled            this project
  transformers         Hugging Face's RemBertForMaskedLM as shipped: its head runs on
                       every position
  transformers masked  the same with the head on the masked positions: the fair peer
  mesh_tensorflow.bert the stock BERT of Mesh-TensorFlow: tied embeddings, E = H
and the machine's own rate of matrix products. In each type the first three are one
comparison and the fourth another, each with this project, because all of them together
need about 28 GB. Then 200 steps of this project alone, to see whether memory grows.

Writes benchmarks/results/pretraining.json.

Examples:
  python -m benchmarks.pretraining --quick
  python -m benchmarks.pretraining --dtypes=bfloat16 --only=transformers
"""

from collections.abc import Iterator

from benchmarks import command, machine
from benchmarks.flops import pretraining_flops
from benchmarks.interleave import Measured, Worker, ratio, seconds
from benchmarks.results import Comparison
from benchmarks.sizes import (
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
    times,
    with_range,
)
from decoupled.configs import ModelConfig

NAME = "pretraining"
OURS = "decoupled"
MESH_BERT = "mesh_tensorflow.bert"
MATMULS = {"tensorflow": "decoupled", "torch": "torch"}
GROWTH = ": growth"
GROWTH_ROUNDS = 20


def main() -> None:
    """Measures what the command line asks for and prints all tables."""
    options = command.parser(NAME, __doc__, rounds=5, steps=3)
    options.add_argument(
        "--growth_steps", type=int, default=200,
        help="steps over which growth of memory is looked for; 0: not at all (200)",
    )  # fmt: skip
    arguments = command.parse(options)
    results = command.open_results(arguments, NAME)
    for dtype in arguments.dtypes:
        _measure(arguments, results, dtype)
    command.show_all(tables, results)


def _measure(arguments, results, dtype):
    case = _case(arguments, dtype)
    for title, make_workers in _comparisons(arguments, case):
        if command.is_chosen(arguments, title):
            results.measure(title, make_workers, arguments.rounds, arguments.steps)
    title = dtype + GROWTH
    steps = GROWTH_ROUNDS if arguments.quick else arguments.growth_steps
    if steps and command.is_chosen(arguments, title):
        each = -(-steps // GROWTH_ROUNDS)
        results.measure(title, lambda: [our_worker(case)], GROWTH_ROUNDS, each)


def _case(arguments, dtype):
    if arguments.quick:
        return pretraining_case(QUICK, QUICK_BATCH, dtype)
    return pretraining_case(REFERENCE, REFERENCE_BATCH, dtype)


def _comparisons(arguments, case):
    dtype = case["dtype"]
    size = 64 if arguments.quick else machine.MATMUL_SIZE

    def against_transformers():
        pythons = {name: command.python(place) for name, place in MATMULS.items()}
        return [
            _transformers_worker("transformers", case, masked=False),
            _transformers_worker("transformers masked", case, masked=True),
            our_worker(case),
            *machine.matmul_workers(pythons, dtype, size),
        ]

    def against_mesh_bert():
        python = command.python("mesh_bert")
        stock = Worker(MESH_BERT, python, "mesh_bert_pretraining", case)
        return [stock, our_worker(case)]

    yield f"{dtype}: transformers", against_transformers
    yield f"{dtype}: {MESH_BERT}", against_mesh_bert


def our_worker(case: dict) -> Worker:
    """This project's worker, for a case of `pretraining_case`."""
    return Worker(OURS, command.python("decoupled"), "decoupled_pretraining", case)


def _transformers_worker(name, case, masked):
    return Worker(
        name,
        command.python("torch"),
        "transformers_pretraining",
        {**case, "masked": masked},
    )


def tables(comparisons: list[Comparison]) -> list[Table]:
    """Steps, rates of matrix products, and growth of memory."""
    steps = [row for c in comparisons for row in _step_rows(c)]
    rates = [row for c in comparisons for row in _rate_rows(c)]
    growth = [row for c in comparisons for row in _growth_rows(c)]
    return [
        Table(
            "pretraining",
            "Pre-training step",
            ["model", "activations", "step", "against ours", "FLOP/s in matmuls",
             "peak memory"],
            steps,
        ),
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


def _step_rows(comparison) -> Iterator[list[str]]:
    if comparison.title.endswith(GROWTH):
        return
    if comparison.skipped:
        yield [comparison.title, "", comparison.skipped, "", "", ""]
        return
    ours = comparison.worker(OURS)
    for worker in comparison.workers:
        if "model" not in worker.case:
            continue
        yield [
            worker.name,
            worker.case["dtype"],
            milliseconds_or_seconds(seconds(worker)),
            "" if worker is ours else times(ratio(worker, ours)),
            f"{step_flops(worker) / seconds(worker).median / 1e9:,.0f} GFLOP/s",
            gigabytes(worker.peak_resident),
        ]


def _rate_rows(comparison) -> Iterator[list[str]]:
    for worker in comparison.workers:
        if not worker.name.startswith("matmul "):
            continue
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
