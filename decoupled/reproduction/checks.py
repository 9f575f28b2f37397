"""What can be checked before hours of training: settings, disk, packages."""

import os
import shutil
from collections.abc import Sequence

from decoupled import configs
from decoupled.core import plots
from decoupled.core.errors import UserError
from decoupled.core.machine import readable_bytes
from decoupled.launch import gin_files
from decoupled.sweeps.jobs import FINETUNING, PRETRAINING, Job
from decoupled.tasks.registry import TASKS

_FILE, _PARAM = "--gin_file=", "--gin_param="
# Checkpoints, their copies and predictions of a run; analyses leave little.
_BYTES = {PRETRAINING: 60 << 20, FINETUNING: 40 << 20}


def check(jobs: Sequence[Job], folder: str) -> None:
    """Checks all that jobs need before the first of them begins.

    Args:
      jobs: all. folder: where they write.

    Raises:
      UserError: a setting is none that its command takes, a task is unknown, or the
        disk has too little space. Without matplotlib a line says so.
    """
    seen = set()
    for job in jobs:
        settings = tuple(
            argument
            for argument in job.arguments
            if argument.startswith((_FILE, _PARAM)) and ".seed = " not in argument
        )
        # The first argument names the task of a fine-tuning, or the analysis.
        key = job.kind, job.arguments[0], settings
        if key not in seen:
            seen.add(key)
            _check_settings(job)
    needed = sum(_BYTES.get(job.kind, 0) for job in jobs if not job.is_complete())
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        raise UserError(
            f"{folder}: has {readable_bytes(free)} free, and the jobs may need "
            f"{readable_bytes(needed)}; free some or choose another --work_dir"
        )
    plots.can_draw()


def _check_settings(job):
    given = [one.removeprefix(_FILE) for one in job.arguments if one.startswith(_FILE)]
    params = [
        one.removeprefix(_PARAM) for one in job.arguments if one.startswith(_PARAM)
    ]
    root, defaults = _root(job)
    if root is None:
        return
    try:
        gin_files.configure(root, [defaults, *given], params)
    except UserError as error:
        raise UserError(f"{job.name}: {error}") from error


def _root(job):
    """The root of a job's settings and the gin file that its command reads first."""
    if job.kind == PRETRAINING:
        return configs.pretrain, "runs/pretrain.gin"
    if job.kind == FINETUNING:
        task = job.arguments[0].removeprefix("--task=")
        if task not in TASKS:
            raise UserError(f"SweepConfig.tasks: {task!r} is no task")
        return configs.finetune, "runs/finetune.gin"
    name = job.arguments[0]
    return getattr(configs, name, None), f"runs/analyze_{name}.gin"


def _existing(folder):
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "."
    return folder
