"""Which layouts and settings are tried, and which wins. No graph is built."""

import dataclasses

import pytest

from decoupled.configs import MeshConfig, PlanConfig, PretrainConfig
from decoupled.core.errors import UserError
from decoupled.planning import comparison
from decoupled.planning.comparison import (
    Option,
    best,
    compare_layouts,
    options_that_save_memory,
)
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
    return Plan(TPU, run or make_run(), assumed, memory, 0, [], times, [], 0, 0, 0)


def planned_on(monkeypatch, mesh_shape, layout_rules, batch_size=64):
    """The meshes that a layout is planned on; the best is the first."""
    monkeypatch.setattr(comparison.console, "track", lambda each, _: each)
    meshes = []

    def make(run):
        meshes.append(run.mesh)
        return make_plan(4, len(meshes), run)

    changes = {"mesh_shape": mesh_shape, "layout_rules": layout_rules}
    layout = dataclasses.replace(LAYOUT, **changes)
    run = make_run(batch_size=batch_size)
    chosen = compare_layouts([("layout", layout)], run, TPU, make)
    assert chosen.run.mesh == meshes[0]
    # All settings but the layout are the run's own.
    assert {mesh.activation_dtype for mesh in meshes} == {"bfloat16"}
    return [mesh.mesh_shape for mesh in meshes]


def test_a_layout_is_planned_on_every_mesh_that_divides_the_model(monkeypatch):
    # 48 pieces; 64 sequences.
    assert planned_on(monkeypatch, "data:4;model:2", "batch:data;vocab:model") == [
        "data:16;model:2", "data:8;model:4", "data:4;model:8", "data:2;model:16",
    ]  # fmt: skip
    assert planned_on(monkeypatch, "data:8", "batch:data") == ["data:32"]


@pytest.mark.parametrize(
    "shape, rules, said",
    [
        ("model:2", "heads:model", "'heads' of size 4 does not divide into 32 parts"),
        ("data:8", "", "no rule splits anything over mesh axis 'data', so"),
        ("a:2;b:2;model:2", "batch:a", "plan this one without --layouts"),
    ],
)
def test_a_layout_that_cannot_be_says_why(monkeypatch, shape, rules, said):
    with pytest.raises(UserError, match=said):
        planned_on(monkeypatch, shape, rules)


def test_the_best_is_the_quickest_that_fits_or_else_the_smallest():
    small, quick, large = make_plan(4, 2.0), make_plan(7, 1.0), make_plan(9, 0.5)
    assert [p.fits for p in (small, quick, large)] == [True, True, False]
    assert best([small, quick, large]) is quick
    assert best([large, make_plan(12, 0.1)]) is large


RECOMPUTE = "TrainingConfig.recompute_layers = True"
SLICES = "MeshConfig.slice_dtype = 'bfloat16'"
HALVES = "TrainingConfig.gradient_accumulation = 2"
ADAFACTOR = (
    "OptimizerConfig.name = 'adafactor'",
    "OptimizerConfig.weight_decay = 0.0",
    "OptimizerConfig.beta1 = 0.0",
)


def large_plan(**memory):
    option = Option((), make_run()).with_settings(
        "mesh", mesh_shape="data:32", layout_rules="batch:data"
    )
    plan = make_plan(20, 1.0, option.run)
    return plan._replace(memory=plan.memory._replace(**memory))


def test_what_saves_memory_the_cheapest_in_time_first():
    result = list(options_that_save_memory(large_plan()))
    # Of 64 sequences every core has 2, so that 2 microbatches are the most.
    assert [[option.settings for option in series] for series in result] == [
        [(HALVES,)],
        [(RECOMPUTE,), (RECOMPUTE, HALVES)],
        [(SLICES,), (SLICES, HALVES)],
        [(SLICES, RECOMPUTE), (SLICES, RECOMPUTE, HALVES)],
        [ADAFACTOR, (*ADAFACTOR, HALVES)],
        [(*ADAFACTOR, RECOMPUTE), (*ADAFACTOR, RECOMPUTE, HALVES)],
        [(*ADAFACTOR, SLICES), (*ADAFACTOR, SLICES, HALVES)],
        [(*ADAFACTOR, SLICES, RECOMPUTE), (*ADAFACTOR, SLICES, RECOMPUTE, HALVES)],
    ]
    both = result[1][1].run.training
    assert (both.recompute_layers, both.gradient_accumulation) == (True, 2)
    dtypes = [series[0].run.mesh.slice_dtype for series in result]
    assert dtypes == (["float32"] * 2 + ["bfloat16"] * 2) * 2
    names = [series[0].run.optimizer.name for series in result]
    assert names == ["adamw"] * 4 + ["adafactor"] * 4


@pytest.mark.parametrize(
    "gradients, setting",
    [
        # 8 GiB are usable.
        (4, HALVES),
        (5, SLICES),
        (7, ADAFACTOR[0]),
    ],
)
def test_weights_that_are_too_large_are_made_smaller_first(gradients, setting):
    plan = large_plan(weights=3 * GIB, all_gradients=gradients * GIB)
    assert next(options_that_save_memory(plan))[0].settings[0] == setting
