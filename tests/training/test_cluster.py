"""The processes that a mesh spans: who they are, whether they live, what they serve."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from decoupled.configs import ClusterConfig, MeshConfig
from decoupled.configs.hardware import HOST, Hardware
from decoupled.core import ports
from decoupled.core.errors import UserError, WorkerLost
from decoupled.launch.supervision import cluster_variable, free_addresses
from decoupled.training import cluster
from decoupled.training.cluster import Process
from decoupled.training.loop import OneSession

ON_TPU = Hardware("tpu")


def mesh(shape):
    return MeshConfig(shape, "")


def variable(workers, index=0, kind="worker", **jobs):
    content = {
        "cluster": {"worker": workers, **jobs},
        "task": {"type": kind, "index": index},
    }
    return {"TF_CONFIG": json.dumps(content)}


def test_tf_config_says_who_is_who():
    assert cluster.from_environment({}) is None
    assert cluster.from_environment({"TF_CONFIG": ""}) is None
    task = cluster.from_environment(variable(["a:1", "b:2"], 1))
    assert task == Process(("a:1", "b:2"), 1)


def test_a_chief_is_the_first_worker():
    settings = variable(["b:2", "c:3"], 1, chief=["a:1"])
    assert cluster.from_environment(settings) == Process(("a:1", "b:2", "c:3"), 2)
    settings = variable(["b:2"], 0, "chief", chief=["a:1"])
    assert cluster.from_environment(settings) == Process(("a:1", "b:2"), 0)


@pytest.mark.parametrize(
    "environment, problem",
    [
        ({"TF_CONFIG": "{"}, "needs"),
        ({"TF_CONFIG": "[" * 100_000}, "needs"),
        ({"TF_CONFIG": "[]"}, "needs"),
        ({"TF_CONFIG": '{"cluster": {}}'}, "needs"),
        (variable(["a:1"], 1), "no worker 1 among 1"),
        (variable(["a"]), "'a' is no address"),
        (variable(["a:0"]), "'a:0' is no address"),
        (variable(["a:1", "a:1"]), "the same address twice"),
        (variable(["a:1"], ps=["b:2"]), "jobs ps are of no use"),
    ],
)
def test_a_wrong_tf_config(environment, problem):
    with pytest.raises(UserError, match=f"TF_CONFIG: .*{problem}"):
        cluster.from_environment(environment)


def test_processors_are_shared_out_worker_after_worker():
    assert cluster.mesh_devices(2, mesh("d:2;m:2")) == [
        "/job:worker/task:0/device:CPU:0",
        "/job:worker/task:0/device:CPU:1",
        "/job:worker/task:1/device:CPU:0",
        "/job:worker/task:1/device:CPU:1",
    ]
    with pytest.raises(UserError, match="3 processors, which 2 workers cannot share"):
        cluster.mesh_devices(2, mesh("m:3"))


def test_a_cluster_beside_a_tpu_is_refused_and_a_driver_alone_is_not():
    config = ClusterConfig(("localhost:1", "localhost:2"), 1.0, 1.0, False)
    with pytest.raises(UserError, match="beside --accelerator; "):
        cluster.join_cluster(config, mesh("all:2"), print, ON_TPU, {})
    environment = variable(["localhost:1", "localhost:2"])
    with pytest.raises(UserError, match="TF_CONFIG: .* --accelerator; "):
        cluster.join_cluster(config, mesh("all:2"), print, ON_TPU, environment)
    alone = variable(["localhost:1"])
    assert cluster.join_cluster(config, mesh("all:1"), print, ON_TPU, alone) is None


def test_a_driver_alone_has_no_cluster():
    config = ClusterConfig((), 1.0, 1.0, False)
    assert cluster.join_cluster(config, mesh("all:1"), print, HOST, {}) is None
    with pytest.raises(UserError, match="start decoupled worker here"):
        cluster.join_cluster(
            config, mesh("m:2"), print, HOST, variable(["a:1", "b:2"], index=1)
        )


def test_tf_config_is_not_left_for_the_estimator():
    environment = variable(["localhost:1"])
    config = ClusterConfig((), 1.0, 1.0, False)
    assert cluster.join_cluster(config, mesh("all:1"), print, HOST, environment) is None
    assert environment == {}


@pytest.fixture(scope="module")
def worker():
    """(process, addresses) of a worker with one device."""
    addresses = free_addresses(2)
    command = [
        sys.executable, "-m", "decoupled", "worker", f"--workers={','.join(addresses)}",
        "--index=1", "--ends_with_parent",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert "worker 1 of 2" in process.stdout.readline()
    yield process, addresses
    process.kill()
    process.communicate()


def wait_until_stopped(pid):
    states = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    for state in states:
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)


def test_signs_of_life(worker):
    process, addresses = worker
    assert cluster.is_alive(addresses[1])
    assert not cluster.is_alive(addresses[0])
    os.kill(process.pid, signal.SIGSTOP)
    try:
        wait_until_stopped(process.pid)
        # The kernel still takes connections; nobody answers them.
        socket.create_connection(("localhost", int(addresses[1][10:]))).close()
        assert not cluster.is_alive(addresses[1], 0.3)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert cluster.is_alive(addresses[1])


def test_a_server_of_another_kind_is_no_worker():
    with socket.create_server(("localhost", 0)) as server:

        def answer():
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=answer).start()
        assert not cluster.is_alive(f"localhost:{server.getsockname()[1]}")


def test_a_worker_that_never_comes():
    [address] = free_addresses(1)
    said = []
    with pytest.raises(WorkerLost, match=f"{address}: no worker answered within 0 s"):
        cluster.wait_for([address], 0.3, said.append)
    assert said == [f"waiting for {address}, at most 0 s"]


def test_the_watch_tells_of_a_silent_worker_once(worker):
    _, addresses = worker
    told = []
    started = time.monotonic()
    watch = cluster.Watch(addresses, 0.5, told.append)
    watch.start()
    watch.join(20)
    assert time.monotonic() - started >= 0.5
    [message] = told
    # The first address is the driver's, and nobody serves it.
    assert message.startswith(f"{addresses[0]}: this worker has not answered")


def test_a_worker_with_too_few_devices_is_named(worker):
    _, addresses = worker
    config = ClusterConfig(tuple(addresses), 10.0, 10.0, False)
    with pytest.raises(UserError, match=f"{addresses[1]}: has no CPU:1; start it with"):
        cluster.join_cluster(config, mesh("m:4"), [].append, HOST, {})


def test_a_worker_at_localhost_is_open_to_this_host_alone(worker, outside_address):
    port = int(worker[1][1].rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((outside_address, port), 5)


def test_an_address_that_other_hosts_reach_must_be_accepted(monkeypatch):
    monkeypatch.setattr(ports, "outside_interfaces", lambda: ["eth0"])
    workers = tuple(a.replace("localhost", "0.0.0.0") for a in free_addresses(2))
    told = f"{workers[0]}: TensorFlow listens on every interface"
    config = ClusterConfig(workers, 0.1, 1.0, False)
    with pytest.raises(UserError, match=told) as refused:
        cluster.join_cluster(config, mesh("m:2"), print, HOST, {})
    assert str(refused.value).endswith("ClusterConfig.accept_open_ports = True")
    said = []
    cluster.start_server(Process(workers, 0, True), 1, said.append)
    assert len(said) == 1 and said[0].startswith(f"warning: {told}")


def test_what_supervise_accepted_reaches_the_driver():
    environment = cluster_variable(["a:1", "b:2"], accept_open_ports=True)
    assert cluster.from_environment(environment) == Process(("a:1", "b:2"), 0, True)


def test_an_address_that_is_taken():
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"{address}: cannot serve this address"):
            cluster.start_server(Process((address, "localhost:1"), 0), 1, print)


def test_a_second_session_ends_the_run():
    hook = OneSession()
    hook.after_create_session(None, None)
    with pytest.raises(WorkerLost, match="run again"):
        hook.after_create_session(None, None)
