"""Step time and memory of this project against E_out, vocabulary and mesh.

One cell after the other, each in a process of its own: E_out in 128, 768, 3072, a
vocabulary of 30,000, 120,000, 250,000, and a mesh of 1, 2, 4 virtual CPU devices over
which the vocabulary is split; each device runs the whole encoder. The machine's rate
of matrix products is measured in the same rounds. A cell that needs more memory than is
free is skipped, with the reason.

Writes benchmarks/results/scaling.json after each cell; --resume goes on where a run
stopped. All cells take some forty minutes on 2 cores.

Examples:
  python -m benchmarks.scaling --quick
  python -m benchmarks.scaling --resume --only="V=120000"
"""

import dataclasses
import functools
import itertools
from typing import NamedTuple

from benchmarks import command, machine
from benchmarks.flops import pretraining_flops
from benchmarks.interleave import ratio, seconds
from benchmarks.pretraining import our_worker
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
    megabytes,
    milliseconds_or_seconds,
    percent,
)
from decoupled.configs import ModelConfig

NAME = "scaling"
FLOAT = 4
# Bytes that TensorFlow takes, and the activations of the reference batch on a device.
PROGRAM = 1.0e9
ACTIVATIONS = 0.75e9


class Grid(NamedTuple):
    """The sizes of which every combination is a cell; `model` gives the others."""

    model: ModelConfig
    batch: Batch
    vocab_sizes: tuple[int, ...]
    output_sizes: tuple[int, ...]
    meshes: tuple[int, ...]


FULL = Grid(
    REFERENCE, REFERENCE_BATCH, (30_000, 120_000, 250_000), (128, 768, 3072), (1, 2, 4)
)
TINY = Grid(QUICK, QUICK_BATCH, (256, 512), (16, 48), (1, 2))


class Cell(NamedTuple):
    """One model on one mesh."""

    model: ModelConfig
    devices: int

    def title(self, dtype: str) -> str:
        """Unique among the cells."""
        sizes = f"V={self.model.vocab_size} E_out={self.model.output_embedding_size}"
        return f"{dtype}: {sizes} mesh={self.devices}"


def main() -> None:
    """Measures the cells that the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=3, steps=2, dtypes=["float32"])
    arguments = command.parse(options)
    grid = TINY if arguments.quick else FULL
    comparisons = [
        command.Planned(
            cell.title(dtype),
            functools.partial(_workers, cell, grid.batch, dtype, arguments.quick),
        )
        for dtype, cell in itertools.product(arguments.dtypes, cells(grid))
    ]
    command.measure(arguments, NAME, comparisons, tables)


def cells(grid: Grid) -> list[Cell]:
    """The cells of a grid, those of one vocabulary and mesh side by side."""
    sizes = itertools.product(grid.vocab_sizes, grid.meshes, grid.output_sizes)
    return [
        Cell(
            dataclasses.replace(
                grid.model, vocab_size=vocab_size, output_embedding_size=output_size
            ),
            devices,
        )
        for vocab_size, devices, output_size in sizes
    ]


def _workers(cell, batch, dtype, quick):
    command.require_memory(memory_needed(cell))
    case = pretraining_case(
        cell.model,
        batch,
        dtype,
        mesh_shape=f"vocab:{cell.devices}",
        layout_rules="vocab:vocab",
    )
    return [our_worker(case), *command.matmul_workers(dtype, quick)]


def memory_needed(cell: Cell) -> float:
    """Bytes that a step needs, estimated.

    Weights, two slots and gradients are split over the devices in the tables, and on
    each device in the layers. On several devices, weights and slots exist once more as
    they are saved.
    """
    model = cell.model
    width = model.input_embedding_size + model.output_embedding_size
    layer = 4 * model.hidden_size**2 + 2 * model.hidden_size * model.intermediate_size
    tables, layers = model.vocab_size * width, model.num_layers * layer
    numbers = 4 * (tables + cell.devices * layers)
    if cell.devices > 1:
        numbers += 3 * (tables + layers)
    return PROGRAM + cell.devices * ACTIVATIONS + FLOAT * numbers


def tables(comparisons: list[Comparison]) -> list[Table]:
    """A row per cell; times and FLOPs also as multiples of the smallest E_out's.

    Cells are measured minutes apart, while the machine's rate changes. Divided by the
    time of the matrix products of its own rounds, a step can be compared with another
    cell's.
    """
    measured = [comparison for comparison in comparisons if not comparison.skipped]
    rows = [_row(comparison, measured) for comparison in comparisons]
    return [
        Table(
            "scaling",
            "Step time and memory against E_out, vocabulary and mesh",
            ["activations", "V", "E_out", "devices", "step", "time / smallest E_out",
             "at equal matmul rate", "FLOPs / smallest E_out", "share of matmul rate",
             "peak memory", "output embedding per device", "its slots per device"],
            rows,
        )
    ]  # fmt: skip


def _row(comparison, measured):
    sizes = _sizes(comparison.title)
    if comparison.skipped:
        return [*sizes, comparison.skipped, *[""] * 7]
    ours, matmul = comparison.workers
    first, first_matmul = _smallest(ours, measured)
    weights, *slots = ours.facts["slices"].values()
    return [
        *sizes,
        milliseconds_or_seconds(seconds(ours)),
        f"{seconds(ours).median / seconds(first).median:.2f}",
        f"{ratio(ours, matmul).median / ratio(first, first_matmul).median:.2f}",
        f"{_flops(ours) / _flops(first):.2f}",
        percent(machine.share(_flops(ours), ours, matmul)),
        gigabytes(ours.peak_resident),
        megabytes(weights),
        megabytes([sum(parts) for parts in zip(*slots, strict=True)]),
    ]


def _sizes(title):
    # See `Cell.title`; a skipped cell has nothing else.
    dtype, sizes = title.split(": ")
    return [dtype, *(pair.partition("=")[2] for pair in sizes.split())]


def _smallest(ours, measured):
    # Both workers of a cell of the same vocabulary and mesh, maybe that of `ours`.
    key = _without_output(ours.case)
    cells = [comparison.workers for comparison in measured]
    alike = [workers for workers in cells if _without_output(workers[0].case) == key]
    return min(alike, key=lambda workers: _output_size(workers[0]))


def _without_output(case):
    model = {k: v for k, v in case["model"].items() if k != "output_embedding_size"}
    return {**case, "model": model}


def _output_size(worker):
    return worker.case["model"]["output_embedding_size"]


def _flops(worker):
    case = worker.case
    batch = Batch(case["batch"], case["sequence_length"], case["predictions"])
    devices = int(case["mesh"]["mesh_shape"].rpartition(":")[2])
    return pretraining_flops(ModelConfig(**case["model"]), batch, devices)


if __name__ == "__main__":
    command.run(NAME, main)
