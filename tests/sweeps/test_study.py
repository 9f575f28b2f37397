"""What a reproduction adds to a sweep, and what makes a sweep longer."""

import dataclasses

import pytest

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.core.errors import UserError
from decoupled.sweeps.jobs import Inputs, Row
from decoupled.sweeps.study import (
    Analysis,
    Study,
    kept_layers,
    larger,
    make_study_jobs,
)
from tests.helpers import tiny_model

SWEEP = SweepConfig(
    title="A table",
    rows=("coupled", "e_out_128"),
    keep_layers={},
    tasks=("catalogs",),
    seeds=(0, 5),
    finetuning_runs=1,
    task_files={"*": ""},
    pretraining=(
        "OptimizerConfig.learning_rate = 2e-3",
        "ScheduleConfig.train_steps = 1500",
        "ScheduleConfig.warmup_steps = 150",
    ),
    finetuning=("FinetuningConfig.num_epochs = 1",),
)
MINI = ScaleConfig(width_divisor=8, head_size_divisor=4, depth_divisor=4)


@pytest.fixture
def jobs():
    deep = tiny_model(num_layers=3)
    rows = [Row("coupled", deep, 0), Row("e_out_128", deep, 0)]
    analyses = {
        "spectrum": Analysis(),
        "neighbours": Analysis(("--x=1",)),
        "probing": Analysis(rows=("e_out_128", "e_out_768")),
    }
    study = Study(("e_out_128",), 2, ("coupled",), analyses)
    return make_study_jobs(SWEEP, rows, Inputs("R", "V", {"catalogs": "D"}), "S", study)


def test_all_of_a_seed_comes_before_the_next(jobs):
    names = [job.name for job in jobs]
    assert names[:11] == [
        "models/coupled/seed_0",
        "tasks/catalogs/coupled/seed_0",
        "models/e_out_128/seed_0",
        "tasks/catalogs/e_out_128/seed_0",
        "layer_drop/catalogs/e_out_128/keep_1/seed_0",
        "layer_drop/catalogs/e_out_128/keep_2/seed_0",
        "control/models/coupled/seed_0",
        "control/tasks/catalogs/coupled/seed_0",
        "analyses/spectrum/seed_0",
        "analyses/neighbours/seed_0",
        "analyses/probing/seed_0",
    ]
    assert [name.replace("seed_0", "seed_5") for name in names[:11]] == names[11:]


def test_dropped_layers_are_all_that_differs(jobs):
    by_name = {job.name: job for job in jobs}
    all_layers = by_name["tasks/catalogs/e_out_128/seed_0"]
    two = by_name["layer_drop/catalogs/e_out_128/keep_2/seed_0"]
    assert two.needs == all_layers.needs == ("models/e_out_128/seed_0",)
    assert set(two.arguments) - set(all_layers.arguments) == {
        "--gin_param=FinetuningConfig.keep_layers = 2",
        "--model_dir=S/layer_drop/catalogs/e_out_128/keep_2/seed_0",
    }
    assert len(two.arguments) == len(all_layers.arguments)


def test_a_control_has_one_step_of_pretraining(jobs):
    by_name = {job.name: job for job in jobs}
    model = by_name["control/models/coupled/seed_0"]
    trained = by_name["models/coupled/seed_0"]
    assert set(model.arguments) - set(trained.arguments) == {
        "--gin_param=ScheduleConfig.train_steps = 1",
        "--gin_param=ScheduleConfig.warmup_steps = 0",
        "--model_dir=S/control/models/coupled/seed_0",
    }
    # After those of the sweep, which they replace.
    steps = [word for word in model.arguments if "train_steps" in word]
    assert steps[-1].endswith("= 1")
    task = by_name["control/tasks/catalogs/coupled/seed_0"]
    assert task.needs == ("control/models/coupled/seed_0",)
    assert set(task.arguments) - set(
        by_name["tasks/catalogs/coupled/seed_0"].arguments
    ) == {
        "--init_checkpoint=S/control/models/coupled/seed_0",
        "--model_dir=S/control/tasks/catalogs/coupled/seed_0",
    }


def test_an_analysis_sees_all_models_of_its_seed(jobs):
    job = next(job for job in jobs if job.name == "analyses/neighbours/seed_5")
    assert job.kind == "analyze"
    assert job.arguments == (
        "neighbours",
        "--model_dir=S/models/coupled/seed_5",
        "--model_dir=S/models/e_out_128/seed_5",
        "--x=1",
        "--output_dir=S/analyses/neighbours/seed_5",
    )
    assert job.needs == ("models/coupled/seed_5", "models/e_out_128/seed_5")


def test_an_analysis_of_some_models_sees_those_that_the_sweep_has(jobs):
    job = next(job for job in jobs if job.name == "analyses/probing/seed_5")
    assert job.needs == ("models/e_out_128/seed_5",)
    assert [word for word in job.arguments if word.startswith("--model_dir=")] == [
        "--model_dir=S/models/e_out_128/seed_5"
    ]


@pytest.mark.parametrize(
    "layers,most,kept",
    [(3, 2, [1, 2]), (12, 4, [8, 9, 10, 11]), (2, 4, [1]), (1, 2, [])],
)
def test_at_least_one_layer_is_kept(layers, most, kept):
    assert list(kept_layers(layers, most)) == kept


def test_size_one_changes_nothing():
    assert larger(SWEEP, MINI, 1.0) == (SWEEP, MINI)


@pytest.mark.parametrize(
    "size,steps,warmup,width,head",
    [
        (0.02, 30, 3, 8, 4),
        (1.5, 2250, 225, 8, 4),
        (2, 3000, 300, 4, 2),
        (5, 7500, 750, 2, 1),
        (100, 150000, 15000, 1, 1),
    ],
)
def test_size_multiplies_steps_and_widths(size, steps, warmup, width, head):
    sweep, scale = larger(SWEEP, MINI, size)
    assert sweep.pretraining == (
        "OptimizerConfig.learning_rate = 2e-3",
        f"ScheduleConfig.train_steps = {steps}",
        f"ScheduleConfig.warmup_steps = {warmup}",
    )
    assert scale == ScaleConfig(width, head, 4)


@pytest.mark.parametrize(
    "size,pretraining,message",
    [(0, SWEEP.pretraining, "must be above 0"), (2, (), "sets no ScheduleConfig")],
)
def test_a_size_that_cannot_be(size, pretraining, message):
    with pytest.raises(UserError, match=message):
        larger(dataclasses.replace(SWEEP, pretraining=pretraining), MINI, size)
