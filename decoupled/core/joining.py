"""How the processes of a run find each other, before anything else begins.

Process 0 listens at an address that all know; the others tell it who they are and what
they run, and wait. When all have come, it says so, or why they cannot run together, and
gives the port to the service that they use from then on. Nobody is identified here: as
for that service, a firewall must close the port to strangers.
"""

import contextlib
import ipaddress
import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from decoupled.core import files
from decoupled.core.errors import UserError, WorkerLost
from decoupled.core.hosts import check_equal

# Seconds until a line says which processes are missing, and between two tries.
_SAY_AFTER = 30.0
_PAUSE = 0.2
_MOST_BYTES = 1 << 22


class Hosts(NamedTuple):
    """The processes of a run. All of them have the same values except `index`.

    coordinator: HOST:PORT of process 0. seconds: to wait for another process.
    devices: local ids of the devices of this process; None is all of the host.
    """

    coordinator: str
    count: int
    index: int
    seconds: float
    devices: tuple[int, ...] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of process 0."""
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_local(self) -> bool:
        """Whether only processes of this host can reach process 0."""
        host = self.address[0]
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback
        return host == "localhost"


def join(
    hosts: Hosts, facts: Mapping[str, str], say: Callable[[str], None]
) -> list[str]:
    """Waits until all processes have come, and names them.

    Args:
      facts: what must be equal on all: settings, versions, variables.

    Raises:
      UserError: they differ, or two have the same number; or process 0 cannot listen.
      WorkerLost: some did not come in time.
    """
    record = {"index": hosts.index, "count": hosts.count, "facts": dict(facts)}
    record["host"] = socket.gethostname()
    answer = (_ask if hosts.index else _receive)(hosts, record, say)
    if answer["refused"]:
        raise UserError(answer["refused"])
    return answer["names"]


def _receive(hosts, record, say):
    # The number of each process that waits -> its record and its connection.
    arrivals: dict[int, tuple[dict, socket.socket]] = {}
    refusal, patience = "", _Patience(hosts)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listening(hosts))
        while True:
            # A process that was killed while it waited may come again.
            arrivals = {i: pair for i, pair in arrivals.items() if _is_open(pair[1])}
            records = {0: record, **{i: pair[0] for i, pair in arrivals.items()}}
            if refusal or len(records) == hosts.count:
                break
            if patience.is_due():
                say(_who_is_missing(records, hosts))
            try:
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(_SAY_AFTER)
                message = files.parse_json(_line(connection))
                newcomer = {key: message[key] for key in record}
                refusal = _refusal(arrivals, newcomer, hosts)
            except (OSError, ValueError, KeyError, TypeError):
                # Nobody has connected, or it was no process of this run.
                patience.check(_who_is_missing(records, hosts))
                continue
            if refusal:
                _send(connection, {"refused": refusal})
            else:
                arrivals[newcomer["index"]] = newcomer, connection
        names = [
            f"process {index} ({record['host']})"
            for index, record in sorted(records.items())
        ]
        if not refusal:
            try:
                check_equal(names, [records[i]["facts"] for i in sorted(records)])
            except UserError as error:
                refusal = str(error)
        answer = {"names": names, "refused": refusal}
        for _, connection in arrivals.values():
            _send(connection, answer)
    return answer


def _refusal(arrivals, newcomer, hosts):
    index, count = newcomer["index"], newcomer["count"]
    if count != hosts.count or not 0 < index < count:
        return (
            f"{newcomer['host']} is process {index} of {count}, but this run has "
            f"{hosts.count} processes, from 0"
        )
    if index in arrivals:
        pair = f"two processes, on {arrivals[index][0]['host']} and {newcomer['host']}"
        return f"{pair}, say --process={index}; end what still runs of an earlier start"
    return ""


def _is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(_SAY_AFTER)


def _send(connection, answer):
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _ask(hosts, record, say):
    patience = _Patience(hosts)
    where = f"process 0 at {hosts.coordinator}"
    while True:
        if patience.is_due():
            say(f"waiting for {where}")
        try:
            with socket.create_connection(hosts.address, _SAY_AFTER) as connection:
                connection.sendall(json.dumps(record).encode() + b"\n")
                connection.settimeout(patience.left())
                return files.parse_json(_line(connection))
        except (OSError, ValueError):
            # It does not listen yet, or was started again.
            patience.check(f"{where} does not answer")
            time.sleep(_PAUSE)


class _Patience:
    """Time that passes while others are awaited."""

    def __init__(self, hosts: Hosts):
        self._start, self._seconds, self._said = time.monotonic(), hosts.seconds, False

    def left(self) -> float:
        return max(_PAUSE, self._seconds - (time.monotonic() - self._start))

    def is_due(self) -> bool:
        """Once, when it is time to say that others are missing."""
        due = not self._said and time.monotonic() - self._start >= _SAY_AFTER
        self._said = self._said or due
        return due

    def check(self, message: str) -> None:
        """Raises WorkerLost if the time is over."""
        if time.monotonic() - self._start >= self._seconds:
            raise WorkerLost(f"{message}; gave up after {self._seconds:.0f} s")


def _who_is_missing(records, hosts):
    missing = [str(index) for index in range(hosts.count) if index not in records]
    arrivals = [f"{i} ({record['host']})" for i, record in sorted(records.items())]
    return (
        f"waiting for process {', '.join(missing)} of {hosts.count}; here: "
        f"{', '.join(arrivals)}; start the same command on every host"
    )


def _listening(hosts):
    host, port = hosts.address
    is_ipv6 = ":" in host
    try:
        server = socket.create_server(
            (host if hosts.is_local else "", port),
            family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            dualstack_ipv6=is_ipv6 and not hosts.is_local,
        )
    except OSError as error:
        raise UserError(
            f"--coordinator={hosts.coordinator}: process 0 cannot listen there "
            f"({error.strerror or error}); is the port taken, by an earlier run?"
        ) from error
    server.settimeout(_PAUSE)
    return server


def _line(connection) -> Any:
    content = b""
    while not content.endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part or len(content) > _MOST_BYTES:
            raise ValueError("no line")
        content += part
    return content
