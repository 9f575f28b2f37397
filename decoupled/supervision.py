"""Keeps a driver and its workers running: whoever dies is started again, with the rest.

A run loses what it did since its last checkpoint and nothing else. What the user has to
mend (exit code 2) and defects (1) are not tried again.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from decoupled import ports
from decoupled.errors import WORKER_LOST_CODE

# Seconds between two looks at the processes.
_LOOK = 0.1
# Seconds that a process has to end after SIGTERM: a driver saves a checkpoint.
_GRACE = 60.0
# A driver that ran as long has got on: the restarts before it do not count any more.
_PROGRESS_SECONDS = 600.0
# Seconds before a restart, doubled each time.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0


class Group(NamedTuple):
    """Commands of one run on this host, as argument lists, and what they share.

    driver: its exit ends the run; None where the driver is on another host. workers:
    run as long as it does. environment: additional variables.
    """

    driver: Sequence[str] | None
    workers: Sequence[Sequence[str]]
    environment: dict[str, str]


def module_command(words: Sequence[str]) -> list[str]:
    """`decoupled.pretrain ...` as a command of this Python; any other as it is."""
    if words[0].startswith("decoupled."):
        return [sys.executable, "-m", *words]
    return list(words)


def local_group(
    command: Sequence[str], workers: int, devices: int, accept_open_ports: bool = False
) -> Group:
    """A driver and workers on free ports of this host's loopback interface.

    Args:
      command: of the driver. workers: processes, the driver included. devices: virtual
        CPU devices of each. accept_open_ports: also where other hosts can reach them.
    """
    addresses = [f"localhost:{port}" for port in free_ports(workers)]
    return Group(
        driver=module_command(command),
        workers=[
            worker_command(addresses, index, devices, accept_open_ports)
            for index in range(1, workers)
        ],
        environment=cluster_variable(addresses, 0, accept_open_ports),
    )


def worker_command(
    addresses: Sequence[str], index: int, devices: int, accept_open_ports: bool = False
) -> list[str]:
    """What starts a worker that ends with this process."""
    return module_command(
        [
            "decoupled.worker",
            f"--workers={','.join(addresses)}",
            f"--index={index}",
            f"--devices={devices}",
            "--ends_with_parent",
            *([ports.FLAG] if accept_open_ports else []),
        ]
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
    """Runs groups until one comes to its end.

    Args:
      make_group: gives the commands of the next start; addresses may be new each time.
      max_restarts: in a row, without ten minutes of work between them.
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
        """Runs to the end; returns the driver's exit code, or 75 where it gave up.

        SIGTERM is passed on to the driver, which saves before it ends.
        """
        previous = signal.signal(signal.SIGTERM, self._end)
        try:
            return self._run()
        finally:
            self._stop()
            signal.signal(signal.SIGTERM, previous)

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

    def _start(self, group):
        environment = {**os.environ, **group.environment}
        for index, command in enumerate(group.workers, start=1):
            # Not the driver's TF_CONFIG: a worker's flags say who it is.
            self._processes[f"worker {index}"] = subprocess.Popen(command)
        if group.driver is not None:
            self._processes["driver"] = subprocess.Popen(group.driver, env=environment)

    def _wait(self):
        """(name, exit code) of the first process that ends, the driver's before all."""
        while True:
            names = sorted(self._processes)
            for name in names:
                if self._processes[name].poll() is not None:
                    return name, self._processes[name].returncode
            time.sleep(_LOOK)

    def _end(self, *_):
        self._asked_to_end = True
        first = "driver" if "driver" in self._processes else None
        for name, process in self._processes.items():
            if first in (None, name) and process.poll() is None:
                process.terminate()

    def _stop(self):
        """Ends what still runs; a driver without its workers would wait for ever."""
        driver = self._processes.get("driver")
        if driver is not None and driver.poll() is None:
            driver.kill()
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = {}


def _can_go_on(code):
    """Whether a driver that ended so may be started again."""
    return code == WORKER_LOST_CODE or code < 0 and -code != signal.SIGINT


def _how(code):
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
