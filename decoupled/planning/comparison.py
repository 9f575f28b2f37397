"""Compares plans of a run: on other layouts, and with settings that save memory."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from decoupled.configs import MeshConfig, PretrainConfig
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.model.dims import make_dims, predictions_dim
from decoupled.planning.hardware import Topology
from decoupled.planning.plan import Plan
from decoupled.planning.report import SUMMARY, summary_row
from decoupled.training.mesh import check_mesh, parse_mesh_shape

_MODEL_AXIS = "model"
# Most cores of a group that computes one model; larger groups are always slower.
_MOST_MODEL_CORES = 16
_MOST_MICROBATCHES = 64
# A change that leaves more than this share of the memory does not help.
_HELPS = 0.99

Planner = Callable[[PretrainConfig], Plan]


class Option(NamedTuple):
    """A run with other settings, and these settings as lines of gin."""

    settings: tuple[str, ...]
    run: PretrainConfig

    def with_settings(self, part: str, **changes: Any) -> "Option":
        """`part` is a field of `PretrainConfig`; the changes are of its fields."""
        config = getattr(self.run, part)
        lines = (f"{type(config).__name__}.{k} = {v!r}" for k, v in changes.items())
        changed = {part: dataclasses.replace(config, **changes)}
        run = dataclasses.replace(self.run, **changed)
        return Option((*self.settings, *lines), run)


def compare_layouts(
    layouts: Iterable[tuple[str, MeshConfig]],
    run: PretrainConfig,
    tpu: Topology,
    make: Planner,
) -> Plan:
    """Plans layouts on every reasonable mesh; prints a table and returns the best.

    The axis `model` has 2, 4, ... 16 cores, the other axis the rest: the sizes of the
    given meshes are ignored.
    """
    possible, refused = [], []
    for name, mesh in layouts:
        options = list(_on_meshes(mesh, run, tpu))
        fitting = [(name, option) for option in options if not _why_not(option.run)]
        possible += fitting
        if not fitting:
            run_on = options[0].run
            why = f"{name}, {run_on.mesh.mesh_shape}: {_why_not(run_on)}"
            refused.append(why)
    if not possible:
        raise UserError(f"--layouts: none can be on {tpu.name}: {'; '.join(refused)}")
    plans = [
        (name, make(option.run))
        for name, option in console.track(possible, "planning layouts")
    ]
    rows = [summary_row(name, plan) for name, plan in plans]
    console.table(f"Layouts on {tpu.name}", ["layout", *SUMMARY[1:]], rows)
    for line in refused:
        console.say(f"cannot be: {line}")
    chosen = best([plan for _, plan in plans])
    console.say(
        f"best: MeshConfig.mesh_shape = {chosen.run.mesh.mesh_shape!r}, "
        f"MeshConfig.layout_rules = {chosen.run.mesh.layout_rules!r}"
    )
    return chosen


def _on_meshes(
    mesh: MeshConfig, run: PretrainConfig, tpu: Topology
) -> Iterator[Option]:
    axes = list(parse_mesh_shape(mesh.mesh_shape))
    others = [axis for axis in axes if axis != _MODEL_AXIS]
    if len(others) > 1:
        raise UserError(
            f"MeshConfig.mesh_shape: axes {', '.join(axes)}: layouts are compared on "
            f"one axis and, beside it, {_MODEL_AXIS!r}; plan this one without --layouts"
        )
    sizes = [{axes[0]: tpu.cores}]
    if len(axes) > 1:
        counts = [2**n for n in range(1, 10) if 2**n <= _MOST_MODEL_CORES]
        sizes = [
            {_MODEL_AXIS: count, others[0]: tpu.cores // count}
            for count in counts
            if count <= tpu.cores
        ]
    for size in sizes:
        shape = ";".join(f"{axis}:{size[axis]}" for axis in axes)
        changes = {"mesh_shape": shape, "layout_rules": mesh.layout_rules}
        yield Option((), run).with_settings("mesh", **changes)


def _why_not(run: PretrainConfig) -> str:
    """Why a run's mesh and batch do not fit each other; empty if they do."""
    batch = run.training.batch_size // run.training.gradient_accumulation
    dims = make_dims(run.model, batch, run.masking.sequence_length)
    try:
        check_mesh(run.mesh, dims, [predictions_dim(run.masking.max_predictions)])
    except UserError as error:
        return str(error).split(": ", 2)[-1].partition(";")[0]
    return ""


def best(plans: list[Plan]) -> Plan:
    """The fastest plan that fits; if none fits, the smallest."""
    fitting = [plan for plan in plans if plan.fits]
    if fitting:
        return min(fitting, key=lambda plan: plan.times.step)
    return min(plans, key=lambda plan: plan.memory.total)


def options_that_save_memory(plan: Plan) -> Iterator[list[Option]]:
    """Series of options, the cheapest in time first; each needs less than the one
    before it in its series.

    If weights, slots and gradients alone do not fit, only options that reduce these.
    """
    run, memory, usable = plan.run, plan.memory, plan.usable_bytes
    fixed = memory.weights + memory.slots + memory.all_gradients
    as_it_is, bases = Option((), run), []
    if fixed < usable:
        bases.append(as_it_is)
    is_narrow = run.mesh.slice_dtype == "bfloat16"
    if not is_narrow and fixed - memory.weights // 2 < usable:
        bases.append(as_it_is.with_settings("mesh", slice_dtype="bfloat16"))
    if run.optimizer.name != "adafactor":
        other = as_it_is.with_settings(
            "optimizer", name="adafactor", weight_decay=0.0, beta1=0.0
        )
        bases.append(other)
        if not is_narrow:
            bases.append(other.with_settings("mesh", slice_dtype="bfloat16"))
    for base in bases:
        yield _microbatches(base)
        if not run.training.recompute_layers:
            yield _microbatches(base.with_settings("training", recompute_layers=True))


def _microbatches(base: Option) -> list[Option]:
    """The option, if it changes anything, then with more and more microbatches, as long
    as every core has at least one sequence of each."""
    options = [base] if base.settings else []
    count = base.run.training.gradient_accumulation * 2
    while count <= _MOST_MICROBATCHES and base.run.training.batch_size % count == 0:
        option = base.with_settings("training", gradient_accumulation=count)
        if not _why_not(option.run):
            options.append(option)
        count *= 2
    return options


def advise(plan: Plan, make: Planner, minutes: float) -> None:
    """Tries settings that save memory, the cheapest first, until a run fits."""
    series = list(options_that_save_memory(plan))
    count, deadline = sum(map(len, series)), time.monotonic() + 60 * minutes
    tried = _plans_until_one_fits(series, make, deadline)
    rows, fits = [], False
    for option, made in console.track(tried, "looking for settings that fit", count):
        rows.append(summary_row("; ".join(option.settings), made))
        fits = made.fits
    if rows:
        console.table("What to change", ["setting", *SUMMARY[1:]], rows)
    if fits:
        return
    if time.monotonic() >= deadline:
        console.say(
            f"stopped with {len(rows)} of at most {count} tried: give it more "
            "--advice_minutes"
        )
    console.say(
        "none of these fits: split more over `model` (--layouts=all), or take a "
        "larger slice"
    )


def _plans_until_one_fits(
    series: list[list[Option]], make: Planner, deadline: float
) -> Iterator[tuple[Option, Plan]]:
    for options in series:
        least = None
        for option in options:
            if time.monotonic() >= deadline:
                return
            made = make(option.run)
            yield option, made
            if made.fits:
                return
            # The rest of a series that no longer helps will not help either.
            if least and made.memory.total > _HELPS * least:
                break
            least = made.memory.total
