"""A worker of standard Python: its steps take the seconds that the case says.

A case may hold "fail" ("step", "killed", "memory") and "log", a file to which the
worker's name is added at each step.
"""

import os
import signal
import time

import protocol


def build(case):
    print("what a library prints is no reply")
    losses = iter(range(1000))

    def step():
        if case.get("log"):
            with open(case["log"], "a", encoding="utf-8") as log:
                log.write(case["name"] + "\n")
        number = next(losses)
        if number >= 2 and case.get("fail") == "step":
            raise ValueError("loss is not finite")
        if number >= 2 and case.get("fail") == "memory":
            raise MemoryError("no memory for a tensor")
        if number >= 2 and case.get("fail") == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(case.get("seconds", 0.0))
        return float(number)

    return step, {"parameters": 7, "environment": os.environ.get("TOY", "")}


if __name__ == "__main__":
    protocol.serve(build)
