"""Worker: training steps of this project over several processes of this machine."""

import pathlib
import subprocess

import protocol
import synthetic
from decoupled_pretraining import graph_config, training_step

from decoupled.configs import ClusterConfig
from decoupled.launch.supervision import free_ports, worker_command
from decoupled.training.cluster import Cluster, Process

START_SECONDS = 300.0
COUNTED_STEPS = 2


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case as of `decoupled_pretraining`, with "processes", this one included.

    The facts hold the bytes that cross the loopback interface in a step.
    """
    graph = graph_config(case)
    cluster = None
    if case["processes"] > 1:
        cluster = start_cluster(case["processes"], graph.network.mesh)
    step, _ = training_step(graph, synthetic.masked_lm_batch(case), cluster)
    step()
    before = loopback_bytes()
    for _ in range(COUNTED_STEPS):
        step()
    return step, {
        "wire_bytes": (loopback_bytes() - before) // COUNTED_STEPS,
        "versions": protocol.versions("decoupled", "tensorflow", "mesh-tensorflow"),
    }


def start_cluster(processes: int, mesh) -> Cluster:
    """Starts the other processes, which end with this one, and joins them."""
    addresses = [f"localhost:{port}" for port in free_ports(processes)]
    devices = int(mesh.mesh_shape.rpartition(":")[2]) // processes
    for index in range(1, processes):
        command = worker_command(addresses, index, devices)
        subprocess.Popen(command, stdin=subprocess.DEVNULL)
    config = ClusterConfig(tuple(addresses), START_SECONDS, START_SECONDS, False)
    return Cluster(Process(tuple(addresses), 0), config, mesh, print)


def loopback_bytes() -> int:
    """Bytes that the loopback interface has received so far (Linux)."""
    for line in pathlib.Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    raise RuntimeError("no loopback interface in /proc/net/dev")


if __name__ == "__main__":
    protocol.serve(build)
