"""Protects the port of a TensorFlow server, which has no authentication.

A server of TensorFlow 2.15 listens on all interfaces, whatever address it is given, and
runs the programs of everybody who connects. No setting changes that. So if the address
of a server is on the loopback interface, this module binds its socket to that interface
before it serves anybody, which Linux allows from version 5.7 on. If this is not
possible, or if other hosts must reach the address, the user has to accept the open
port.
"""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence

from decoupled.core.errors import UserError

FLAG = "--accept_open_ports"
_LOOPBACK = b"lo"
# The range from which Linux chooses free ports.
_FREE_PORTS = "32768:60999"


def check_addresses(workers: Sequence[str], index: int, where: str) -> None:
    """Checks all workers' addresses and this one's index, which come from `where`."""
    for address in workers:
        host, colon, port = address.rpartition(":")
        is_number = port.isascii() and port.isdigit() and len(port) <= 5
        if not (host and colon and is_number and 0 < int(port) < 65536):
            raise UserError(f"{where}: {address!r} is no address; write host:port")
    if len(set(workers)) < len(workers):
        raise UserError(f"{where}: lists the same address twice")
    if not 0 <= index < len(workers):
        raise UserError(f"{where}: no worker {index} among {len(workers)}, from 0")


def is_loopback(address: str) -> bool:
    """Whether "host:port" names the loopback interface itself.

    A host's own name does not, even if it resolves to 127.0.1.1 on that host: other
    hosts know it by another address.
    """
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(
    workers: Sequence[str], index: int, accepted: bool, accept: str = FLAG
) -> str | None:
    """A warning, with a firewall rule, if other hosts can reach the server `index`.

    None if they cannot.

    Args:
      workers: "host:port" of all; port 0 stands for a free port.
      accepted: whether the user accepts open ports. accept: the text to do so.
    """
    address = workers[index]
    if is_loopback(address) and can_bind_to_loopback():
        return None
    interfaces = outside_interfaces()
    if not interfaces:
        return None
    warning = (
        f"{address}: TensorFlow listens on every interface ({', '.join(interfaces)}) "
        "and runs the programs of whoever connects: close the port to strangers, as "
        f"with {firewall_rule(workers, index)}"
    )
    if not accepted:
        raise UserError(f"{warning}, and then accept it with {accept}")
    return warning


def firewall_rule(workers: Sequence[str], index: int) -> str:
    """Commands that open the port of worker `index` only to the other workers."""
    port = workers[index].rpartition(":")[2]
    port = _FREE_PORTS if port == "0" else port
    rule = f"iptables -A INPUT -p tcp --syn --dport {port}"
    hosts = [worker.rpartition(":")[0] for worker in workers]
    others = sorted({host for host in hosts if host != hosts[index]})
    allowed = f"{rule} -s {','.join(others)} -j ACCEPT; " if others else ""
    return f"'{allowed}{rule} ! -i lo -j DROP' (and ip6tables)"


def can_bind_to_loopback() -> bool:
    """Whether this system lets this process bind a socket to the loopback interface."""
    with socket.socket() as tried:
        return _bind(tried)


def bind_to_loopback(port: int) -> bool:
    """Whether this process's listening sockets on a port now take this host alone.

    Call it before the server starts to answer: connections that were made earlier,
    perhaps through another interface, are closed.
    """
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(listening) for listening in _listening(port)]
        if not sockets or not all(map(_bind, sockets)):
            return False
        for listening in sockets:
            listening.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    listening.accept()[0].close()
    return True


def outside_interfaces() -> list[str]:
    """Names of all network interfaces, except the loopback's."""
    return [name for _, name in socket.if_nameindex() if name.encode() != _LOOPBACK]


def _bind(opened):
    option = getattr(socket, "SO_BINDTODEVICE", None)
    if option is None:
        return False
    try:
        opened.setsockopt(socket.SOL_SOCKET, option, _LOOPBACK + b"\0")
        bound = opened.getsockopt(socket.SOL_SOCKET, option, 16)
    except OSError:
        return False
    return bound.rstrip(b"\0") == _LOOPBACK


def _listening(port) -> Iterator[socket.socket]:
    """Copies of the sockets of this process that listen on a port."""
    folder = "/proc/self/fd"
    for descriptor in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            if not os.readlink(f"{folder}/{descriptor}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(descriptor)))
        except OSError:
            continue
        is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6)
        listens = is_tcp and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if listens and copy.getsockname()[1] == port:
            yield copy
        else:
            copy.close()
