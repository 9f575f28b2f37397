"""Cells of the grid, the memory they need, and their table."""

import dataclasses
import sys

import pytest

from benchmarks import command, results, scaling
from benchmarks.sizes import REFERENCE, REFERENCE_BATCH, pretraining_case
from tests.benchmarks.toys import comparison, measured


def test_every_combination_is_a_cell():
    titles = [cell.title("float32") for cell in scaling.cells(scaling.FULL)]
    assert len(set(titles)) == 27
    assert titles[:4] == [
        "float32: V=30000 E_out=128 mesh=1",
        "float32: V=30000 E_out=768 mesh=1",
        "float32: V=30000 E_out=3072 mesh=1",
        "float32: V=30000 E_out=128 mesh=2",
    ]


@pytest.mark.parametrize(
    "devices,numbers",
    [
        # Weights, two slots, gradient.
        (1, 4 * (107_520_000 + 84_934_656)),
        # Layers on both devices, and weights and slots as they are saved.
        (2, 7 * 107_520_000 + (2 * 4 + 3) * 84_934_656),
    ],
)
def test_memory_needed(devices, numbers):
    cell = scaling.Cell(REFERENCE, devices)
    expected = 4 * numbers + 1e9 + devices * 0.75e9
    assert scaling.memory_needed(cell) == pytest.approx(expected)


def cell(title, output_size, seconds, matmul_seconds, devices=2):
    """A measured cell of 120,000 pieces on a mesh of two."""
    model = dataclasses.replace(REFERENCE, output_embedding_size=output_size)
    case = pretraining_case(
        model, REFERENCE_BATCH, "float32", f"vocab:{devices}", "vocab:vocab"
    )
    size = 120_000 * output_size * 4 // devices
    slices = {name: [size] * devices for name in ("table", "table/m", "table/v")}
    matmul = {"size": 2048, "dtype": "float32"}
    workers = [
        measured("decoupled", [[seconds]], case, {"slices": slices}),
        measured("matmul tensorflow", [[matmul_seconds]], matmul),
    ]
    return comparison(title, workers)


def test_table():
    small = cell("float32: V=120000 E_out=128 mesh=2", 128, 4.0, 0.05)
    large = cell("float32: V=120000 E_out=768 mesh=2", 768, 5.0, 0.06)
    skipped = comparison("float32: V=120000 E_out=3072 mesh=2", skipped="too large")
    (table,) = scaling.tables([small, large, skipped])
    assert table.rows[0][:8] == [
        "float32", "120000", "128", "2", "4.00 s (4.00-4.00)",
        "1.00", "1.00", "1.00",
    ]  # fmt: skip
    # The machine was 1.2 times as slow. Two encoders of 537 GFLOP; logits of 14.7 and
    # of 88.5.
    assert table.rows[1][5:8] == ["1.25", "1.04", "1.07"]
    # Weights and, together, both slots, on each of the two devices.
    assert table.rows[1][-2:] == ["184 MB", "369 MB"]
    assert table.rows[2] == [
        "float32", "120000", "3072", "2", "too large", *[""] * 7,
    ]  # fmt: skip


def run(monkeypatch, folder, *arguments):
    arguments = ["scaling", "--quick", f"--results_dir={folder}", *arguments]
    monkeypatch.setattr(sys, "argv", arguments)
    scaling.main()
    return results.read(folder / "scaling.json")


@pytest.mark.slow
def test_a_quick_run_of_one_cell(tmp_path, monkeypatch, capsys):
    (read,) = run(monkeypatch, tmp_path, "--only=V=256 E_out=16 mesh=2")
    sizes = read.worker("decoupled").facts["slices"]
    # [256, 16] of 4 bytes, split over two devices; so are both slots.
    table = "cls/predictions/output_embedding"
    assert sizes == {
        table: [8192, 8192],
        f"{table}/adam_m": [8192, 8192],
        f"{table}/adam_v": [8192, 8192],
    }
    assert "0.02 MB" in capsys.readouterr().out


def test_a_cell_without_memory_is_skipped(tmp_path, monkeypatch):
    memory = {"MemAvailable": 10**9, "MemTotal": 10**9}
    monkeypatch.setattr(command, "memory_sizes", lambda: memory)
    (read,) = run(monkeypatch, tmp_path, "--only=V=256 E_out=16 mesh=1")
    assert read.skipped == "needs about 1.75 GB, 1.00 GB are free"
