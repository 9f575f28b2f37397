"""Trains the demo's decoupled model on 1, 2 and 4 processes and compares the losses.

Each run has a few steps, with the vocabulary of the output embedding split over the
processes, with --accelerator=cpu. The losses of every step are compared with those of
one process. Reads the records of the demo (decoupled demo --data_only). Complete runs
are reused.

  decoupled cluster_demo --work_dir=demo_run

Exits with code 1 if a loss differs by more than 1e-5.
"""

import os
import statistics
import sys

from absl import flags

from decoupled.core import console, files, installed, locks
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import FILE_NAME
from decoupled.launch import start
from decoupled.launch.supervision import Step, run_step

PROCESSES = (1, 2, 4)
TOLERANCE = 1e-5


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("work_dir", "demo_run", "Folder of the demo.")
    flags.DEFINE_integer("steps", 60, "Steps of each run.")


def main() -> None:
    """Trains, compares, prints the table."""
    work_dir, steps = flags.FLAGS.work_dir, flags.FLAGS.steps
    if steps < 1:
        raise UserError("--steps: must be 1 or more")
    if not files.exists(os.path.join(work_dir, "records", "manifest.json")):
        raise UserError(
            f"{work_dir}: holds no records; run decoupled demo --data_only "
            f"--work_dir={work_dir} first"
        )
    installed.need("jax", purpose="--accelerator=cpu")
    with locks.hold(work_dir):
        start.save_start(work_dir)
        folder = files.make_folder(os.path.join(work_dir, "cluster"))
        for number, processes in enumerate(PROCESSES, start=1):
            name = f"{processes} processes" if processes > 1 else "1 process"
            console.say("")
            console.say(f"[{number}/{len(PROCESSES)}] {name}")
            command = training_command(work_dir, processes, steps)
            step = Step("", name.replace(" ", "_"), command)
            run_step(folder, step)
    worst = _report(work_dir, steps)
    if worst > TOLERANCE:
        console.say(f"the losses differ by {worst:.2g}, more than {TOLERANCE:g}")
        sys.exit(1)


def training_command(work_dir: str, processes: int, steps: int) -> list[str]:
    """The command line of a run."""
    pretrain = [
        *("decoupled", "pretrain", "--accelerator=cpu"),
        "--gin_file=models/demo_decoupled.gin",
        "--gin_file=runs/demo_pretrain.gin",
        f"--gin_param=ScheduleConfig.train_steps = {steps}",
        "--gin_param=ScheduleConfig.warmup_steps = 0",
        # At the demo's learning rate, rounding errors double every few steps in a model
        # with random weights, on any mesh.
        "--gin_param=OptimizerConfig.learning_rate = 2e-4",
        "--gin_param=TrainingConfig.log_steps = 1",
        f'--gin_param=MeshConfig.mesh_shape = "model:{processes}"',
        '--gin_param=MeshConfig.layout_rules = "vocab:model"',
        f"--records_dir={work_dir}/records",
        f"--vocabulary={os.path.join(work_dir, 'vocabulary', FILE_NAME)}",
        f"--model_dir={_folder(work_dir, processes)}",
        "--mode=train",
    ]
    if processes == 1:
        return pretrain
    return ["decoupled", "supervise", f"--processes={processes}", "--", *pretrain]


def _folder(work_dir, processes):
    return os.path.join(work_dir, "cluster", str(processes))


def _report(work_dir, steps):
    """Prints the table; returns the largest difference from the loss of one process."""
    from decoupled.training.events import read_scalars

    losses = {n: read_scalars(_folder(work_dir, n), "loss") for n in PROCESSES}
    rates = {
        n: read_scalars(_folder(work_dir, n), "global_step/sec") for n in PROCESSES
    }
    for processes, by_step in losses.items():
        if missing := set(range(1, steps + 1)) - set(by_step):
            raise UserError(
                f"{_folder(work_dir, processes)}: its event files lack {len(missing)} "
                f"of {steps} steps, as after a full disk; remove the folder and start "
                "again"
            )
    alone = losses[PROCESSES[0]]
    worst, rows = 0.0, []
    for processes in PROCESSES:
        by_step = losses[processes]
        difference = max(abs(by_step[step] - alone[step]) for step in alone)
        worst = max(worst, difference)
        rate = statistics.median(rates[processes].values())
        rows.append(
            [
                str(processes),
                f"{by_step[1]:.6f}",
                f"{by_step[steps]:.6f}",
                f"{difference:.1e}",
                f"{1000 / rate:.1f} ms",
            ]
        )
    console.table(
        f"{steps} steps with the vocabulary split over the processes",
        ["processes", "first loss", "last loss", "largest difference", "step"],
        rows,
    )
    return worst
