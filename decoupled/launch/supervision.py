"""Runs commands from other commands: steps of a long command, a driver with workers.

A step is a separate command, which is shown, run and timed.

If a driver or one of its workers dies, all are restarted. A run loses only the work
since its last checkpoint. Mistakes of the user (exit code 2) and defects (1) are not
retried.

Ctrl-C and SIGTERM are passed on to the running commands, which save before they end."""

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
from decoupled.core.machine import nvidia_gpus
from decoupled.core.processes import (
    command_line,
    end_all,
    handled,
    run_command,
    start_apart,
)

SECONDS = "seconds.json"


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

    The seconds of its first full run are saved in work_dir/seconds.json under its name.

    Raises:
      UserError: it failed.
      Interrupted, Terminated: a signal arrived, and the step has ended.
    """
    if step.title:
        for line in ("", step.title, f"$ {shlex.join(step.command)}"):
            console.say(line)
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
    seconds = seconds_of_steps(work_dir)
    if step.name not in seconds:
        seconds[step.name] = round(time.monotonic() - started, 1)
        files.write_json(os.path.join(work_dir, SECONDS), seconds)


def seconds_of_steps(work_dir: str) -> dict[str, float]:
    """Name -> seconds of the first full run, for the steps that had one."""
    path = os.path.join(work_dir, SECONDS)
    return files.read_json(path) if files.exists(path) else {}


# Seconds between two polls of the processes.
_POLL = 0.1
# Seconds between SIGTERM and SIGKILL, in which a driver saves a checkpoint.
_GRACE = 60.0
# A driver that ran this long has made progress, and earlier restarts are not counted.
_PROGRESS_SECONDS = 600.0
# Seconds before a restart, doubled each time.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0
# The variable that selects the GPUs for CUDA.
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


class Group(NamedTuple):
    """The commands of one run on this host, as argument lists, and their resources.

    driver: its exit ends the run; None if the driver is on another host. workers: run
    as long as the driver. environment: additional variables of the driver. gpus: of the
    driver and of each worker, as from `gpu_shares`; () changes nothing.
    """

    driver: Sequence[str] | None
    workers: Sequence[Sequence[str]]
    environment: dict[str, str]
    gpus: Sequence[str] = ()


def gpu_shares(processes: int, gpus: int, visible: str | None) -> list[str]:
    """The GPUs of a host for each of several processes: equal shares, in order.

    Without separate shares every process would take all memory of the first GPU.

    Args:
      processes: of one run. gpus: the number of GPUs of the host. visible:
        CUDA_VISIBLE_DEVICES of this process, None if it is not set.

    Returns:
      CUDA_VISIBLE_DEVICES of each process; empty if there is nothing to share.

    Raises:
      UserError: there are GPUs, but fewer than processes.
    """
    names = [str(number) for number in range(gpus)]
    if visible is not None:
        given = [name.strip() for name in visible.split(",")]
        # CUDA reads the list up to the first entry that is no GPU.
        names = list(itertools.takewhile(lambda n: n and n != "-1", given))
    if processes == 1 or not names:
        return []
    share = len(names) // processes
    if not share:
        raise UserError(
            f"--processes: {processes}, but this host has {len(names)} GPUs for them; "
            "start as many at most, or hide the GPUs with CUDA_VISIBLE_DEVICES="
        )
    return [
        ",".join(names[index * share : (index + 1) * share])
        for index in range(processes)
    ]


def groups_on_this_host(
    command: Sequence[str],
    processes: int,
    devices: int,
    accept_open_ports: bool,
) -> Callable[[], Group]:
    """A function that makes the groups of a run whose processes are all on this host.

    Args:
      command: of the driver. processes: including the driver. devices: virtual CPU
        devices of each. accept_open_ports: even if other hosts can reach the ports.

    Raises:
      UserError: there are fewer GPUs than processes, or a port is open and the user has
        not accepted it.
    """
    if processes > 1:
        ports.check_exposure(["localhost:0"], 0, accept_open_ports)
    gpus = gpu_shares(processes, nvidia_gpus(), os.environ.get(VISIBLE_GPUS))
    return lambda: local_group(command, processes, devices, accept_open_ports, gpus)


def groups_of_one_host(
    command: Sequence[str] | None,
    workers: Sequence[str],
    index: int,
    devices: int,
    accept_open_ports: bool,
) -> Callable[[], Group]:
    """A function that makes this host's groups of a run over several hosts.

    Args:
      command: of the driver, which is the worker with index 0; None for the others.
      workers: host:port of all. index: of the worker on this host. devices,
        accept_open_ports: as for `groups_on_this_host`.

    Raises:
      UserError: a port is open and the user has not accepted it.
    """
    ports.check_exposure(workers, index, accept_open_ports)
    if command is None:
        worker = worker_command(workers, index, devices, accept_open_ports)
        return lambda: Group(None, [worker], {})
    variable = cluster_variable(workers, 0, accept_open_ports)
    return lambda: Group(command_line(*command), [], variable)


def local_group(
    command: Sequence[str],
    workers: int,
    devices: int,
    accept_open_ports: bool = False,
    gpus: Sequence[str] = (),
) -> Group:
    """A driver and workers on free ports of this host's loopback interface.

    Args:
      command: of the driver. workers: processes, including the driver. devices: virtual
        CPU devices of each. accept_open_ports: even if other hosts can reach the ports.
        gpus: from `gpu_shares`.
    """
    addresses = [f"localhost:{port}" for port in free_ports(workers)]
    return Group(
        driver=command_line(*command),
        workers=[
            worker_command(addresses, index, devices, accept_open_ports)
            for index in range(1, workers)
        ],
        environment=cluster_variable(addresses, 0, accept_open_ports),
        gpus=gpus,
    )


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
    addresses: Sequence[str], index: int, accept_open_ports: bool = False
) -> dict[str, str]:
    """TF_CONFIG for worker `index`."""
    content = {
        "cluster": {"worker": list(addresses)},
        "task": {"type": "worker", "index": index},
        **({"accept_open_ports": True} if accept_open_ports else {}),
    }
    return {"TF_CONFIG": json.dumps(content)}


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Supervisor:
    """Runs groups, with restarts, until the run ends.

    Args:
      make_group: makes the commands of the next start; addresses may change each time.
      max_restarts: the number of restarts without ten minutes of work between them.
      say: prints a line.
    """

    def __init__(
        self,
        make_group: Callable[[], Group],
        max_restarts: int,
        say: Callable[[str], None],
    ):
        self._make_group = make_group
        self._max_restarts = max_restarts
        self._say = say
        self._asked_to_end = False
        self._processes: dict[str, subprocess.Popen] = {}

    def run(self) -> int:
        """Runs to the end; returns the driver's exit code, or 75 if it gave up.

        SIGTERM, SIGHUP and Ctrl-C are passed on to the driver, which saves before it
        ends.
        """
        with handled(self._end):
            try:
                return self._run()
            finally:
                self._stop()

    def _run(self):
        restarts = 0
        while True:
            started = time.monotonic()
            self._start(self._make_group())
            name, code = self._wait()
            self._stop()
            if self._asked_to_end or name == "driver" and not _can_go_on(code):
                return code if code >= 0 else 128 - code
            if time.monotonic() - started >= _PROGRESS_SECONDS:
                restarts = 0
            restarts += 1
            if restarts > self._max_restarts:
                self._say(f"{name} {_how(code)}; gave up after {restarts - 1} restarts")
                return WORKER_LOST_CODE
            pause = min(_FIRST_PAUSE * 2 ** (restarts - 1), _LONGEST_PAUSE)
            self._say(
                f"{name} {_how(code)}; restart {restarts} of {self._max_restarts} "
                f"in {pause:.1f} s"
            )
            time.sleep(pause)
            if self._asked_to_end:
                return code if code >= 0 else 128 - code

    def _start(self, group):
        own = [{VISIBLE_GPUS: names} for names in group.gpus]
        own = own or [{}] * (1 + len(group.workers))
        for index, command in enumerate(group.workers, start=1):
            # Without the driver's TF_CONFIG: a worker is identified by its flags.
            self._processes[f"worker {index}"] = start_apart(
                command, {**os.environ, **own[index]}
            )
        if group.driver is not None:
            environment = {**os.environ, **group.environment, **own[0]}
            self._processes["driver"] = start_apart(group.driver, environment)

    def _wait(self):
        """(name, exit code) of the first process that ends; the driver has priority."""
        while True:
            names = sorted(self._processes)
            for name in names:
                if self._processes[name].poll() is not None:
                    return name, self._processes[name].returncode
            time.sleep(_POLL)

    def _end(self, number, _):
        self._asked_to_end = True
        first = "driver" if "driver" in self._processes else None
        for name, process in self._processes.items():
            if first in (None, name) and process.poll() is None:
                process.send_signal(number)

    def _stop(self):
        """Ends the running processes; a driver without workers would wait forever."""
        driver = self._processes.get("driver")
        if driver is not None and driver.poll() is None:
            driver.kill()
        end_all(self._processes.values(), _GRACE)
        self._processes = {}


def _can_go_on(code):
    """Whether a driver with this exit code may be restarted."""
    return code == WORKER_LOST_CODE or code < 0 and -code != signal.SIGINT


def _how(code):
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
