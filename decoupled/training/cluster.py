"""The processes that a mesh spans, on TensorFlow's own distributed runtime.

The driver (pretrain, finetune) is the first worker: it serves its own devices, so that
Python code in the input pipeline and the checkpoints stay in its process. The others
are started by `decoupled worker`.

TensorFlow does not notice that a worker died: a step that waits for it waits for ever.
`Watch` asks every worker for a sign of life and ends the process if one does not
answer.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from decoupled.configs import ClusterConfig, MeshConfig
from decoupled.configs.hardware import HOST, Hardware
from decoupled.core import files, ports
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import (
    WORKER_LOST_CODE,
    UserError,
    WorkerLost,
    in_one_line,
)
from decoupled.ops.kernels import compile_first_quietly
from decoupled.ops.meshes.placement import PlacementMeshImpl
from decoupled.training import mesh as meshes

JOB = "worker"
VARIABLE = "TF_CONFIG"
# The start of an HTTP/2 connection, which gRPC uses, and the type of the frame with
# which a live server answers it (RFC 9113, sections 3.4 and 6.5).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS = 4
_FRAME_HEAD = 9
# Seconds between two questions to a worker, and until an answer counts as missing.
_INTERVAL = 2.0
_ANSWER_SECONDS = 5.0
# The setting by which the user of a driver accepts open ports.
_ACCEPT = "ClusterConfig.accept_open_ports = True"


class Process(NamedTuple):
    """A process of a cluster: the addresses of all, and which one is its own.

    accept_open_ports: whether the user accepts that other hosts can reach its port.
    """

    workers: tuple[str, ...]
    index: int
    accept_open_ports: bool = False


def from_environment(
    environment: Mapping[str, str] = os.environ,
) -> Process | None:
    """What TF_CONFIG says of this process, or None where it is not set.

    TF_CONFIG is {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker",
    "index": 0}}. A "chief" counts as the first worker. It may have
    "accept_open_ports": true.
    """
    text = environment.get(VARIABLE)
    if not text:
        return None
    try:
        content = files.parse_json(text)
        jobs = content["cluster"]
        chiefs = list(jobs.get("chief", []))
        workers = tuple(chiefs + list(jobs.get(JOB, [])))
        kind, index = content["task"]["type"], int(content["task"]["index"])
        accepted = content.get("accept_open_ports", False) is True
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f'{VARIABLE}: needs {{"cluster": {{"worker": ["host:port", ...]}}, "task": '
            f'{{"type": "worker", "index": 0}}}} ({type(error).__name__}: {error})'
        ) from error
    unknown = sorted(set(jobs) - {"chief", JOB})
    if unknown:
        raise UserError(f"{VARIABLE}: jobs {', '.join(unknown)} are of no use here")
    index += len(chiefs) if kind == JOB else 0
    process = Process(workers, index, accepted)
    ports.check_addresses(workers, index, VARIABLE)
    return process


class Cluster:
    """The driver's side of a cluster: its server, its mesh, its watch.

    Raises:
      UserError: the mesh cannot be divided among the workers, or other hosts can reach
        this one's port and the user has not accepted it.
      WorkerLost: not all workers answered in time.
    """

    def __init__(self, process: Process, config: ClusterConfig, mesh: MeshConfig, say):
        workers = process.workers
        ports.check_addresses(workers, process.index, "ClusterConfig.workers")
        self.devices = mesh_devices(len(workers), mesh)
        local = len(self.devices) // len(workers)
        self._mesh = mesh
        server = start_server(process, local, say, _ACCEPT)
        self.master = server.target
        others = workers[1:]
        say(f"worker 0 of {len(workers)} at {workers[0]}, with {local} devices")
        wait_for(others, config.start_seconds, say)
        self._check_devices(workers)
        Watch(others, config.patience_seconds, end_process).start()

    def placement(self) -> meshes.Placement:
        """The mesh over all workers' devices."""
        shape, layout = meshes.shape_and_layout(self._mesh)
        implementation = PlacementMeshImpl(shape, layout, self.devices)
        # Whole variables live with the driver, so that no other host writes parts of
        # checkpoints.
        driver = f"/job:{JOB}/task:0/device:CPU:0"
        placer = mtf.utils.BalancedVariablePlacer([driver])
        return meshes.Placement(implementation, placer)

    def session_config(self) -> tf.ConfigProto:
        """The session settings of one host, but without soft placement: a missing
        device is an error."""
        session = meshes.session_config(self._mesh)
        session.allow_soft_placement = False
        return session

    def _check_devices(self, workers):
        with tf.Session(self.master, graph=tf.Graph()) as session:
            available = {device.name for device in session.list_devices()}
        for device in self.devices:
            if device.replace("/task:", "/replica:0/task:") not in available:
                task, _, name = device.partition("/task:")[2].partition("/device:")
                raise UserError(
                    f"{workers[int(task)]}: has no {name}; start it with "
                    f"--devices={len(self.devices) // len(workers)}"
                )


def join_cluster(
    config: ClusterConfig,
    mesh: MeshConfig,
    say: Callable[[str], None],
    hardware: Hardware,
    environment: MutableMapping[str, str] = os.environ,
) -> Cluster | None:
    """The cluster that gin or TF_CONFIG names, or None where the driver is alone.

    TF_CONFIG is removed from the environment: the Estimator reads it too, and supports
    only clusters in which every process builds a graph. On a TPU, TensorFlow finds the
    hosts by itself.
    """
    source = VARIABLE if environment.get(VARIABLE) else "ClusterConfig.workers"
    process = from_environment(environment)
    environment.pop(VARIABLE, None)
    if process is not None and process.index:
        raise UserError(
            f"{VARIABLE}: this is worker {process.index}, and the driver is worker 0; "
            "start decoupled worker here"
        )
    if process is None:
        process = Process(config.workers, 0)
    if len(process.workers) < 2:
        return None
    if hardware != HOST:
        flag = "--tpu" if hardware.tpu else "--accelerator"
        raise UserError(
            f"{source}: names {len(process.workers)} processes, which do nothing "
            f"beside {flag}; take one of the two away"
        )
    accepted = process.accept_open_ports or config.accept_open_ports
    return Cluster(process._replace(accept_open_ports=accepted), config, mesh, say)


def mesh_devices(workers: int, mesh: MeshConfig) -> list[str]:
    """The device of each processor of the mesh, in order: worker after worker."""
    size = meshes.mesh_size(mesh)
    if size % workers:
        raise UserError(
            f"MeshConfig.mesh_shape: {mesh.mesh_shape} has {size} processors, which "
            f"{workers} workers cannot share evenly; use a multiple of {workers}"
        )
    each = size // workers
    return [
        f"/job:{JOB}/task:{task}/device:CPU:{index}"
        for task in range(workers)
        for index in range(each)
    ]


def start_server(
    process: Process, devices: int, say: Callable[[str], None], accept: str = ports.FLAG
) -> tf.distribute.Server:
    """Serves this process' virtual CPU devices to the cluster.

    A loopback address is served on the loopback interface only. If other hosts can
    reach the port, a line says so, or it is an error until the user writes `accept`.
    """
    address = process.workers[process.index]
    warning = ports.check_exposure(
        process.workers, process.index, process.accept_open_ports, accept
    )
    compile_first_quietly()
    try:
        # It listens from here on, but does not answer before it is started.
        server = tf.distribute.Server(
            tf.train.ClusterSpec({JOB: list(process.workers)}),
            job_name=JOB,
            task_index=process.index,
            config=tf.ConfigProto(device_count={"CPU": devices, "GPU": 0}),
            start=False,
        )
    except (tf.errors.OpError, RuntimeError) as error:
        raise UserError(
            f"{address}: cannot serve this address; is it taken, or another host's? "
            f"({' '.join(str(error).split())})"
        ) from error
    if warning:
        say(f"warning: {warning}")
    elif ports.is_loopback(address):
        port = int(address.rpartition(":")[2])
        if not ports.bind_to_loopback(port) and ports.outside_interfaces():
            raise UserError(f"{address}: cannot be bound to the loopback interface")
    server.start()
    return server


def is_alive(address: str, seconds: float = _ANSWER_SECONDS) -> bool:
    """Whether a gRPC server at the address answers the start of a connection.

    A process that was killed refuses the connection; one that is stopped, or whose
    host is gone, does not answer.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(_PREFACE)
            answer = b""
            while len(answer) < _FRAME_HEAD:
                part = connection.recv(_FRAME_HEAD - len(answer))
                if not part:
                    return False
                answer += part
    except OSError:
        return False
    return answer[3] == _SETTINGS


def wait_for(addresses: Sequence[str], seconds: float, say: Callable) -> None:
    """Returns when all workers answer, which they have to in some seconds."""
    deadline = time.monotonic() + seconds
    missing = list(addresses)
    announced = False
    while missing := [address for address in missing if not is_alive(address, 1.0)]:
        if time.monotonic() > deadline:
            raise WorkerLost(
                f"{', '.join(missing)}: no worker answered within {seconds:.0f} s; "
                "start it with decoupled worker"
            )
        if not announced:
            say(f"waiting for {', '.join(missing)}, at most {seconds:.0f} s")
            announced = True
        time.sleep(0.2)


class Watch(threading.Thread):
    """Asks workers for a sign of life; calls `lost` if one is silent for too long."""

    def __init__(
        self, addresses: Sequence[str], patience: float, lost: Callable[[str], None]
    ):
        super().__init__(daemon=True, name="watch over workers")
        self._addresses = addresses
        self._patience = patience
        self._lost = lost

    def run(self):
        """Asks until a worker is lost."""
        heard = dict.fromkeys(self._addresses, time.monotonic())
        while heard:
            for address in self._addresses:
                if is_alive(address):
                    heard[address] = time.monotonic()
                elif time.monotonic() - heard[address] >= self._patience:
                    self._lost(
                        f"{address}: this worker has not answered for "
                        f"{self._patience:.0f} s; start it and run again, what is "
                        "saved is kept"
                    )
                    return
            time.sleep(min(_INTERVAL, self._patience / 4))


def end_process(message: str) -> None:
    """Ends the process, whose main thread may wait inside TensorFlow for ever."""
    sys.stdout.flush()
    print(f"error: {in_one_line(message)}", file=sys.stderr, flush=True)
    os._exit(WORKER_LOST_CODE)
