"""How a benchmark worker talks to `benchmarks/interleave.py`. Standard library only.

A worker is a process with one model: `PYTHON benchmarks/workers/NAME.py 'JSON case'`.
It is run by path, so that it imports nothing of this repository but its neighbours and
what its own interpreter has installed. Its script ends in

    if __name__ == "__main__":
        protocol.serve(build)

where `build(case)` gives the step, a function that returns the loss (or another float
that shows what was computed), and facts about the model for the results.

Messages are lines: the worker builds, warms up and prints {"ready": true, ...facts};
for each line "run N" it prints {"seconds": [N floats], "resident": bytes,
"loss": float}; on "quit" or the end of its input it prints {"peak_resident": bytes}
and ends.

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

    Args:
      build: function of the case; gives the step and facts, a dict that JSON can hold.
    """
    replies = _take_stdout()
    case = json.loads(sys.argv[1])
    step, facts = build(case)
    for _ in range(case.get("warmup", WARMUP_STEPS)):
        step()
    _reply(replies, {"ready": True, **facts, **memory()})
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "quit":
            break
        _reply(replies, run(step, int(arguments[0])))
    _reply(replies, {"peak_resident": memory()["peak_resident"]})


def run(step: Step, steps: int) -> dict:
    """Times `steps` steps one by one: seconds each, and the last one's loss."""
    seconds = []
    loss = None
    for _ in range(steps):
        started = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds, "resident": memory()["resident"], "loss": loss}


def memory() -> dict[str, int]:
    """This process's bytes in memory, now and at most so far (Linux).

    The peak is that of the program, VmHWM; `getrusage` would also count the parent's.
    """
    text = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    sizes = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", text, re.MULTILINE))
    return {
        "resident": int(sizes["VmRSS"]) * 1024,
        "peak_resident": int(sizes["VmHWM"]) * 1024,
    }


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
