"""Workers in turn, what is computed from their seconds, and workers that fail."""

import pytest

from benchmarks.interleave import Skip, Worker, interleave, ratio, seconds, spread
from tests.benchmarks.toys import measured, toy


def test_workers_take_turns_round_by_round(tmp_path):
    log = tmp_path / "log"
    workers = [toy("a", log=str(log), warmup=0), toy("b", log=str(log), warmup=0)]
    interleave(workers, rounds=3, steps=2, description="toys")
    assert log.read_text().split() == ["a", "a", "b", "b"] * 3


def test_what_starts_first_and_what_runs_first(tmp_path, monkeypatch):
    log, started, start = tmp_path / "log", [], Worker.__enter__
    monkeypatch.setattr(
        Worker, "__enter__", lambda worker: started.append(worker.name) or start(worker)
    )
    workers = [toy("a", log=str(log), warmup=0), toy("b", log=str(log), warmup=0)]
    workers[1].starts_first = True
    interleave(workers, rounds=1, steps=1, description="toys")
    assert started == ["b", "a"] and log.read_text().split() == ["a", "b"]


def test_what_is_measured():
    slow, fast = interleave(
        [toy("slow", seconds=0.02), toy("fast", steps=5)], 2, 3, "toys"
    )
    assert [len(chunk.seconds) for chunk in slow.rounds] == [3, 3]
    assert [len(chunk.seconds) for chunk in fast.rounds] == [5, 5]
    assert all(value >= 0.02 for value in slow.medians())
    assert slow.facts["parameters"] == 7
    assert slow.facts["environment"] == "set"
    assert slow.case["seconds"] == 0.02
    # Two steps of warm-up come before the first measured step.
    assert [chunk.loss for chunk in slow.rounds] == [4.0, 7.0]
    assert 1_000_000 < slow.peak_resident < 10**9


def test_a_round_is_the_median_of_its_steps():
    worker = measured("a", [[1.0, 9.0, 2.0], [4.0, 3.0, 5.0], [3.0, 3.0, 3.0]])
    assert worker.medians() == [2.0, 4.0, 3.0]
    assert seconds(worker) == (3.0, 2.0, 4.0)


def test_ratios_are_taken_within_rounds():
    # A machine that is twice as slow in the second round changes no ratio.
    ours = measured("ours", [[1.0], [2.0], [1.0]])
    other = measured("other", [[1.5], [3.0], [1.8]])
    assert ratio(other, ours) == (1.5, 1.5, 1.8)


def test_spread_of_an_even_number_of_values():
    assert spread([4.0, 1.0, 2.0, 3.0]) == (2.5, 1.0, 4.0)


@pytest.mark.parametrize("fail", ["killed", "memory"])
def test_a_worker_without_memory_can_be_skipped(fail):
    with pytest.raises(Skip, match="toy: worker ended, most likely for lack of memory"):
        interleave([toy(fail=fail)], 1, 1, "toys")
