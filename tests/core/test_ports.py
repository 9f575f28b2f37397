"""Who can reach the port of a server that has no authentication."""

import socket

import pytest

from decoupled.core import ports
from decoupled.core.errors import UserError


@pytest.mark.parametrize(
    "address, expected",
    [
        ("localhost:2222", True),
        ("127.0.0.1:2222", True),
        ("127.0.1.1:2222", True),
        ("[::1]:2222", True),
        ("0.0.0.0:2222", False),
        ("10.0.0.3:2222", False),
        ("localhost.example.org:2222", False),
        # Even where it resolves to 127.0.1.1: other hosts have another address for it.
        (f"{socket.gethostname()}:2222", socket.gethostname() == "localhost"),
    ],
)
def test_addresses_of_the_loopback_interface(address, expected):
    assert ports.is_loopback(address) is expected


@pytest.mark.parametrize(
    "address", ["a", "a:", ":1", "a:x", "a:0", "a:65536", "a:\u00b2", "a:" + "9" * 5000]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UserError, match="--workers: '.+' is no address; write host"):
        ports.check_addresses(["host0:2222", address], 0, "--workers")


@pytest.fixture
def host(monkeypatch):
    """Pretends what the host has: `host(binds, interfaces)`."""

    def pretend(binds, interfaces):
        monkeypatch.setattr(ports, "can_bind_to_loopback", lambda: binds)
        monkeypatch.setattr(ports, "outside_interfaces", lambda: interfaces)

    return pretend


@pytest.mark.parametrize(
    "address, binds, interfaces",
    [
        ("localhost:2222", True, ["eth0"]),
        ("localhost:2222", False, []),
        ("host0:2222", True, []),
    ],
)
def test_nobody_reaches_the_port(host, address, binds, interfaces):
    host(binds, interfaces)
    assert ports.check_exposure([address, "host1:2222"], 0, accepted=False) is None


@pytest.mark.parametrize(
    "address, binds", [("localhost:2222", False), ("host0:2222", True)]
)
def test_an_open_port_must_be_accepted(host, address, binds):
    host(binds, ["eth0", "wlan0"])
    workers = [address, "host1:2222"]
    with pytest.raises(UserError) as refused:
        ports.check_exposure(workers, 0, accepted=False)
    warning, _, advice = str(refused.value).rpartition(", and then ")
    assert "every interface (eth0, wlan0) and runs the programs of whoever" in warning
    assert advice == "accept it with --accept_open_ports"
    assert ports.check_exposure(workers, 0, accepted=True) == warning


def test_the_firewall_leaves_a_port_to_the_other_workers():
    workers = ["host0:2222", "host1:2223", "host2:2224", "host2:2225"]
    rule = "iptables -A INPUT -p tcp --syn --dport 2222"
    assert ports.firewall_rule(workers, 0) == (
        f"'{rule} -s host1,host2 -j ACCEPT; {rule} ! -i lo -j DROP' (and ip6tables)"
    )
    # One that the system chooses.
    assert ports.firewall_rule(["localhost:0"], 0) == (
        "'iptables -A INPUT -p tcp --syn --dport 32768:60999 ! -i lo -j DROP' "
        "(and ip6tables)"
    )


@pytest.fixture
def server():
    """A server that listens on all interfaces, as TensorFlow's does."""
    if not ports.can_bind_to_loopback():
        pytest.skip("this system does not let a process bind a socket to an interface")
    with socket.create_server(
        ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True
    ) as one:
        yield one


def test_a_bound_server_answers_on_the_loopback_interface_alone(
    server, outside_address
):
    port = server.getsockname()[1]
    early = socket.create_connection((outside_address, port), 5)
    assert ports.bind_to_loopback(port)
    # Whoever connected before was sent away, and nobody comes after.
    with early:
        assert early.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((outside_address, port), 5)
    with socket.create_connection(("127.0.0.1", port), 5):
        server.setblocking(True)
        server.accept()[0].close()


def test_sockets_of_other_ports_stay_as_they_are(server):
    option = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE)
    with socket.create_server(("localhost", 0)) as other:
        assert ports.bind_to_loopback(server.getsockname()[1])
        assert server.getsockopt(*option, 16) == b"lo\0"
        assert other.getsockopt(*option, 16) == b""


def test_a_port_that_nobody_serves_is_not_bound(server):
    port = server.getsockname()[1]
    server.close()
    assert not ports.bind_to_loopback(port)
