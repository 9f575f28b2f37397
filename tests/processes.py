"""Other processes: programs of a new interpreter, waits, and signals."""

import os
import subprocess
import sys
import threading
import time


def python(code):
    """The command of an interpreter that runs this code."""
    return [sys.executable, "-c", code]


def run_python(code, *words, **environment):
    """Runs code in a new interpreter; `environment` changes its variables."""
    return subprocess.run(
        [*python(code), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


def wait_until(condition, seconds=60.0):
    """Waits until a condition holds; returns its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited for {seconds:.0f} s"
        time.sleep(0.01)
    return value


def signal_when(condition, number):
    """Sends this process a signal as soon as a condition holds."""

    def send():
        wait_until(condition)
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
