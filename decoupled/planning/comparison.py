"""Compares plans of a run on other layouts."""

import dataclasses
from collections.abc import Iterable, Iterator

from decoupled.configs import MeshConfig, PlanConfig, PretrainConfig
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.planning.hardware import Topology
from decoupled.planning.plan import Plan, check_run, make_plan
from decoupled.planning.report import SUMMARY, summary_row
from decoupled.training.mesh import parse_mesh_shape

_MODEL_AXIS = "model"
# Most cores of a group that computes one model; larger groups are always slower.
_MOST_MODEL_CORES = 16


def compare_layouts(
    layouts: Iterable[tuple[str, MeshConfig]],
    run: PretrainConfig,
    tpu: Topology,
    assumptions: PlanConfig,
) -> list[Plan]:
    """Plans layouts on every reasonable mesh; prints a table, and which is the best.

    The axis `model` has 2, 4, ... 16 cores, the other axis the rest. Of a layout, only
    the names of axes and the rules are used; all other settings are the run's.
    """
    candidates, lines = [], []
    for name, mesh in layouts:
        runs = list(_on_meshes(mesh, run, tpu))
        errors = [_why_not(run_on) for run_on in runs]
        pairs = [(name, r) for r, error in zip(runs, errors, strict=True) if not error]
        candidates += pairs
        if not runs:
            lines.append(f"{name}: its mesh has an axis {_MODEL_AXIS!r} of 2 or more")
        elif not pairs:
            lines.append(f"{name}, {runs[0].mesh.mesh_shape}: {errors[0]}")
    if not candidates:
        raise UserError(f"--layouts: none can be on {tpu.name}: {'; '.join(lines)}")
    plans = [
        (name, make_plan(run_on, tpu, assumptions))
        for name, run_on in console.track(candidates, "planning layouts")
    ]
    rows = [summary_row(name, plan) for name, plan in plans]
    console.table(f"Layouts on {tpu.name}", ["layout", *SUMMARY[1:]], rows)
    for line in lines:
        console.say(f"cannot be: {line}")
    all_plans = [plan for _, plan in plans]
    mesh = select_plan(all_plans).run.mesh
    console.say(
        f"best: MeshConfig.mesh_shape = {mesh.mesh_shape!r}, "
        f"MeshConfig.layout_rules = {mesh.layout_rules!r}"
    )
    return all_plans


def _on_meshes(
    mesh: MeshConfig, run: PretrainConfig, tpu: Topology
) -> Iterator[PretrainConfig]:
    axes = list(parse_mesh_shape(mesh.mesh_shape))
    other_axes = [axis for axis in axes if axis != _MODEL_AXIS]
    if len(other_axes) > 1:
        raise UserError(
            f"MeshConfig.mesh_shape: axes {', '.join(axes)}: layouts are compared on "
            f"one axis and, beside it, {_MODEL_AXIS!r}; plan this one without --layouts"
        )
    sizes = [{axes[0]: tpu.cores}]
    if len(axes) > 1:
        counts = [2**n for n in range(1, 10) if 2**n <= _MOST_MODEL_CORES]
        sizes = [
            {_MODEL_AXIS: count, other_axes[0]: tpu.cores // count}
            for count in counts
            if count <= tpu.cores
        ]
    for size in sizes:
        shape = ";".join(f"{axis}:{size[axis]}" for axis in axes)
        changes = {"mesh_shape": shape, "layout_rules": mesh.layout_rules}
        yield dataclasses.replace(run, mesh=dataclasses.replace(run.mesh, **changes))


def _why_not(run: PretrainConfig) -> str:
    """Why a run's mesh, model and batches do not fit each other; empty if they do."""
    try:
        check_run(run)
    except UserError as error:
        return str(error).split(": ", 2)[-1].partition(";")[0]
    return ""


def select_plan(plans: list[Plan]) -> Plan:
    """The fastest plan that fits; if none fits, the smallest."""
    fitting_plans = [plan for plan in plans if plan.fits]
    if fitting_plans:
        return min(fitting_plans, key=lambda plan: plan.times.step)
    return min(plans, key=lambda plan: plan.memory.total)
