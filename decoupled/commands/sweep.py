"""Runs a grid of models, tasks and seeds, e.g. a table of the paper; resumable.

  decoupled sweep --gin_file=sweeps/table4.gin --scale=mini \\
      --records_dir=data/records --vocabulary=data/vocabulary/sentencepiece.model \\
      --tasks=catalogs --data_dir=data/corpus/tasks --sweep_dir=runs/table4 --jobs=2

Every run is a separate job with a folder below --sweep_dir. The settings of all tasks
and the presence of their files are checked before the first job. The command can be
killed at any time. The same command then resumes incomplete jobs and does not repeat
complete ones, unless a file that they read has changed or their results are gone. If a
job fails, the others still run; the failed jobs are named at the end, with exit code 1.
sweeps/ has a file for each table of the paper.

Up to --jobs runs go on at a time. Each is forked from a process that has imported
TensorFlow, which saves it the seconds of the import. Every run has its own memory,
settings, log and exit code, and its results equal those of a separate process.

--scale=paper: the sizes of the paper. --scale=mini, for a laptop (sweeps/mini.gin):
widths divided by 8, depth by 4, and short runs, whose scores say little about the
paper. --print_jobs prints the jobs instead of running them,
one per line; tpu_scripts/sweep.sh reads this. `decoupled report` makes tables and plots
of the complete runs.
"""

import dataclasses
import functools
import os
import shlex
import sys

from absl import flags

from decoupled.configs import SweepRoot
from decoupled.core import console, files, locks
from decoupled.core.errors import Mistakes, UserError, close_names
from decoupled.launch import hardware_flags, start
from decoupled.studies.jobs import (
    FINETUNING,
    Inputs,
    check_jobs,
    complete_jobs,
    describe,
    make_jobs,
    make_rows,
)
from decoupled.studies.runner import (
    JobRunner,
    job_command,
    on_accelerator,
    show_failures,
)

SCALES = ("paper", "mini")


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_enum("scale", "paper", SCALES, "Sizes and steps: sweeps/SCALE.gin.")
    flags.DEFINE_list("tasks", None, "Tasks instead of the gin file's.")
    flags.DEFINE_string("records_dir", None, "Folder that build_records wrote.")
    flags.DEFINE_string(
        "vocabulary",
        None,
        "The records' vocabulary: a file, or a folder of transformers.",
    )
    flags.DEFINE_string("data_dir", None, "Folder with a folder per task.")
    flags.DEFINE_string("sweep_dir", None, "Folder of the sweep, created if missing.")
    flags.DEFINE_integer("jobs", 1, "Number of parallel jobs.", lower_bound=1)
    hardware_flags.define_accelerator("Pre-training and fine-tuning run on these")
    flags.DEFINE_bool("print_jobs", False, "Only print the jobs.")
    flags.mark_flags_as_required(["records_dir", "vocabulary", "sweep_dir"])


def main() -> None:
    """Runs the sweep, or prints its jobs."""
    if flags.FLAGS.print_jobs:
        for job in _prepare()[2]:
            words = (*job.arguments, *on_accelerator(job, flags.FLAGS.accelerator))
            console.say(shlex.join([job.kind, *words]))
        return
    with locks.hold(flags.FLAGS.sweep_dir):
        _run()


def _run():
    options = flags.FLAGS
    if options.accelerator in ("gpu", "tpu") and options.jobs > 1:
        raise UserError(
            f"--jobs: {options.jobs} jobs cannot share the devices of "
            f"--accelerator={options.accelerator}; leave --jobs out"
        )
    config, rows, jobs = _prepare()
    finished_jobs = complete_jobs(jobs)
    waiting_jobs = [job for job in jobs if job not in finished_jobs]
    _check_tasks(waiting_jobs, rows)
    describe(
        options.sweep_dir, config.sweep, config.scale, options.scale, rows, waiting_jobs
    )
    accelerator = options.accelerator
    # A process that JAX runs in must not be forked.
    command = accelerator and functools.partial(job_command, accelerator=accelerator)
    failures = JobRunner(jobs, options.jobs, command).run()
    if failures:
        show_failures(failures, len(jobs))
        sys.exit(1)
    console.say(f"all {len(jobs)} jobs are complete")


def _check_tasks(jobs, rows):
    """Ends a sweep before its first job if a fine-tuning would refuse its files, or
    the model of a row.

    All files are read. The message names the mistakes of all tasks.
    """
    first_jobs = {}
    for job in jobs:
        if job.kind == FINETUNING:
            first_jobs.setdefault(job.values("task")[0], job)
    if not first_jobs:
        return
    # These modules load TensorFlow.
    from decoupled.data.vocabulary import open_vocabulary
    from decoupled.runs.finetuning_plan import finetuned_model, learning_rates
    from decoupled.runs.task_data import TaskData
    from decoupled.tasks.presets import make_task

    vocabulary, mistakes = open_vocabulary(flags.FLAGS.vocabulary), Mistakes()
    types = min(row.model.type_vocab_size for row in rows)
    for name, job in first_jobs.items():
        with mistakes.noted():
            config = job.config()
            [data_dir] = job.values("data_dir")
            task = make_task(
                name,
                data_dir,
                config.finetuning,
                config.question_answering,
                config.own_task,
            )
            for row in rows:
                settings = dataclasses.replace(
                    config.finetuning, keep_layers=row.keep_layers
                )
                finetuned_model(row.model, settings)
            data = TaskData(task, vocabulary, cache="", type_vocab_size=types)
            examples = data.examples("train", data.source)
            learning_rates(config, data)
            data.check(examples, data.files_to_answer())
    mistakes.raise_all()


def _prepare():
    from decoupled.data.vocabulary import open_vocabulary
    from decoupled.tasks.presets import TASKS

    options = flags.FLAGS
    options.gin_file = [f"sweeps/{options.scale}.gin", *options.gin_file]
    if options.tasks is not None:
        options.gin_param = [
            *options.gin_param,
            f"SweepConfig.tasks = {tuple(options.tasks)!r}",
        ]
    config = start.parse_gin(SweepRoot)
    for task in config.sweep.tasks:
        if task not in TASKS:
            hint = close_names(task, list(TASKS))
            raise UserError(f"SweepConfig.tasks: {task!r} is no task{hint}")
    if config.sweep.tasks and not options.data_dir:
        raise UserError("--data_dir: must be given, because the sweep has tasks")
    vocab_size = open_vocabulary(options.vocabulary).size
    manifest = os.path.join(options.records_dir, "manifest.json")
    if not options.print_jobs and not files.exists(manifest):
        raise UserError(
            f"--records_dir: no complete records in {options.records_dir}; run "
            "build_records"
        )
    rows = make_rows(config.sweep, config.sweep.rows, config.scale, vocab_size)
    data_dirs = dict.fromkeys(config.sweep.tasks, options.data_dir)
    inputs = Inputs(options.records_dir, options.vocabulary, data_dirs)
    jobs = make_jobs(config.sweep, rows, inputs, options.sweep_dir)
    check_jobs(jobs)
    if not options.print_jobs:
        start.save_start(options.sweep_dir)
    return config, rows, jobs
