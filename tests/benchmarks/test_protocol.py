"""A worker's side of the conversation, line by line."""

import json
import os
import subprocess
import sys

import numpy as np

from benchmarks.interleave import WORKERS
from benchmarks.workers import protocol, synthetic
from tests.benchmarks.toys import TOY


def talk(lines, **case):
    """Replies of a toy worker to lines of input."""
    finished = subprocess.run(
        [sys.executable, str(TOY), json.dumps(case)],
        input="".join(f"{line}\n" for line in lines),
        env=os.environ | {"PYTHONPATH": str(WORKERS)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in finished.stdout.splitlines()]


def test_a_conversation():
    ready, first, second, end = talk(["run 2", "run 1", "quit"])
    assert ready["ready"] is True
    assert ready["parameters"] == 7
    assert set(first) == {"seconds", "resident", "loss"}
    assert len(first["seconds"]) == 2
    # The loss of the last step; steps 0 and 1 were the warm-up.
    assert (first["loss"], second["loss"]) == (3.0, 4.0)
    assert set(end) == {"peak_resident"}
    assert end["peak_resident"] >= second["resident"] > 0


def test_the_end_of_input_ends_a_worker():
    assert [set(reply) for reply in talk([])][1:] == [{"peak_resident"}]


def test_warm_up_of_a_case():
    _, reply, _ = talk(["run 1"], warmup=5)
    assert reply["loss"] == 5.0


def test_steps_are_timed_one_by_one(monkeypatch):
    clock = iter([10.0, 11.5, 20.0, 20.25])
    monkeypatch.setattr(protocol.time, "perf_counter", lambda: next(clock))
    reply = protocol.run(lambda: 2.0, 2)
    assert reply["seconds"] == [1.5, 0.25]
    assert reply["loss"] == 2.0


def test_memory_grows_by_what_is_allocated():
    before = protocol.memory()["resident"]
    block = np.ones(25_000_000)
    after = protocol.memory()
    assert 190e6 < after["resident"] - before < 210e6
    assert after["peak_resident"] >= after["resident"]
    del block


def test_the_batch_of_all_frameworks():
    sizes = {"vocab_size": 50, "batch": 64, "sequence_length": 12, "predictions": 11}
    batch = synthetic.masked_lm_batch(sizes)
    assert batch["input_word_ids"].shape == (64, 12)
    assert batch["masked_lm_ids"].shape == (64, 11)
    for name in ("input_word_ids", "masked_lm_ids"):
        assert batch[name].min() == 5
        assert batch[name].max() == 49
    # All positions but the first one are masked here, each once.
    assert (batch["masked_lm_positions"] == np.arange(1, 12)).all()
    again = synthetic.masked_lm_batch(sizes)
    assert all((batch[name] == again[name]).all() for name in batch)
