"""Other layouts and other settings of the same run, planned beside each other."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from decoupled.configs import MeshConfig
from decoupled.core.errors import UserError
from decoupled.model.dims import make_dims, predictions_dim
from decoupled.planning.hardware import Slice
from decoupled.planning.plan import Plan, Run
from decoupled.training.mesh import check_mesh, parse_mesh_shape

_MODEL_AXIS = "model"
# A group of cores that computes one model: more are slower than any other way.
_MOST_MODEL_CORES = 16
_MOST_MICROBATCHES = 64


class Candidate(NamedTuple):
    """A layout on a mesh of the slice's size, and why it cannot be, if so."""

    name: str
    run: Run
    reason: str


def candidates(name: str, mesh: MeshConfig, run: Run, tpu: Slice) -> list[Candidate]:
    """A layout on every mesh of the slice's cores that may make sense.

    Args:
      name: of the layout. mesh: its axes and rules; sizes do not matter.
      run: all other settings. tpu: the slice.

    Returns:
      One for each size of the axis `model` (2, 4, ... 16), with the rest of the cores
      on the other axis; where none can be, the smallest with the reason.
    """
    possible, refused = [], []
    for shape in _shapes(list(parse_mesh_shape(mesh.mesh_shape)), tpu.cores):
        changed = run.on_mesh(mesh_shape=shape, layout_rules=mesh.layout_rules)
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
    run: Run


def levers(plan: Plan) -> Iterator[list[Lever]]:
    """What a run that does not fit can change, the cheapest in time first.

    Batches are cut as long as every core keeps a sequence of each part.

    Yields:
      series, within each of which every lever keeps less than the one before, if
      activations are what does not fit. Where weights, slots and gradients alone are
      too much, only what shrinks those.
    """
    for base in _with_smaller_weights_and_slots(plan):
        yield _with_less_kept(base)
        if not base.run.training.recompute_layers:
            setting = "TrainingConfig.recompute_layers = True"
            run = base.run.with_training(recompute_layers=True)
            yield _with_less_kept(Lever((*base.settings, setting), run))


def _with_smaller_weights_and_slots(plan):
    """The run as it is and with less that is there all the time, unless that alone is
    known to be too much."""
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
    return Lever((*lever.settings, setting), lever.run.on_mesh(slice_dtype="bfloat16"))


def _with_adafactor(lever):
    optimizer = dataclasses.replace(
        lever.run.optimizer, name="adafactor", weight_decay=0.0, beta1=0.0
    )
    names = (
        "OptimizerConfig.name = 'adafactor'",
        "OptimizerConfig.weight_decay = 0.0",
        "OptimizerConfig.beta1 = 0.0",
    )
    return Lever((*lever.settings, *names), lever.run._replace(optimizer=optimizer))


def _with_less_kept(lever):
    """A series: a lever, if it changes anything, and with ever more microbatches."""
    first = [lever] if lever.settings else []
    return first + _microbatches(lever.run, lever.settings)


def _microbatches(run, settings):
    found = []
    count = run.training.gradient_accumulation * 2
    while count <= _MOST_MICROBATCHES and run.training.batch_size % count == 0:
        changed = run.with_training(gradient_accumulation=count)
        if not _why_not(changed):
            setting = f"TrainingConfig.gradient_accumulation = {count}"
            found.append(Lever((*settings, setting), changed))
        count *= 2
    return found


def best(plans: list[Plan]) -> Plan:
    """The quickest of those that fit; where none does, the smallest."""
    fitting = [plan for plan in plans if plan.fits]
    if fitting:
        return min(fitting, key=lambda plan: plan.times.step)
    return min(plans, key=lambda plan: plan.memory.total)
