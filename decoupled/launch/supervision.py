"""Runs commands from other commands: steps of a long command, a driver with workers.

A step is a separate command, which is shown, run and timed.

If a driver or one of its workers dies, all are restarted. A run loses only the work
since its last checkpoint. Mistakes of the user (exit code 2) and defects (1) are not
retried.

Ctrl-C and SIGTERM are passed on to the running commands, which save before they end.
"""

import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from decoupled.core import console, files, ports
from decoupled.core.errors import WORKER_LOST_CODE, Interrupted, Terminated, UserError
from decoupled.core.processes import (
    command_line,
    end_all,
    handled,
    run_command,
    start_apart,
)

SECONDS = "seconds.json"
# The variable that selects the GPUs for CUDA.
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
DRIVER = "driver"
# Seconds between two polls of the processes.
_POLL = 0.1
# Seconds between SIGTERM and SIGKILL, in which a driver saves a checkpoint.
_GRACE = 60.0
# A driver that ran this long has made progress, and earlier restarts are not counted.
_PROGRESS_SECONDS = 600.0
# Seconds before a restart, doubled each time.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0


class Step(NamedTuple):
    """A command among several.

    title: printed with the command; without a title nothing is printed.
    name: key of its seconds. command: as in a shell. quiet: whether its stderr is shown
    only if it fails. environment: variables in addition to those of this process.
    """

    title: str
    name: str
    command: Sequence[str]
    quiet: bool = False
    environment: Mapping[str, str] = {}


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
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        stderr = errors if step.quiet else None
        try:
            code = run_command(command_line(*step.command), step.environment, stderr)
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
        taken = round(time.monotonic() - started, 1)
        _write_seconds(work_dir, seconds | {step.name: taken})


def seconds_of_steps(work_dir: str) -> dict[str, float | None]:
    """Name -> seconds, of all steps that began; None if the first run did not end."""
    path = os.path.join(work_dir, SECONDS)
    return files.read_json(path) if files.exists(path) else {}


def _write_seconds(work_dir, seconds):
    files.write_json(os.path.join(work_dir, SECONDS), seconds)


class HostProcess(NamedTuple):
    """A process of a run: the driver, or a worker that runs as long as the driver."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


def members(
    command: Sequence[str] | None,
    addresses: Sequence[str],
    indices: Sequence[int],
    devices: int,
    accept_open_ports: bool,
    gpus: Sequence[str] = (),
) -> list[HostProcess]:
    """The processes of a run that this host starts, workers first.

    Args:
      command: of the driver, which is the worker with index 0.
      addresses: host:port of all. indices: of those on this host.
      devices: virtual CPU devices of each. gpus: of each, from `gpu_shares`.
    """
    made = []
    for place, index in enumerate(indices):
        variables = {VISIBLE_GPUS: gpus[place]} if gpus else {}
        if index:
            # A worker is identified by its flags, not by the driver's TF_CONFIG.
            words = worker_command(addresses, index, devices, accept_open_ports)
            made.append(HostProcess(f"worker {index}", words, variables))
        else:
            variables |= cluster_variable(addresses, accept_open_ports)
            made.append(HostProcess(DRIVER, command_line(*command), variables))
    return sorted(made, key=lambda process: process.name == DRIVER)


def worker_command(
    addresses: Sequence[str], index: int, devices: int, accept_open_ports: bool = False
) -> list[str]:
    """The command that starts a worker that ends with this process."""
    return command_line(
        *("decoupled", "worker"),
        f"--workers={','.join(addresses)}",
        f"--index={index}",
        f"--devices={devices}",
        "--ends_with_parent",
        *([ports.FLAG] if accept_open_ports else []),
    )


def cluster_variable(
    addresses: Sequence[str], accept_open_ports: bool
) -> dict[str, str]:
    """TF_CONFIG of the driver, which is the worker with index 0."""
    content = {
        "cluster": {"worker": list(addresses)},
        "task": {"type": "worker", "index": 0},
        **({"accept_open_ports": True} if accept_open_ports else {}),
    }
    return {"TF_CONFIG": json.dumps(content)}


def free_addresses(count: int) -> list[str]:
    """Addresses of the loopback interface on which nobody listens at the moment."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def gpu_shares(processes: int, gpus: int, visible: str | None) -> list[str]:
    """CUDA_VISIBLE_DEVICES for each process of a host; empty if nothing is to share.

    Without separate shares every process would take all memory of the first GPU.
    `visible` is CUDA_VISIBLE_DEVICES of this process, None if it is not set.
    """
    names = [str(number) for number in range(gpus)]
    if visible is not None:
        # CUDA reads the list up to the first entry that is no GPU.
        listed = [name.strip() for name in visible.split(",")]
        names = list(itertools.takewhile(lambda n: n and n != "-1", listed))
    if processes == 1 or not names:
        return []
    share = len(names) // processes
    if not share:
        raise UserError(
            f"--processes: {processes}, but this host has {len(names)} GPUs for them; "
            "start as many at most, or hide the GPUs with CUDA_VISIBLE_DEVICES="
        )
    starts = range(0, share * processes, share)
    return [",".join(names[start : start + share]) for start in starts]


def supervise(
    make_members: Callable[[], list[HostProcess]],
    max_restarts: int,
    say: Callable[[str], None],
) -> int:
    """Runs all processes of a run, with restarts, until it ends.

    SIGTERM, SIGHUP and Ctrl-C are passed on to the driver, which saves and ends.
    `make_members` gives the processes of the next start, as addresses may change.
    `max_restarts` counts those without ten minutes of work between them.

    Returns:
      The driver's exit code, or 75 if this gave up.
    """
    running: dict[str, subprocess.Popen] = {}
    asked_to_end = False

    def pass_on(number, _):
        nonlocal asked_to_end
        asked_to_end = True
        for process in [running[DRIVER]] if DRIVER in running else running.values():
            if process.poll() is None:
                process.send_signal(number)

    restarts = 0
    with handled(pass_on):
        while True:
            started = time.monotonic()
            try:
                for name, command, environment in make_members():
                    running[name] = start_apart(command, environment)
                name, code = _first_to_end(running)
            finally:
                _end(running)
            if name == DRIVER and not _can_go_on(code):
                asked_to_end = True
            if not asked_to_end:
                if time.monotonic() - started >= _PROGRESS_SECONDS:
                    restarts = 0
                if restarts == max_restarts:
                    say(f"{name} {_how(code)}; gave up after {restarts} restarts")
                    return WORKER_LOST_CODE
                pause = min(_FIRST_PAUSE * 2**restarts, _LONGEST_PAUSE)
                restarts += 1
                say(
                    f"{name} {_how(code)}; restart {restarts} of {max_restarts} in "
                    f"{pause:.1f} s"
                )
                time.sleep(pause)
            if asked_to_end:
                return code if code >= 0 else 128 - code


def _first_to_end(running):
    """(name, exit code) of the first process that ends; the driver has priority."""
    while True:
        for name in sorted(running):
            if running[name].poll() is not None:
                return name, running[name].returncode
        time.sleep(_POLL)


def _end(running):
    """Ends the running processes; a driver without workers would wait forever."""
    driver = running.get(DRIVER)
    if driver is not None and driver.poll() is None:
        driver.kill()
    end_all(running.values(), _GRACE)
    running.clear()


def _can_go_on(code):
    return code == WORKER_LOST_CODE or code < 0 and -code != signal.SIGINT


def _how(code):
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
