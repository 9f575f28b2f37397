"""Whole logits beside blocks: what is compared, what fits, and the table."""

import argparse
import sys

import pytest

from benchmarks import command, results, softmax
from benchmarks.interleave import Skip
from benchmarks.sizes import NARROW_BATCH
from tests.benchmarks.toys import comparison, measured

LOGITS = 4 * 640 * 250_000
TABLES = 4 * 250_000 * (128 + 768)


def workers(monkeypatch, free):
    monkeypatch.setattr(command, "memory_sizes", lambda: {"MemAvailable": free})
    monkeypatch.setattr(softmax.command, "python", lambda framework: sys.executable)
    arguments = argparse.Namespace(quick=False)
    return softmax._workers(250_000, 768, "float32", arguments)


def test_the_three_ways_and_the_peer_have_the_same_model_and_batch(monkeypatch):
    found = workers(monkeypatch, free=1e12)
    assert [worker.name for worker in found] == [
        "decoupled", "decoupled, whole logits", "decoupled, small blocks",
        "transformers masked",
    ]  # fmt: skip
    blocks = [worker.case.pop("softmax_block_size") for worker in found[:3]]
    assert blocks == [0, 250_000, 4096]
    masked = found[3].case.pop("masked")
    assert masked and all(worker.case == found[0].case for worker in found)
    assert found[0].case["batch"] * found[0].case["predictions"] * 250_000 * 4 == LOGITS


@pytest.mark.parametrize(
    "name,tables,logits",
    [
        ("decoupled, whole logits", 3, 3),
        ("decoupled, small blocks", 3, 1),
        ("transformers masked", 4, 3),
    ],
)
def test_memory_needed(monkeypatch, name, tables, logits):
    (worker,) = [w for w in workers(monkeypatch, 1e12) if w.name == name]
    model = softmax.ModelConfig(**worker.case["model"])
    needed = softmax.memory_needed(model, NARROW_BATCH, name)
    assert needed == 1.2e9 + tables * TABLES + logits * LOGITS


def test_what_does_not_fit_is_left_out_and_named(monkeypatch, capsys):
    # The peer needs 6.7 GB, the others at most 5.8.
    found = workers(monkeypatch, free=6e9)
    assert [worker.name for worker in found][-1] == "decoupled, small blocks"
    assert capsys.readouterr().out == (
        "softmax: V=250000 E_out=768: transformers masked: needs about 6.70 GB, "
        "6.00 GB are free\n"
    )
    with pytest.raises(Skip, match="needs about 5.81 GB, 5.00 GB are free"):
        workers(monkeypatch, free=5e9)


def test_table():
    found = [
        measured("decoupled", [[2.0]], peak=5e9),
        measured("decoupled, whole logits", [[1.9]], peak=6e9),
        measured("transformers masked", [[4.0]], peak=8e9),
    ]
    (table,) = softmax.tables([comparison("float32: V=250000 E_out=768", found)])
    assert [row[1:] for row in table.rows] == [
        ["decoupled", "2.00 s (2.00-2.00)", "", "5.00 GB", ""],
        ["decoupled, whole logits", "1.90 s (1.90-1.90)", "0.95x (0.95-0.95)",
         "6.00 GB", "1.20x"],
        ["transformers masked", "4.00 s (4.00-4.00)", "2.00x (2.00-2.00)",
         "8.00 GB", "1.60x"],
    ]  # fmt: skip


@pytest.mark.slow
def test_a_quick_run_computes_the_same_in_blocks(tmp_path, monkeypatch):
    ours = softmax._workers

    def without_peer(*arguments):
        return ours(*arguments)[:3]

    monkeypatch.setattr(softmax, "_workers", without_peer)
    monkeypatch.setattr(softmax.command, "python", lambda framework: sys.executable)
    arguments = ["softmax", "--quick", f"--results_dir={tmp_path}", "--only=E_out=16"]
    monkeypatch.setattr(sys, "argv", arguments)
    softmax.main()
    (read,) = results.read(tmp_path / "softmax.json")
    losses = [[chunk.loss for chunk in worker.rounds] for worker in read.workers]
    # Each round starts anew, from the same weights.
    assert losses[0][0] == losses[0][1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)
