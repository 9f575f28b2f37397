"""Runs a training command on several processes and restarts them if one dies.

Starts the workers and the driver of a run that spans several processes, on this host:

  decoupled supervise --processes=2 -- decoupled pretrain \\
      --gin_param='MeshConfig.mesh_shape = "model:2"' \\
      --gin_param='MeshConfig.layout_rules = "vocab:model"' ...

On a host with GPUs each process gets an equal share of them, in order.

If a process dies, all are started again, and training resumes from its last checkpoint.
For a run over several hosts, start one such command on each, in any order:

  decoupled supervise --workers=host0:2222,host1:2222 --index=1 \\
      --accept_open_ports
  decoupled supervise --workers=host0:2222,host1:2222 --index=0 \\
      --accept_open_ports -- decoupled pretrain ...

Anybody who reaches a port there can run programs as you. First use a firewall to close
the ports to all but these hosts. Without --accept_open_ports the command prints the
rule for the firewall and ends.

The exit code is the driver's: 0 done, 2 a mistake to correct, 143 stopped by SIGTERM
after saving. It is 75 after too many restarts.
"""

import os
import sys

from absl import flags

from decoupled.core import console, ports
from decoupled.core.errors import UserError
from decoupled.core.machine import nvidia_gpus
from decoupled.launch import start, supervision

RUNS_COMMAND = True


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_integer(
        "processes", None, "Processes on this host, including the driver."
    )
    flags.DEFINE_list("workers", None, "host:port of all workers, the driver's first.")
    flags.DEFINE_integer("index", None, "Index of the worker that this host runs.")
    flags.DEFINE_integer(
        "devices",
        1,
        "Virtual CPU devices per process: the mesh's size / the processes.",
    )
    flags.DEFINE_integer(
        "max_restarts", 10, "Most restarts without ten minutes of work between them."
    )
    start.define_open_ports_flag()


def main() -> None:
    """Supervises the run until it ends."""
    values = flags.FLAGS
    if values.devices < 1 or values.max_restarts < 0:
        raise UserError("--devices must be 1 or more, --max_restarts 0 or more")
    if values.processes is not None:
        if values.workers is not None or values.index is not None:
            raise UserError("--processes is for one host: leave --workers, --index out")
        if values.processes < 1:
            raise UserError("--processes: must be 1 or more")
        indices = range(values.processes)
        command = start.command_to_run()
        if values.processes > 1:
            ports.check_exposure(["localhost:0"], 0, values.accept_open_ports)
        visible = os.environ.get(supervision.VISIBLE_GPUS)
        gpus = supervision.gpu_shares(values.processes, nvidia_gpus(), visible)
    else:
        if values.workers is None or values.index is None:
            raise UserError("--processes, or --workers and --index, must be given")
        ports.check_addresses(values.workers, values.index, "--workers")
        indices, gpus = [values.index], []
        command = None if values.index else start.command_to_run()
        ports.check_exposure(values.workers, values.index, values.accept_open_ports)

    def make_members():
        addresses = values.workers or supervision.free_addresses(values.processes)
        return supervision.members(
            command, addresses, indices, values.devices, values.accept_open_ports, gpus
        )

    sys.exit(supervision.supervise(make_members, values.max_restarts, console.say))
