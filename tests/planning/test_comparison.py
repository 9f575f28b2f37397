"""Which layouts and settings are tried, and which wins. No graph is built."""

import pytest

from decoupled.configs import MeshConfig, PlanConfig, PretrainConfig
from decoupled.core.errors import UserError
from decoupled.planning.comparison import best, candidates, levers
from decoupled.planning.costs import Memory
from decoupled.planning.hardware import GIB, parse_topology
from decoupled.planning.plan import Plan, Times, with_mesh
from tests.helpers import MASKING, adamw, schedule, tiny_model, tiny_training

TPU = parse_topology("v3-32")
LAYOUT = MeshConfig(
    "data:4;model:2", "batch:data;vocab:model", "float32", "gather", "float32", 128
)


def make_run(**training):
    return PretrainConfig(
        model=tiny_model(),
        mesh=MeshConfig("all:32", "", "bfloat16", "gather", "float32", 128),
        masking=MASKING,
        optimizer=adamw(),
        schedule=schedule(),
        training=tiny_training(**{"batch_size": 64, **training}),
    )


def make_plan(gibibytes, seconds, run=None):
    memory = Memory(0, 0, 0, int(gibibytes * GIB), 0, [])
    assumed = PlanConfig(efficiency=0.4, memory_share=0.5)
    times = Times(seconds, 0.0, 0.0)
    return Plan(TPU, run or make_run(), assumed, memory, 0, [], times, [], 0, 0, 0)


def test_every_size_of_the_model_axis_that_divides_the_vocabulary():
    found = candidates("embedding", LAYOUT, make_run(), TPU)
    shapes = [candidate.run.mesh.mesh_shape for candidate in found]
    # 48 pieces; 64 sequences.
    assert shapes == [
        "data:16;model:2", "data:8;model:4", "data:4;model:8", "data:2;model:16",
    ]  # fmt: skip
    assert {c.run.mesh.layout_rules for c in found} == {"batch:data;vocab:model"}
    assert {c.run.mesh.activation_dtype for c in found} == {"bfloat16"}
    assert {c.reason for c in found} == {""}


def test_one_axis_takes_all_cores():
    layout = MeshConfig("data:8", "batch:data", "float32", "gather", "float32", 128)
    (only,) = candidates("data", layout, make_run(), TPU)
    assert only.run.mesh.mesh_shape == "data:32"


def test_a_layout_that_cannot_be_says_why():
    layout = MeshConfig("model:2", "heads:model", "float32", "gather", "float32", 128)
    (only,) = candidates("heads", layout, make_run(), TPU)
    assert only.reason == "dimension 'heads' of size 4 does not divide into 32 parts"


def test_a_layout_without_rules_cannot_be():
    layout = MeshConfig("data:8", "", "float32", "gather", "float32", 128)
    (only,) = candidates("none", layout, make_run(), TPU)
    assert only.reason.startswith("no rule splits anything over mesh axis 'data', so")


def test_three_axes_are_planned_as_they_are():
    layout = MeshConfig(
        "a:2;b:2;model:2", "batch:a", "float32", "gather", "float32", 128
    )
    with pytest.raises(UserError, match="plan this one without --layouts"):
        candidates("three", layout, make_run(), TPU)


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
    run = with_mesh(make_run(), mesh_shape="data:32", layout_rules="batch:data")
    plan = make_plan(20, 1.0, run)
    return plan._replace(memory=plan.memory._replace(**memory))


def test_what_saves_memory_the_cheapest_in_time_first():
    found = list(levers(large_plan()))
    # Of 64 sequences every core has 2, so that 2 microbatches are the most.
    assert [[lever.settings for lever in series] for series in found] == [
        [(HALVES,)],
        [(RECOMPUTE,), (RECOMPUTE, HALVES)],
        [(SLICES,), (SLICES, HALVES)],
        [(SLICES, RECOMPUTE), (SLICES, RECOMPUTE, HALVES)],
        [ADAFACTOR, (*ADAFACTOR, HALVES)],
        [(*ADAFACTOR, RECOMPUTE), (*ADAFACTOR, RECOMPUTE, HALVES)],
        [(*ADAFACTOR, SLICES), (*ADAFACTOR, SLICES, HALVES)],
        [
            (*ADAFACTOR, SLICES, RECOMPUTE),
            (*ADAFACTOR, SLICES, RECOMPUTE, HALVES),
        ],
    ]
    both = found[1][1].run.training
    assert (both.recompute_layers, both.gradient_accumulation) == (True, 2)
    dtypes = [series[0].run.mesh.slice_dtype for series in found]
    assert dtypes == (["float32"] * 2 + ["bfloat16"] * 2) * 2
    names = [series[0].run.optimizer.name for series in found]
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
    assert next(levers(plan))[0].settings[0] == setting
