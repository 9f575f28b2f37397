"""Compares plans of the same run with other layouts and other settings."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from decoupled.configs import MeshConfig, PretrainConfig
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.model.dims import make_dims, predictions_dim
from decoupled.planning.hardware import Slice
from decoupled.planning.plan import Plan, with_mesh, with_training
from decoupled.planning.report import SUMMARY, summary_row
from decoupled.training.mesh import check_mesh, parse_mesh_shape

_MODEL_AXIS = "model"
# Most cores of a group that computes one model; larger groups are always slower.
_MOST_MODEL_CORES = 16
_MOST_MICROBATCHES = 64
# A change that leaves more than this share of the memory does not help.
_HELPS = 0.99
# Programs that take so many seconds are reported one by one.
_SLOW = 5.0

Planner = Callable[[PretrainConfig], Plan]


class Candidate(NamedTuple):
    """A layout on a mesh of the slice's size, and the reason if it is impossible."""

    name: str
    run: PretrainConfig
    reason: str


def candidates(
    name: str, mesh: MeshConfig, run: PretrainConfig, tpu: Slice
) -> list[Candidate]:
    """A layout on all reasonable meshes of the slice's cores.

    Args:
      name: of the layout. mesh: its axes and rules; sizes are ignored.
      run: all other settings. tpu: the slice.

    Returns:
      One candidate for each size of the axis `model` (2, 4, ... 16), with the rest of
      the cores on the other axis. If none is possible, the smallest with the reason.
    """
    possible, refused = [], []
    for shape in _shapes(list(parse_mesh_shape(mesh.mesh_shape)), tpu.cores):
        changed = with_mesh(run, mesh_shape=shape, layout_rules=mesh.layout_rules)
        reason = _why_not(changed)
        (refused if reason else possible).append(Candidate(name, changed, reason))
    return possible or refused[:1]


def _shapes(axes, cores):
    others = [axis for axis in axes if axis != _MODEL_AXIS]
    if len(others) > 1:
        raise UserError(
            f"MeshConfig.mesh_shape: axes {', '.join(axes)}: layouts are compared on "
            f"one axis and, beside it, {_MODEL_AXIS!r}; plan this one without --layouts"
        )
    if len(axes) == 1:
        yield f"{axes[0]}:{cores}"
        return
    size = 2
    while size <= min(cores, _MOST_MODEL_CORES):
        sizes = {_MODEL_AXIS: size, others[0]: cores // size}
        yield ";".join(f"{axis}:{sizes[axis]}" for axis in axes)
        size *= 2


def _why_not(run):
    batch = run.training.batch_size // run.training.gradient_accumulation
    dims = make_dims(run.model, batch, run.masking.sequence_length)
    try:
        check_mesh(run.mesh, dims, [predictions_dim(run.masking.max_predictions)])
    except UserError as error:
        return str(error).split(": ", 2)[-1].partition(";")[0]
    return ""


class Lever(NamedTuple):
    """A change of settings that saves memory: gin lines, and the run with them."""

    settings: tuple[str, ...]
    run: PretrainConfig


def levers(plan: Plan) -> Iterator[list[Lever]]:
    """Changes of settings for a run that does not fit, the cheapest in time first.

    Batches are divided into microbatches as long as every core has at least one
    sequence of each.

    Yields:
      series of levers; in a series, each lever needs less memory than the one before.
      If weights, slots and gradients alone do not fit, only levers that reduce these.
    """
    for base in _with_smaller_weights_and_slots(plan):
        yield _with_less_kept(base)
        if not base.run.training.recompute_layers:
            setting = "TrainingConfig.recompute_layers = True"
            run = with_training(base.run, recompute_layers=True)
            yield _with_less_kept(Lever((*base.settings, setting), run))


def _with_smaller_weights_and_slots(plan):
    """The run as it is, and with smaller weights and slots.

    Runs whose weights, slots and gradients alone are known not to fit are left out.
    """
    run, memory = plan.run, plan.memory
    fixed = memory.weights + memory.slots + memory.all_gradients
    as_it_is = Lever((), run)
    if fixed < plan.usable_bytes:
        yield as_it_is
    narrow = run.mesh.slice_dtype == "bfloat16"
    if not narrow and fixed - memory.weights // 2 < plan.usable_bytes:
        yield _with_bfloat16_slices(as_it_is)
    if run.optimizer.name != "adafactor":
        other = _with_adafactor(as_it_is)
        yield other
        if not narrow:
            yield _with_bfloat16_slices(other)


def _with_bfloat16_slices(lever):
    setting = "MeshConfig.slice_dtype = 'bfloat16'"
    run = with_mesh(lever.run, slice_dtype="bfloat16")
    return Lever((*lever.settings, setting), run)


def _with_adafactor(lever):
    optimizer = dataclasses.replace(
        lever.run.optimizer, name="adafactor", weight_decay=0.0, beta1=0.0
    )
    names = (
        "OptimizerConfig.name = 'adafactor'",
        "OptimizerConfig.weight_decay = 0.0",
        "OptimizerConfig.beta1 = 0.0",
    )
    run = dataclasses.replace(lever.run, optimizer=optimizer)
    return Lever((*lever.settings, *names), run)


def _with_less_kept(lever):
    """A series: a lever, if it changes anything, then with more and more
    microbatches."""
    first = [lever] if lever.settings else []
    return first + _microbatches(lever.run, lever.settings)


def _microbatches(run, settings):
    found = []
    count = run.training.gradient_accumulation * 2
    while count <= _MOST_MICROBATCHES and run.training.batch_size % count == 0:
        changed = with_training(run, gradient_accumulation=count)
        if not _why_not(changed):
            setting = f"TrainingConfig.gradient_accumulation = {count}"
            found.append(Lever((*settings, setting), changed))
        count *= 2
    return found


def best(plans: list[Plan]) -> Plan:
    """The fastest plan that fits; if none fits, the smallest."""
    fitting = [plan for plan in plans if plan.fits]
    if fitting:
        return min(fitting, key=lambda plan: plan.times.step)
    return min(plans, key=lambda plan: plan.memory.total)


def compare_layouts(
    layouts: Iterable[tuple[str, MeshConfig]],
    run: PretrainConfig,
    tpu: Slice,
    make: Planner,
) -> Plan:
    """Plans every layout; prints them in a table and returns the best.

    Args:
      layouts: names and meshes, whose sizes are ignored. run: all other settings.
      tpu: the slice. make: plans a run.

    Raises:
      UserError: no layout is possible on the slice.
    """
    found = [
        candidate
        for name, mesh in layouts
        for candidate in candidates(name, mesh, run, tpu)
    ]
    plans, rows, refused = [], [], []
    for candidate in console.track(found, "planning layouts"):
        if candidate.reason:
            refused.append(
                f"{candidate.name}, {candidate.run.mesh.mesh_shape}: {candidate.reason}"
            )
            continue
        plans.append(make(candidate.run))
        rows.append(summary_row(candidate.name, plans[-1]))
    if not plans:
        raise UserError(f"--layouts: none can be on {tpu.name}: {'; '.join(refused)}")
    console.table(f"Layouts on {tpu.name}", ["layout", *SUMMARY[1:]], rows)
    for line in refused:
        console.say(f"cannot be: {line}")
    chosen = best(plans)
    console.say(
        f"best: MeshConfig.mesh_shape = {chosen.run.mesh.mesh_shape!r}, "
        f"MeshConfig.layout_rules = {chosen.run.mesh.layout_rules!r}"
    )
    return chosen


def advise(plan: Plan, make: Planner, seconds: float, limit: float) -> None:
    """Tries settings that save memory, the cheapest first, until a run fits.

    Args:
      plan: that does not fit. make: plans a run.
      seconds: that the first program took. limit: most seconds for all.
    """
    series = list(levers(plan))
    count = sum(map(len, series))
    console.say(
        f"looking for settings that fit: at most {count} programs of some "
        f"{console.duration(seconds)} each, and at most {console.duration(limit)} in "
        "all (--advice_minutes; --noadvice leaves this out)"
    )
    deadline = time.monotonic() + limit
    rows, fits = [], False
    for lever, made in _try(series, make, deadline):
        rows.append(summary_row("; ".join(lever.settings), made))
        fits = made.fits
        left = min(deadline - time.monotonic(), seconds * (count - len(rows)))
        if not fits and seconds >= _SLOW:
            console.say(
                f"{len(rows)} of at most {count} tried, "
                f"{console.duration(max(left, 0))} left at most"
            )
    if rows:
        console.table("What to change", ["setting", *SUMMARY[1:]], rows)
    if not fits:
        _say_what_else(len(rows), count, limit, time.monotonic() >= deadline)


def _say_what_else(tried, count, limit, over):
    if over:
        console.say(
            f"stopped after {console.duration(limit)} with {tried} of at most {count} "
            "tried: give it more --advice_minutes"
        )
    console.say(
        "none of these fits: split more over `model` (--layouts=all), or take a "
        "larger slice"
    )


def _try(series, make, deadline) -> Iterator:
    """Yields levers with their plans until one fits or the time is over."""
    for tried in series:
        last = None
        for lever in tried:
            if time.monotonic() >= deadline:
                return
            made = make(lever.run)
            yield lever, made
            if made.fits:
                return
            least, last = last, made.memory.total
            # The rest of a series that no longer helps will not help either.
            if least and last > _HELPS * least:
                break
