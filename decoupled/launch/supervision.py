"""Runs commands from other commands: steps of a long command, and what is restarted.

A step is a separate command, which is shown, run and timed.

If a process of a run dies, or loses another (exit code 75), all that this host has are
started again. A run loses only the work since its last checkpoint. Mistakes of the user
(exit code 2) and defects (1) are not retried.

Ctrl-C and SIGTERM are passed on to the running commands, which save before they end.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from decoupled.core import console, files
from decoupled.core.errors import WORKER_LOST_CODE, Interrupted, Terminated, UserError
from decoupled.core.processes import (
    command_line,
    end_all,
    handled,
    run_command,
    start_apart,
)

SECONDS = "seconds.json"
# Seconds between two polls of the processes.
_POLL = 0.1
# Seconds in which the other processes end by themselves after one has ended, and then
# between SIGTERM and SIGKILL.
_GRACE = 60.0
# A run that took this long has made progress, and earlier restarts are not counted.
_PROGRESS_SECONDS = 600.0
# Seconds before a restart, doubled each time, so many times at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_MOST_DOUBLINGS = 10


class Step(NamedTuple):
    """A command among several.

    title: printed with the command; without a title nothing is printed.
    name: key of its seconds. command: as in a shell. quiet: whether its stderr is shown
    only if it fails.
    """

    title: str
    name: str
    command: Sequence[str]
    quiet: bool = False


def run_step(work_dir: str, step: Step) -> None:
    """Runs one step and shows its output immediately.

    Its seconds are saved in work_dir/seconds.json under its name, if its first run is
    not interrupted: what goes on after a kill is only a part of the work.

    Raises:
      UserError: it failed.
      Interrupted, Terminated: a signal arrived, and the step has ended.
    """
    if step.title:
        for line in ("", step.title, f"$ {shlex.join(step.command)}"):
            console.say(line)
    seconds = seconds_of_steps(work_dir)
    is_first = step.name not in seconds
    if is_first:
        _write_seconds(work_dir, seconds | {step.name: None})
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        stderr = errors if step.quiet else None
        try:
            code = run_command(command_line(*step.command), stderr)
        except Interrupted as error:
            raise Interrupted(f"{error}: ended in step {step.name}") from error
        except Terminated as error:
            raise Terminated(
                f"{error}: ended in step {step.name}; run the same command again to go "
                "on"
            ) from error
        if code:
            errors.seek(0)
            sys.stderr.write(errors.read())
            raise UserError(
                f"{step.name}: ended with code {code}, see above; mend it and run the "
                "same command again, which goes on from here"
            )
    if is_first:
        duration = round(time.monotonic() - start, 1)
        _write_seconds(work_dir, seconds | {step.name: duration})


def seconds_of_steps(work_dir: str) -> dict[str, float | None]:
    """Name -> seconds, of all steps that began; None if the first run did not end."""
    path = os.path.join(work_dir, SECONDS)
    return files.read_json(path) if files.exists(path) else {}


def _write_seconds(work_dir, seconds):
    files.write_json(os.path.join(work_dir, SECONDS), seconds)


def members(command: Sequence[str], processes: int | None) -> list[list[str]]:
    """The command lines of a run's processes, which this host starts.

    Args:
      processes: each is told its number and their address, which is new at each start;
        None: the command says all by itself.
    """
    words = command_line(*command)
    if processes is None:
        return [words]
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    common_words = [*words, f"--coordinator={address}", f"--processes={processes}"]
    return [[*common_words, f"--process={index}"] for index in range(processes)]


def supervise(
    make_members: Callable[[], list[list[str]]],
    max_restarts: int,
    say: Callable[[str], None],
) -> int:
    """Runs all processes of a run, with restarts, until it ends.

    SIGTERM, SIGHUP and Ctrl-C are passed on to all, which save and end.
    `make_members` gives the command lines of the next start. `max_restarts` counts
    those without ten minutes of work between them.

    Returns:
      The exit code of a process that did not end well, or 0; 75 if this gave up.
    """
    processes: list[subprocess.Popen] = []
    end_signal = None

    def pass_on(number, _):
        nonlocal end_signal
        end_signal = number
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    restarts = 0
    with handled(pass_on):
        while True:
            start = time.monotonic()
            try:
                for words in make_members():
                    processes.append(start_apart(words))
                    # A signal may have come before this process could get it.
                    if end_signal is not None:
                        processes[-1].send_signal(end_signal)
                codes = _codes(processes)
            finally:
                end_all(processes, _GRACE)
                count = len(processes)
                processes.clear()
            index, code = _verdict(codes)
            if end_signal is not None or not _can_go_on(code):
                return code if code >= 0 else 128 - code
            name = "the command" if count == 1 else f"process {index}"
            if time.monotonic() - start >= _PROGRESS_SECONDS:
                restarts = 0
            if restarts == max_restarts:
                say(f"{name} {_how(code)}; gave up after {restarts} restarts")
                return WORKER_LOST_CODE
            doublings = min(restarts, _MOST_DOUBLINGS)
            pause = min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
            restarts += 1
            say(
                f"{name} {_how(code)}; restart {restarts} of {max_restarts} in "
                f"{pause:.1f} s"
            )
            time.sleep(pause)
            if end_signal is not None:
                return code if code >= 0 else 128 - code


def _codes(processes):
    """The exit codes by process, None for those that outlive another's failure."""
    end = None
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return codes
        if any(codes) and end is None:
            end = time.monotonic() + _GRACE
        if end is not None and time.monotonic() > end:
            return codes
        time.sleep(_POLL)


def _verdict(codes):
    """Which process decides how the run goes on, and its code."""
    # One that was killed explains why others lost it; a mistake ends all.
    exits = [(index, code) for index, code in enumerate(codes) if code is not None]
    return min(exits, key=lambda pair: _rank(pair[1]))


def _rank(code):
    if code == 0:
        return 3
    if code == WORKER_LOST_CODE:
        return 2
    return 1 if code < 0 else 0


def _can_go_on(code):
    return code == WORKER_LOST_CODE or code < 0 and -code != signal.SIGINT


def _how(code):
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
