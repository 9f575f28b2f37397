"""Times several workers in turn, so that a machine's moods meet all of them alike.

The workers of one comparison live at the same time and run round by round, A B C A B C:
a round's figure is the median of its steps, a worker's figure the median of its rounds,
and a ratio is taken within each round before the median over rounds. While one worker
runs the others wait for input.
"""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks import peers
from decoupled.core.console import say, track
from decoupled.core.errors import UserError

WORKERS = pathlib.Path(__file__).parent / "workers"
SECONDS_TO_END = 60
# Every framework computes on the processor that is measured.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
# How the last line of a worker without enough memory starts, in Python and in C++.
_MEMORY_ERRORS = (
    "MemoryError",
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "RuntimeError: [enforce fail at alloc_cpu.cpp",
)


class Skip(UserError):
    """A comparison cannot be measured on this machine; the message says why."""


class Chunk(NamedTuple):
    """What a worker replies to one "run": seconds of each step, and the last loss."""

    seconds: list[float]
    loss: float


class MeasuredWorker(NamedTuple):
    """One worker's part of a comparison.

    name: unique in the comparison. case: what the worker was given. facts: what it said
    of itself when it was ready. rounds: a chunk per round. peak_resident: bytes,
    from the start of the process on.
    """

    name: str
    case: dict[str, Any]
    facts: dict[str, Any]
    rounds: list[Chunk]
    peak_resident: int

    def medians(self) -> list[float]:
        """Each round's median step, in seconds."""
        return [statistics.median(chunk.seconds) for chunk in self.rounds]


class Spread(NamedTuple):
    """The median, smallest and largest value over rounds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of `values`."""
    return Spread(statistics.median(values), min(values), max(values))


def seconds(worker: MeasuredWorker) -> Spread:
    """Seconds a step, over rounds."""
    return spread(worker.medians())


def rate(worker: MeasuredWorker, amount: float) -> Spread:
    """The amount that a step works through per second, over rounds."""
    return spread([amount / duration for duration in worker.medians()])


def ratio(worker: MeasuredWorker, reference: MeasuredWorker) -> Spread:
    """How many times as long a step of `worker` takes, over rounds of both."""
    pairs = zip(worker.medians(), reference.medians(), strict=True)
    return spread([duration / unit for duration, unit in pairs])


class Worker:
    """A worker process; a context manager that starts and ends it.

    Args:
      framework: which its interpreter has, see `peers.python`. script: file name in
        benchmarks/workers, without ".py". case: given to it as JSON. steps: of a round,
        where they differ from the comparison's. starts_first: it starts before the
        workers that do not, which then start beside it.

    Raises:
      UserError: there is no such interpreter.
    """

    def __init__(
        self,
        name: str,
        framework: str,
        script: str,
        case: dict[str, Any],
        steps: int | None = None,
        environment: dict[str, str] | None = None,
        starts_first: bool = False,
    ):
        self.name = name
        self.case = case
        self.steps = steps
        self.starts_first = starts_first
        self.facts = {}
        self.peak_resident = 0
        path = str(WORKERS / f"{script}.py")
        self.command = [peers.python(framework), path, json.dumps(case)]
        self._environment = os.environ | ENVIRONMENT | (environment or {})
        self._process = None
        self._errors = None

    def __enter__(self) -> "Worker":
        """Starts the process."""
        self._errors = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=self._environment,
                text=True,
            )
        except OSError as error:
            self._errors.close()
            raise UserError(
                f"{self.command[0]}: cannot run worker {self.name} ({error.strerror})"
            ) from error
        return self

    def wait(self) -> None:
        """Waits until its model is warm."""
        self.facts = self._reply()
        del self.facts["ready"]

    def __exit__(self, kind, error, trace) -> None:
        """Asks for the peak where all went well, and ends the process."""
        kill = True
        try:
            if kind is None:
                self._send("quit")
                self.peak_resident = self._reply()["peak_resident"]
                kill = False
        finally:
            self._stop(kill)

    def run(self, steps: int) -> Chunk:
        """Runs and times `steps` steps.

        Raises:
          UserError: the process ended; `Skip` where memory was too small.
        """
        self._send(f"run {steps}")
        return Chunk(**self._reply())

    def _send(self, line):
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def _reply(self):
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return json.loads(line)

    def _failure(self):
        code = self._process.wait(SECONDS_TO_END)
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else "it printed nothing"
        if code == -signal.SIGKILL or reason.startswith(_MEMORY_ERRORS):
            return Skip(f"{self.name}: worker ended, most likely for lack of memory")
        return UserError(f"{self.name}: worker ended with code {code}: {reason}")

    def _stop(self, kill):
        if kill and self._process.poll() is None:
            self._process.kill()
        # A process that has ended may not have read all lines.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def interleave(
    workers: Sequence[Worker],
    rounds: int,
    steps: int,
    description: str,
) -> list[MeasuredWorker]:
    """Starts the workers one by one, runs them in turn, ends them.

    Args:
      workers: not started yet, names unique. steps: of a round, unless the worker says
        otherwise.

    Raises:
      UserError: a worker cannot be started or ended too soon; `Skip` where it got too
        little memory.
    """
    chunks = {worker.name: [] for worker in workers}
    assert len(chunks) == len(workers), "names of workers are not unique"
    with contextlib.ExitStack() as stack:
        for worker in workers:
            if worker.starts_first:
                stack.enter_context(worker)
        for worker in workers:
            start = time.monotonic()
            if not worker.starts_first:
                stack.enter_context(worker)
            worker.wait()
            say(
                f"{description}: {worker.name} is warm after "
                f"{time.monotonic() - start:.0f} s"
            )
        for worker in track(list(workers) * rounds, description):
            chunks[worker.name].append(worker.run(worker.steps or steps))
    return [
        MeasuredWorker(w.name, w.case, w.facts, chunks[w.name], w.peak_resident)
        for w in workers
    ]
