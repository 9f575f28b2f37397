"""Runs a training command and restarts it where a process was lost.

  decoupled supervise -- decoupled pretrain --accelerator=gpu ...

If the command is killed, or ends because another process of its run is gone (exit code
75), it is started again, and training resumes from its last checkpoint. Where several
hosts train together, start this on each of them; --process alone differs:

  decoupled supervise -- decoupled pretrain --accelerator=gpu \\
      --coordinator=host0:2222 --processes=2 --process=0 ...

--processes starts so many processes on this host, which share the mesh's CPU devices,
and gives them their numbers and an address:

  decoupled supervise --processes=2 -- decoupled pretrain --accelerator=cpu \\
      --gin_param='MeshConfig.mesh_shape = "model:2"' \\
      --gin_param='MeshConfig.layout_rules = "vocab:model"' ...

The exit code is the command's: 0 done, 2 a mistake to correct, 143 stopped by SIGTERM
after saving. It is 75 after too many restarts.
"""

import os
import re
import shlex
import sys

from absl import flags

from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.launch import start, supervision

RUNS_COMMAND = True
_ITS_OWN = "every host runs the same command, with --coordinator, --processes and "
GONE = {
    "--workers": f"{_ITS_OWN}--process",
    "--index": f"{_ITS_OWN}--process",
    "--devices": "a process has its share of the mesh's devices",
    "--accept_open_ports": "TensorFlow's own servers are no longer used",
}


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_integer(
        "processes", None, "Processes on this host; default: what the command says.",
        lower_bound=1,
    )  # fmt: skip
    flags.DEFINE_integer(
        "max_restarts", 10, "Most restarts without ten minutes of work between them.",
        lower_bound=0,
    )  # fmt: skip


def main() -> None:
    """Supervises the run until it ends."""
    options = flags.FLAGS
    command = start.command_to_run()
    pattern = r"(?<!\S)--?accelerator[= ](?:gpu|tpu)"
    words = re.findall(pattern, shlex.join(command))
    if words and (options.processes or 1) > 1:
        raise UserError(
            f"--processes: shares CPU devices among processes; beside {words[0]} "
            "leave it out: one process has all devices of a host"
        )
    # Ctrl-C advises this command, and command.N records it: a process alone cannot run
    # again.
    os.environ[start.SUPERVISOR] = shlex.join(["decoupled", *sys.argv[1:]])
    sys.exit(
        supervision.supervise(
            lambda: supervision.members(command, options.processes),
            options.max_restarts,
            console.say,
        )
    )
