"""Serves this process's devices to a training run that spans several processes.

Start one for each address except the first, in any order. The first address is that of
the driver (pretrain, finetune):

  decoupled worker --workers=host0:2222,host1:2222 --index=1 --devices=1 \\
      --accept_open_ports
  decoupled pretrain --gin_param='MeshConfig.mesh_shape = "model:2"' \\
      --gin_param='MeshConfig.layout_rules = "vocab:model"' \\
      --gin_param='ClusterConfig.workers = ("host0:2222", "host1:2222")' \\
      --gin_param='ClusterConfig.accept_open_ports = True' ...

Without --workers and --index, the environment variable TF_CONFIG gives addresses and
index. A worker keeps its part of the model in memory and nothing on disk. It serves one
run after the other until it is stopped. An address of localhost is open only to this
host. Anyone who reaches any other address can run programs in this process, so it needs
a firewall and --accept_open_ports.
"""

import os
import time

from absl import flags

from decoupled.core import console, ports
from decoupled.core.errors import UserError
from decoupled.launch import start


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_list("workers", None, "host:port of all workers, the driver's first.")
    flags.DEFINE_integer("index", None, "Index of this worker; 0 is the driver.")
    flags.DEFINE_integer(
        "devices", 1, "Virtual CPU devices: the mesh's size / the number of workers."
    )
    flags.DEFINE_bool(
        "ends_with_parent",
        False,
        "End when the process that started this one has ended.",
    )
    start.define_open_ports_flag()


def main() -> None:
    """Serves until the process is stopped."""
    parent = os.getppid()
    _check_flags()
    from decoupled.training import cluster

    process = _process(cluster)
    server = cluster.start_server(process, flags.FLAGS.devices, console.say)
    address = process.workers[process.index]
    console.say(
        f"worker {process.index} of {len(process.workers)} at {address}, "
        f"with {flags.FLAGS.devices} devices: ready"
    )
    while not flags.FLAGS.ends_with_parent or os.getppid() == parent:
        time.sleep(0.5)
    del server


def _check_flags():
    """Checks the flags before TensorFlow is imported, which takes seconds."""
    workers, index = flags.FLAGS.workers, flags.FLAGS.index
    if flags.FLAGS.devices < 1:
        raise UserError("--devices: must be 1 or more")
    if (workers is None) != (index is None):
        raise UserError("--workers and --index go together; give both")
    if workers is not None:
        ports.check_addresses(workers, index, "--workers")
        _check_is_no_driver(index)
    elif not os.environ.get("TF_CONFIG"):
        raise UserError("--workers and --index must be given, or TF_CONFIG set")


def _process(cluster):
    workers, index = flags.FLAGS.workers, flags.FLAGS.index
    if workers is None:
        process = cluster.from_environment()
    else:
        process = cluster.Process(tuple(workers), index)
    _check_is_no_driver(process.index)
    if flags.FLAGS.accept_open_ports:
        return process._replace(accept_open_ports=True)
    return process


def _check_is_no_driver(index):
    if index == 0:
        raise UserError(
            "--index: worker 0 is the driver itself: start pretrain or finetune there"
        )
