"""Toy workers, and measurements typed in by hand."""

import pathlib

from benchmarks.interleave import WORKERS, Chunk, MeasuredWorker, Worker
from benchmarks.results import Comparison

TOY = str(pathlib.Path(__file__).parent / "toy_worker")


def toy(name="toy", steps=None, **case):
    """A worker that is not started; see `toy_worker.py`."""
    environment = {"PYTHONPATH": str(WORKERS), "TOY": "set"}
    case = {"name": name, **case}
    return Worker(name, "decoupled", TOY, case, steps, environment)


def measured(name, rounds, case=None, facts=None, peak=2_500_000_000):
    """A worker's measurements: a list of seconds for each round."""
    chunks = [Chunk(seconds, 1.5) for seconds in rounds]
    return MeasuredWorker(name, case or {}, facts or {}, chunks, peak)


def comparison(title="float32: toys", workers=(), **changes):
    """A comparison of a fixed day and machine."""
    fields = dict(
        title=title,
        workers=list(workers),
        skipped=None,
        date="2024-03-01T12:00:00+00:00",
        command="python -m benchmarks.toys",
        commit="0123456789",
        machine={
            "processor": "CPU X",
            "features": ["avx", "avx2"],
            "cores": 2,
            "memory": 16_000_000_000,
        },
    )
    return Comparison(**{**fields, **changes})
