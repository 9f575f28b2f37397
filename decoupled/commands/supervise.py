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

import sys

from absl import flags

from decoupled.core import console, ports
from decoupled.core.errors import UserError
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
    make_group = _groups(flags.FLAGS)
    restarts = flags.FLAGS.max_restarts
    sys.exit(supervision.Supervisor(make_group, restarts, console.say).run())


def _groups(values):
    """A function that makes the groups of the run; checks the flags first."""
    if values.devices < 1 or values.max_restarts < 0:
        raise UserError("--devices must be 1 or more, --max_restarts 0 or more")
    shared = {"devices": values.devices, "accept_open_ports": values.accept_open_ports}
    if values.processes is not None:
        if values.workers is not None or values.index is not None:
            raise UserError("--processes is for one host: leave --workers, --index out")
        if values.processes < 1:
            raise UserError("--processes: must be 1 or more")
        return supervision.groups_on_this_host(
            start.command_to_run(), values.processes, **shared
        )
    if values.workers is None or values.index is None:
        raise UserError("--processes, or --workers and --index, must be given")
    ports.check_addresses(values.workers, values.index, "--workers")
    return supervision.groups_of_one_host(
        None if values.index else start.command_to_run(),
        values.workers,
        values.index,
        **shared,
    )
