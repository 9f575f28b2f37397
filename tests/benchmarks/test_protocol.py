"""A worker's side of the conversation, line by line."""

import pathlib
import re

import numpy as np

from benchmarks.workers import protocol, synthetic


def test_steps_are_timed_one_by_one(monkeypatch):
    clock = iter([10.0, 11.5, 20.0, 20.25])
    monkeypatch.setattr(protocol.time, "perf_counter", lambda: next(clock))
    reply = protocol.run(lambda: 2.0, 2)
    assert reply["seconds"] == [1.5, 0.25]
    assert reply["loss"] == 2.0


def test_the_peak_of_memory_outlives_what_was_allocated():
    text = pathlib.Path("/proc/self/status").read_text()
    resident = 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", text)[1])
    block = np.ones(8_000_000)
    del block
    assert 60e6 < protocol.peak_resident() - resident


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
