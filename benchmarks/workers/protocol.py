"""How a benchmark worker talks to `benchmarks/interleave.py`. Standard library only.

A worker is a process with one model: `PYTHON benchmarks/workers/NAME.py 'JSON case'`.
It is run by path, so that it imports nothing of this repository but its neighbours and
what its own interpreter has installed. Its script ends in

    if __name__ == "__main__":
        protocol.serve(build)

where `build(case)` gives the step, a function that returns the loss (or another float
that shows what was computed), and facts about the model for the results. A framework
that owns the loop over steps calls `Turns.step_done` after each of them instead.

Messages are lines: the worker builds, warms up and prints {"ready": true, ...facts};
for each line "run N" it prints {"seconds": [N floats], "loss": float}; on "quit" or the
end of its input it prints {"peak_resident": bytes} and ends.

A case may hold "warmup", the number of steps before the first that counts.
"""

import importlib.metadata
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable
from typing import TextIO

WARMUP_STEPS = 2

Step = Callable[[], float]


def serve(build: Callable[[dict], tuple[Step, dict]]) -> None:
    """Runs a worker, from the case on its command line to the end of its input.

    `build` gives the step, and facts, which JSON can hold, for the case.
    """
    replies = _take_stdout()
    case = json.loads(sys.argv[1])
    step, facts = build(case)
    for _ in range(case.get("warmup", WARMUP_STEPS)):
        step()
    _reply(replies, {"ready": True, **facts})
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "quit":
            break
        _reply(replies, run(step, int(arguments[0])))
    _reply(replies, {"peak_resident": peak_resident()})


class Turns:
    """The protocol from inside a loop over steps that another program owns.

    After `warmup` steps it prints that the worker is ready, with `facts` and "start",
    the seconds since the process began, and waits. Each "run N" is answered after N
    more steps; "quit" ends the process.

    Args:
      warmup: steps before the first that is measured.
      facts: gives what the results tell about the model.
    """

    def __init__(self, warmup: int, facts: Callable[[], dict]):
        self._replies = _take_stdout()
        self._steps_left, self._facts = warmup, facts
        self._seconds = None
        self._step_start = 0.0

    def step_done(self, loss: float) -> None:
        """Notes the end of a step, with its loss or another number."""
        if self._seconds is not None:
            self._seconds.append(time.perf_counter() - self._step_start)
        self._steps_left -= 1
        if not self._steps_left:
            self._reply(loss)
            self._wait()
        self._step_start = time.perf_counter()

    def _reply(self, loss):
        if self._seconds is None:
            message = {"ready": True, "start": age(), **self._facts()}
        else:
            message = {"seconds": self._seconds, "loss": loss}
        _reply(self._replies, message)

    def _wait(self):
        command, *arguments = sys.stdin.readline().split() or ["quit"]
        if command == "quit":
            _reply(self._replies, {"peak_resident": peak_resident()})
            # The other program would save, and go on.
            os._exit(0)
        self._steps_left, self._seconds = int(arguments[0]), []


def age() -> float:
    """Seconds since this process began (Linux)."""
    stat = pathlib.Path("/proc/self/stat").read_text(encoding="utf-8")
    # Field 22; the second one, the program's name, may hold blanks.
    ticks = int(stat.rpartition(")")[2].split()[19])
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


def run(step: Step, steps: int) -> dict:
    """Times `steps` steps one by one: seconds each, and the last one's loss."""
    seconds = []
    loss = None
    for _ in range(steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "loss": loss}


def peak_resident() -> int:
    """The most bytes that this process had in memory so far (Linux).

    That of the program, VmHWM; `getrusage` would also count the parent's.
    """
    text = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)[1])


def versions(*distributions: str) -> dict[str, str]:
    """Version of each installed distribution, for the facts of a worker."""
    return {name: importlib.metadata.version(name) for name in distributions}


def _take_stdout() -> TextIO:
    # What libraries print goes to stderr, also from C++; replies have stdout alone.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _reply(replies, message):
    replies.write(json.dumps(message) + "\n")
    replies.flush()
