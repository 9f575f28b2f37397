"""Which layouts are tried, and which wins. No graph is built."""

import dataclasses

import pytest

from decoupled.configs import MeshConfig, PlanConfig, PretrainConfig
from decoupled.core.errors import UserError
from decoupled.planning import comparison
from decoupled.planning.comparison import compare_layouts, select_plan
from decoupled.planning.costs import MemoryUse
from decoupled.planning.hardware import GIB, parse_topology
from decoupled.planning.plan import Plan, Times
from tests.helpers import MASKING, adamw, schedule, tiny_model, tiny_training

TPU = parse_topology("v3-32")
LAYOUT = MeshConfig("data:4;model:2", "batch:data;vocab:model")


def make_run(**training):
    return PretrainConfig(
        model=tiny_model(),
        mesh=MeshConfig("all:32", "", "bfloat16"),
        masking=MASKING,
        optimizer=adamw(),
        schedule=schedule(),
        training=tiny_training(**{"batch_size": 64, **training}),
    )


def make_plan(gibibytes, seconds, run=None):
    memory = MemoryUse(0, 0, 0, int(gibibytes * GIB), 0, [])
    assumed = PlanConfig(efficiency=0.4, memory_share=0.5)
    times = Times(seconds, 0.0, 0.0)
    return Plan(TPU, run or make_run(), assumed, memory, 0, [], times, [], 0)


@pytest.fixture(autouse=True)
def without_graphs(monkeypatch):
    """All plans are alike, so that the first is the best."""
    monkeypatch.setattr(comparison.console, "track", lambda each, _: each)
    monkeypatch.setattr(comparison, "make_plan", lambda run, *_: make_plan(4, 1, run))


def planned_on(mesh_shape, layout_rules, batch_size=64):
    """The meshes that a layout is planned on."""
    changes = {"mesh_shape": mesh_shape, "layout_rules": layout_rules}
    layout = dataclasses.replace(LAYOUT, **changes)
    run = make_run(batch_size=batch_size)
    plans = compare_layouts([("layout", layout)], run, TPU, PlanConfig())
    meshes = [plan.run.mesh for plan in plans]
    # All settings but the layout are the run's own.
    assert {mesh.activation_dtype for mesh in meshes} == {"bfloat16"}
    return [mesh.mesh_shape for mesh in meshes]


def test_one_core_has_no_layout_of_two_axes(capsys):
    one = parse_topology("v5e-1")
    layouts = [("one", MeshConfig("data:8", "batch:data")), ("two", LAYOUT)]
    [plan] = compare_layouts(layouts, make_run(), one, PlanConfig())
    assert plan.run.mesh.mesh_shape == "data:1"
    said = capsys.readouterr().out
    assert "cannot be: two: its mesh has an axis 'model' of 2 or more" in said
    with pytest.raises(UserError, match="none can be on v5e-1: two: its mesh has"):
        compare_layouts(layouts[1:], make_run(), one, PlanConfig())


def test_a_layout_is_planned_on_every_mesh_that_divides_the_model(capsys):
    # 48 pieces; 64 sequences.
    assert planned_on("data:4;model:2", "batch:data;vocab:model") == [
        "data:16;model:2", "data:8;model:4", "data:4;model:8", "data:2;model:16",
    ]  # fmt: skip
    assert "best: MeshConfig.mesh_shape = 'data:16;model:2'" in capsys.readouterr().out
    assert planned_on("data:8", "batch:data") == ["data:32"]


@pytest.mark.parametrize(
    "shape, rules, said",
    [
        ("model:2", "heads:model", "'heads' of size 4 does not divide into 32 parts"),
        ("data:8", "", "no rule splits anything over mesh axis 'data', so"),
        ("data:4;model:2", "batch:data;hidden:model;heads:model", "split one tensor"),
        ("a:2;b:2;model:2", "batch:a", "plan this one without --layouts"),
    ],
)
def test_a_layout_that_cannot_be_says_why(shape, rules, said):
    with pytest.raises(UserError, match=said):
        planned_on(shape, rules)


def test_the_best_is_the_quickest_that_fits_or_else_the_smallest():
    small, quick, large = make_plan(4, 2.0), make_plan(7, 1.0), make_plan(9, 0.5)
    assert [p.fits for p in (small, quick, large)] == [True, True, False]
    assert select_plan([small, quick, large]) is quick
    assert select_plan([large, make_plan(12, 0.1)]) is large
