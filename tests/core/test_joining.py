"""How processes find each other: who is missing, who differs, who is there twice."""

import concurrent.futures
import socket
import time

import pytest

from decoupled.core import joining
from decoupled.core.errors import UserError, WorkerLost
from decoupled.core.hosts import check_equal
from decoupled.core.joining import Hosts, join


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def join_all(facts, numbers=None, count=None, seconds=20.0, host="127.0.0.1"):
    """Each process's names, or its error; they say lines to nobody."""
    address = f"{host}:{free_port()}"
    numbers = numbers or range(len(facts))

    def one(index, fact):
        hosts = Hosts(address, count or len(facts), index, seconds)
        try:
            return join(hosts, fact, lambda line: None)
        except (UserError, WorkerLost) as error:
            return error

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(one, numbers, facts))


def test_all_get_the_names_of_all():
    host = socket.gethostname()
    names = [f"process {index} ({host})" for index in range(3)]
    assert join_all([{"jax": "0.11.2"}] * 3) == [names] * 3


def test_an_address_may_be_of_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert [len(names) for names in join_all([{}, {}], host="[::1]")] == [2, 2]


def test_who_differs_is_named_on_all():
    texts = ["a = 1\nb = 2\n", "a = 1\nb = 2\n", "a = 1\nb = 3\n"]
    for error in join_all([{"a setting": text} for text in texts]):
        assert isinstance(error, UserError)
        assert "process 2 " in str(error)
        assert "a setting is 'b = 3', not 'b = 2'" in str(error)


def test_what_one_lacks_differs():
    with pytest.raises(UserError, match="b differs from a: XLA_FLAGS is 'missing', no"):
        check_equal(["a", "b"], [{"XLA_FLAGS": "--x"}, {}])


def test_a_number_that_nobody_has_is_refused():
    first, other = join_all([{}, {}], numbers=[0, 5])
    assert "is process 5 of 2, but this run has 2 processes" in str(first)
    assert str(other) == str(first)


def test_two_with_the_same_number_are_refused():
    for error in join_all([{}] * 3, numbers=[0, 1, 1], count=3):
        assert "say --process=1; end what still runs of an earlier start" in str(error)


def test_who_was_killed_while_it_waited_is_awaited_again():
    port = free_port()
    hosts = Hosts(f"127.0.0.1:{port}", 3, 0, 20.0)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(join, hosts, {}, lambda line: None)
        for _ in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port)) as killed:
                    killed.sendall(
                        b'{"index": 1, "count": 3, "facts": {}, "host": "x"}\n'
                    )
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    stranger.sendall(b'{"index": "a", "count": 3}\n')
                # It waits as a process would, but says nothing of itself.
                other = socket.create_connection(("127.0.0.1", port))
                other.sendall(b'{"index": 1, "count": 3}\n')
                break
            except OSError:
                time.sleep(0.05)
        # Process 2 comes before process 1 is there again.
        last = pool.submit(join, hosts._replace(index=2), {}, lambda line: None)
        time.sleep(1.0)
        assert not first.done() and not last.done()
        again = pool.submit(join, hosts._replace(index=1), {}, lambda line: None)
        names = [each.result() for each in (first, again, last)]
    other.close()
    assert names[0] == names[1] == names[2]
    assert not any("(x)" in name for name in names[0])


def test_who_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(joining, "_SAY_AFTER", 0.3)
    said = []
    hosts = Hosts(f"127.0.0.1:{free_port()}", 3, 0, 1.0)
    with pytest.raises(WorkerLost, match=r"waiting for process 1, 2 of 3; here: 0 \("):
        join(hosts, {}, said.append)
    assert len(said) == 1 and said[0].startswith("waiting for process 1, 2 of 3")
    with pytest.raises(WorkerLost, match="process 0 at .* does not answer; gave up"):
        join(hosts._replace(index=1), {}, said.append)


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"{address}: process 0 cannot listen"):
            join(Hosts(address, 2, 0, 1.0), {}, lambda line: None)
