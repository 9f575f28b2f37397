"""The jobs that a reproduction adds to those of a sweep, and a longer sweep.

SWEEP_DIR/layer_drop/TASK/ROW/keep_K/seed_S   fine-tuning of the first K layers alone
SWEEP_DIR/analyses/NAME/seed_S                an analysis of all models of a seed
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.core.errors import UserError
from decoupled.sweeps.jobs import FINETUNING, Inputs, Job, Row, make_jobs

ANALYSIS = "analyze"
LAYER_DROP = "layer_drop"
CONTROL = "control"
ANALYSES = "analyses"

_STEPS = re.compile(r"(ScheduleConfig\.(?:train|warmup)_steps) = (\d+)")
_KEEP = "--gin_param=FinetuningConfig.keep_layers = "
_MODEL_DIR = "--model_dir="
_INIT = "--init_checkpoint="
# The last of equal settings counts.
_ONE_STEP = (
    "--gin_param=ScheduleConfig.train_steps = 1",
    "--gin_param=ScheduleConfig.warmup_steps = 0",
)


class Analysis(NamedTuple):
    """One of `decoupled analyze`, of all models of a seed or of some.

    arguments: its own. rows: names of the models; empty for all.
    """

    arguments: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


class Study(NamedTuple):
    """What is measured beside the sweep.

    dropped_rows: models that are fine-tuned without their last layers, too.
    most_dropped: up to so many of them. control_rows: models that are fine-tuned after
    a single step of pre-training, too: what scores owe to pre-training. analyses: by
    name.
    """

    dropped_rows: tuple[str, ...]
    most_dropped: int
    control_rows: tuple[str, ...]
    analyses: Mapping[str, Analysis]


def make_study_jobs(
    sweep: SweepConfig,
    rows: Sequence[Row],
    inputs: Inputs,
    sweep_dir: str,
    study: Study,
) -> list[Job]:
    """All jobs of a sweep and of what is measured beside it, seed by seed.

    Everything of the first seed comes first, so that an interrupted reproduction
    already has results of all models.
    """
    jobs = []
    for seed in sweep.seeds:
        own = make_jobs(
            dataclasses.replace(sweep, seeds=(seed,)), rows, inputs, sweep_dir
        )
        dropped = [
            dropped_layers(job, keep, sweep_dir)
            for job in own
            for row in rows
            if job.kind == FINETUNING and _is_of(job, row, study.dropped_rows)
            for keep in kept_layers(row.model.num_layers, study.most_dropped)
        ]
        controls = [
            without_pretraining(job, sweep_dir)
            for job in own
            for row in rows
            if _is_of(job, row, study.control_rows)
        ]
        by_name = {job.name: job for job in own}
        models = {row.name: by_name[f"models/{row.name}/seed_{seed}"] for row in rows}
        analyses = [
            _analysis(name, analysis, models, seed, sweep_dir)
            for name, analysis in study.analyses.items()
        ]
        jobs += [*own, *dropped, *controls, *analyses]
    return jobs


def kept_layers(layers: int, most_dropped: int) -> range:
    """Fewer layers than `layers`, by up to `most_dropped`, at least one."""
    return range(max(1, layers - most_dropped), layers)


def dropped_layers(job: Job, keep: int, sweep_dir: str) -> Job:
    """The same fine-tuning with the first `keep` layers, in a folder of its own."""
    _, task, row, seed = job.name.split("/")
    name = f"{LAYER_DROP}/{task}/{row}/keep_{keep}/{seed}"
    folder = os.path.join(sweep_dir, name)
    changed = {_KEEP: str(keep), _MODEL_DIR: folder}
    arguments = tuple(_with(argument, changed) for argument in job.arguments)
    return Job(job.kind, name, folder, arguments, job.needs)


def without_pretraining(job: Job, sweep_dir: str) -> Job:
    """The same job of a model that was pre-trained for one step, in other folders."""
    name = f"{CONTROL}/{job.name}"
    folder = os.path.join(sweep_dir, name)
    changed, more, needs = {_MODEL_DIR: folder}, _ONE_STEP, ()
    if job.kind == FINETUNING:
        needs = tuple(f"{CONTROL}/{needed}" for needed in job.needs)
        changed[_INIT] = os.path.join(sweep_dir, needs[0])
        more = ()
    arguments = (*(_with(argument, changed) for argument in job.arguments), *more)
    return Job(job.kind, name, folder, arguments, needs)


def _is_of(job, row, names):
    return row.name in names and f"/{row.name}/" in job.name


def _with(argument, changed):
    for start, value in changed.items():
        if argument.startswith(start):
            return start + value
    return argument


def _analysis(name, analysis, models, seed, sweep_dir):
    job_name = f"{ANALYSES}/{name}/seed_{seed}"
    folder = os.path.join(sweep_dir, job_name)
    seen = [models[row] for row in analysis.rows or models if row in models]
    return Job(
        ANALYSIS,
        job_name,
        folder,
        (
            name,
            *(f"{_MODEL_DIR}{model.folder}" for model in seen),
            *analysis.arguments,
            f"--output_dir={folder}",
        ),
        tuple(model.name for model in seen),
    )


def larger(
    sweep: SweepConfig, scale: ScaleConfig, size: float
) -> tuple[SweepConfig, ScaleConfig]:
    """A sweep with `size` times the steps, and wider models.

    Widths grow by the largest power of two that is not above `size`, up to the paper's;
    the number of heads and of layers stays. Below 1 there are fewer steps only.

    Raises:
      UserError: `size` is not above 0, or the steps are not in the sweep's settings.
    """
    if size <= 0:
        raise UserError(f"--size: {size} must be above 0")
    if size == 1:
        return sweep, scale
    if sum(bool(_STEPS.fullmatch(param)) for param in sweep.pretraining) < 2:
        raise UserError(
            "--size: the sweep sets no ScheduleConfig.train_steps and warmup_steps "
            "that could be multiplied"
        )
    params = tuple(_multiplied(param, size) for param in sweep.pretraining)
    wider = 1
    while wider * 2 <= size and scale.width_divisor % (wider * 2) == 0:
        wider *= 2
    return (
        dataclasses.replace(sweep, pretraining=params),
        dataclasses.replace(
            scale,
            width_divisor=scale.width_divisor // wider,
            head_size_divisor=max(1, scale.head_size_divisor // wider),
        ),
    )


def _multiplied(param, size):
    found = _STEPS.fullmatch(param)
    if not found:
        return param
    return f"{found[1]} = {max(1, round(int(found[2]) * size))}"
