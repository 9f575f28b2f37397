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
import struct
from collections.abc import Iterator, Sequence

from decoupled.core.errors import UserError

FLAG = "--accept_open_ports"
_LOOPBACK = b"lo"
# Linux's codes for two ioctl requests, and its flag for an interface that is up.
_GET_FLAGS, _GET_ADDRESS, _UP = 0x8913, 0x8915, 0x1
_ADDRESSES_OF_IPV6 = "/proc/net/if_inet6"
# The range from which Linux chooses free ports.
_FREE_PORTS = "32768:60999"


def check_addresses(workers: Sequence[str], index: int, where: str) -> None:
    """Checks the addresses of all workers, and the index of this process.

    Raises:
      UserError: one is wrong; the message names `where` they come from.
    """
    for address in workers:
        host, colon, port = address.rpartition(":")
        is_number = port.isascii() and port.isdigit() and len(port) <= 5
        if not (host and colon and is_number and 0 < int(port) < 65536):
            raise UserError(f"{where}: {address!r} is no address; write host:port")
    if len(set(workers)) < len(workers):
        raise UserError(f"{where}: names an address twice")
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
    """Checks whether other hosts can reach the server of worker `index`.

    Args:
      workers: "host:port" of all; port 0 stands for a free port.
      accepted: whether the user accepts open ports. accept: the text to do so.

    Returns:
      None if other hosts cannot reach it, otherwise a warning with a firewall rule that
      helps.

    Raises:
      UserError: the port is open and the user has not accepted it.
    """
    own = workers[index]
    if is_loopback(own) and can_bind_to_loopback():
        return None
    interfaces = outside_interfaces()
    if not interfaces:
        return None
    warning = (
        f"{own}: TensorFlow listens on every interface ({', '.join(interfaces)}) and "
        f"runs the programs of whoever connects: close the port to strangers, as "
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
    """Binds this process's listening sockets on a port to the loopback interface.

    Earlier connections, perhaps through another interface, are closed if they were not
    accepted yet. So call this before the server starts to answer.

    Returns:
      Whether the port is closed to all other interfaces.
    """
    with contextlib.ExitStack() as opened:
        listening = [opened.enter_context(one) for one in _listening(port)]
        if not listening or not all(_bind(one) for one in listening):
            return False
        for one in listening:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.accept()[0].close()
    return True


def outside_interfaces() -> list[str]:
    """Names of the interfaces that are up and have an address, except the loopback's.

    On other systems than Linux the state is unknown, so all except "lo" count.
    """
    names = [name for _, name in socket.if_nameindex() if name.encode() != _LOOPBACK]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        return [name for name in names if _is_open(asking, name)]


def _is_open(asking, name):
    try:
        import fcntl

        request = struct.pack("256s", name.encode())
        state = fcntl.ioctl(asking.fileno(), _GET_FLAGS, request)
        if not struct.unpack("H", state[16:18])[0] & _UP:
            return False
    except (ImportError, OSError):
        return True
    try:
        fcntl.ioctl(asking.fileno(), _GET_ADDRESS, request)
    except OSError:
        return name in _with_ipv6()
    return True


def _with_ipv6():
    try:
        with open(_ADDRESSES_OF_IPV6, encoding="ascii") as lines:
            return {line.split()[-1] for line in lines if line.strip()}
    except OSError:
        return set()


def _bind(one):
    option = getattr(socket, "SO_BINDTODEVICE", None)
    if option is None:
        return False
    try:
        one.setsockopt(socket.SOL_SOCKET, option, _LOOPBACK + b"\0")
        bound = one.getsockopt(socket.SOL_SOCKET, option, 16)
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
            found = socket.socket(fileno=os.dup(int(descriptor)))
        except OSError:
            continue
        if _listens(found, port):
            yield found
        else:
            found.close()


def _listens(one, port):
    if one.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return bool(listens) and one.getsockname()[1] == port
