"""Commands that other commands run: a driver with its workers, or one by itself.

Of a driver and its workers whoever dies is started again, with the rest: a run loses
what it did since its last checkpoint and nothing else. What the user has to mend (exit
code 2) and defects (1) are not tried again.

Ctrl-C and SIGTERM come to what runs, which saves, and are waited for.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

from decoupled.core import ports
from decoupled.core.errors import WORKER_LOST_CODE, Interrupted, Terminated, UserError
from decoupled.core.processes import command_line
from decoupled.core.processor import nvidia_gpus

# Seconds between two looks at the processes.
_LOOK = 0.1
# Seconds that a process has to end after SIGTERM: a driver saves a checkpoint.
_GRACE = 60.0
# A driver that ran as long has got on: the restarts before it do not count any more.
_PROGRESS_SECONDS = 600.0
# Seconds before a restart, doubled each time.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0
# What tells CUDA which GPUs there are.
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


class Group(NamedTuple):
    """Commands of one run on this host, as argument lists, and what they share.

    driver: its exit ends the run; None where the driver is on another host. workers:
    run as long as it does. environment: additional variables of the driver. gpus: of
    the driver and of each worker, as `gpu_shares` gives them; () changes nothing.
    """

    driver: Sequence[str] | None
    workers: Sequence[Sequence[str]]
    environment: dict[str, str]
    gpus: Sequence[str] = ()


def shares_of_this_host(processes: int) -> list[str]:
    """`gpu_shares` of the GPUs that this process may use."""
    return gpu_shares(processes, nvidia_gpus(), os.environ.get(VISIBLE_GPUS))


def gpu_shares(processes: int, gpus: int, visible: str | None) -> list[str]:
    """Which GPUs of a host each of several processes uses: equal shares, in order.

    Without a share of its own every process would take all of the first GPU's memory.

    Args:
      processes: of one run. gpus: that the host has. visible: CUDA_VISIBLE_DEVICES of
        this process, None where it is not set.

    Returns:
      CUDA_VISIBLE_DEVICES of each process; none where there is nothing to share.

    Raises:
      UserError: there are GPUs, but fewer than processes.
    """
    names = [str(number) for number in range(gpus)]
    if visible is not None:
        given = [name.strip() for name in visible.split(",")]
        # As CUDA reads it: up to the first that is no GPU.
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


def local_group(
    command: Sequence[str],
    workers: int,
    devices: int,
    accept_open_ports: bool = False,
    gpus: Sequence[str] = (),
) -> Group:
    """A driver and workers on free ports of this host's loopback interface.

    Args:
      command: of the driver. workers: processes, the driver included. devices: virtual
        CPU devices of each. accept_open_ports: also where other hosts can reach them.
        gpus: of `gpu_shares`.
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
    """What starts a worker that ends with this process."""
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


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    stderr: IO | None = None,
) -> int:
    """Runs a command to its end; its exit code, as `subprocess` has it.

    Args:
      command: with its arguments. environment: variables beside those of this process.
      stderr: an open file that takes its errors; those of this process by default.

    Raises:
      Interrupted: Ctrl-C came, and the command has ended since. The message is the name
        of the signal.
      Terminated: so did SIGTERM or SIGHUP.
    """
    received, process = None, None

    def pass_on(number, _):
        nonlocal received
        received = number
        if process is not None:
            process.send_signal(number)

    with _handled(pass_on):
        process = _start_apart(command, {**os.environ, **(environment or {})}, stderr)
        if received is not None:
            process.send_signal(received)
        code = process.wait()
    if received == signal.SIGINT:
        raise Interrupted("Ctrl-C")
    if received is not None:
        raise Terminated(signal.Signals(received).name)
    return code


@contextlib.contextmanager
def _handled(handler: Callable) -> Iterator[None]:
    """What asks a process to end goes to the handler."""
    previous = {
        number: signal.signal(number, handler)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        # As nohup has it.
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


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

        SIGTERM and Ctrl-C are passed on to the driver, which saves before it ends, and
        so is SIGHUP.
        """
        with _handled(self._end):
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
            # Not the driver's TF_CONFIG: a worker's flags say who it is.
            self._processes[f"worker {index}"] = _start_apart(
                command, {**os.environ, **own[index]}
            )
        if group.driver is not None:
            environment = {**os.environ, **group.environment, **own[0]}
            self._processes["driver"] = _start_apart(group.driver, environment)

    def _wait(self):
        """(name, exit code) of the first process that ends, the driver's before all."""
        while True:
            names = sorted(self._processes)
            for name in names:
                if self._processes[name].poll() is not None:
                    return name, self._processes[name].returncode
            time.sleep(_LOOK)

    def _end(self, number, _):
        self._asked_to_end = True
        first = "driver" if "driver" in self._processes else None
        for name, process in self._processes.items():
            if first in (None, name) and process.poll() is None:
                process.send_signal(number)

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


def _start_apart(command, environment, stderr=None):
    """Starts a process that Ctrl-C on the terminal does not reach by itself: a worker
    must live until the driver has saved, and the driver gets it once."""
    return subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=stderr
    )


def _can_go_on(code):
    """Whether a driver that ended so may be started again."""
    return code == WORKER_LOST_CODE or code < 0 and -code != signal.SIGINT


def _how(code):
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
