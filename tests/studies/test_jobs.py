"""Folders, commands and needs of a sweep's jobs."""

import dataclasses
import itertools
import json
import os

import pytest

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.made_from import hash_files
from decoupled.launch import gin_files
from decoupled.studies.jobs import (
    Inputs,
    Job,
    Row,
    check_jobs,
    complete_jobs,
    describe,
    make_jobs,
    make_rows,
    read_row,
    record_fingerprint,
)
from decoupled.studies.results import read_description
from decoupled.tasks.presets import INDEX, TASKS
from tests.helpers import tiny_model

SWEEP = SweepConfig(
    title="A table",
    rows=("coupled", "e_out_128"),
    keep_layers={"e_out_128": 1},
    tasks=("xnli", "catalogs"),
    seeds=(0, 5),
    finetuning_runs=2,
    task_files={"*": "tasks/table_10.gin", "catalogs": ""},
    pretraining=("ScheduleConfig.train_steps = 3",),
    finetuning=("FinetuningConfig.num_epochs = 1",),
)
INPUTS = Inputs("R", "V", {"xnli": "D", "catalogs": "C"})
MODEL = tiny_model(max_positions=512)
ROWS = [Row("coupled", MODEL, 0), Row("e_out_128", MODEL, 1)]


@pytest.fixture
def jobs(tmp_path):
    made = make_jobs(SWEEP, ROWS, INPUTS, str(tmp_path))
    return {job.name: job for job in made}


def test_models_are_scaled_and_so_are_the_layers_that_are_kept():
    sweep = dataclasses.replace(SWEEP, keep_layers={"e_out_128": 6})
    scale = ScaleConfig(width_divisor=8, head_size_divisor=4, depth_divisor=4)
    coupled, small = make_rows(sweep, sweep.rows, scale, 77)
    assert (coupled.name, coupled.model.hidden_size) == ("coupled", 96)
    assert (coupled.model.vocab_size, coupled.keep_layers) == (77, 0)
    assert (small.model.num_layers, small.keep_layers) == (3, 2)


def test_the_folder_tells_tables_what_they_need(jobs, tmp_path):
    waiting = [job._replace(reads=()) for job in list(jobs.values())[:2]]
    end_well(waiting[0])
    describe(str(tmp_path), SWEEP, ScaleConfig(), "paper", ROWS, waiting)
    described = read_description(str(tmp_path))
    assert (described["title"], described["scale"]) == ("A table", "paper")
    assert described["divisors"]["width_divisor"] == 1
    assert described["tasks"] == ["xnli", "catalogs"] and described["seeds"] == [0, 5]
    assert [read_row(entry) for entry in described["rows"]] == ROWS
    settings = described["settings"]
    assert settings["finetuning on xnli"] == "tasks/table_10.gin"
    assert settings["pretraining of coupled"] == []
    # Only what has a record could be taken for a result.
    of_first = record_fingerprint(waiting[0].folder)
    assert described["outdated"] == {waiting[0].name: of_first}


def test_every_model_seed_and_task_is_a_job_after_what_it_needs(jobs):
    assert list(jobs)[:6] == [
        "models/coupled/seed_0",
        "tasks/xnli/coupled/seed_0",
        "tasks/catalogs/coupled/seed_0",
        "models/e_out_128/seed_0",
        "tasks/xnli/e_out_128/seed_0",
        "tasks/catalogs/e_out_128/seed_0",
    ]
    assert len(jobs) == 12
    seen = set()
    for job in jobs.values():
        assert seen.issuperset(job.needs)
        seen.add(job.name)


def test_pretraining(jobs, tmp_path):
    job = jobs["models/coupled/seed_5"]
    assert job.kind == "pretrain" and job.needs == ()
    assert job.folder == f"{tmp_path}/models/coupled/seed_5"
    assert "--gin_file=models/coupled.gin" in job.arguments
    hidden = tiny_model().hidden_size
    assert f"--gin_param=ModelConfig.hidden_size = {hidden}" in job.arguments
    assert "--gin_param=ScheduleConfig.train_steps = 3" in job.arguments
    assert "--gin_param=TrainingConfig.seed = 5" in job.arguments
    assert f"--model_dir={job.folder}" in job.arguments


def test_finetuning(jobs, tmp_path):
    job = jobs["tasks/xnli/e_out_128/seed_0"]
    assert job.kind == "finetune" and job.needs == ("models/e_out_128/seed_0",)
    assert "--gin_file=tasks/table_10.gin" in job.arguments
    assert "--gin_param=FinetuningConfig.keep_layers = 1" in job.arguments
    assert "--num_runs=2" in job.arguments
    assert "--data_dir=D" in job.arguments
    assert f"--init_checkpoint={tmp_path}/models/e_out_128/seed_0" in job.arguments


def test_a_task_without_a_gin_file(jobs):
    job = jobs["tasks/catalogs/coupled/seed_0"]
    assert not any(word.startswith("--gin_file") for word in job.arguments)
    assert "--data_dir=C" in job.arguments


def end_well(job, seconds=1.0):
    """The job leaves results and is recorded."""
    files.make_folder(os.path.dirname(job.result))
    if not files.exists(job.result):
        files.write_json(job.result, {})
    job.record(seconds, job.made_from())


def test_a_job_is_complete_once_this_command_ended_well(tmp_path):
    job = Job("pretrain", "a", str(tmp_path), ("--x=1",), ())
    assert not job.is_complete()
    end_well(job, 1.26)
    assert job.is_complete()
    assert json.loads((tmp_path / "job.json").read_text())["seconds"] == 1.3
    assert not job._replace(arguments=("--x=2",)).is_complete()


@pytest.mark.parametrize(
    "kind, name",
    [
        ("pretrain", "eval.json"),
        ("finetune", "results.json"),
        ("convert", "model/conversion.json"),
        ("analyze", "neighbours.json"),
    ],
)
def test_a_job_is_not_complete_once_its_results_are_gone(kind, name, tmp_path):
    job = Job(kind, "a", str(tmp_path), ("neighbours",), ())
    end_well(job)
    assert job.is_complete()
    (tmp_path / name).unlink()
    assert job.changes() == [f"{tmp_path / name} is gone"] and not job.is_complete()


def change(path):
    """Another content of the same size, with the same time of the last change."""
    stamp, text = path.stat().st_mtime_ns, path.read_text()
    path.write_text(text[::-1])
    os.utime(path, ns=(stamp, stamp))


def test_a_job_is_not_complete_once_a_file_that_it_read_has_changed(tmp_path):
    (tmp_path / "records").mkdir()
    manifest, vocabulary = tmp_path / "records" / "manifest.json", tmp_path / "pieces"
    manifest.write_text("ab")
    vocabulary.write_text("cd")
    reads = (str(manifest.parent), str(vocabulary))
    job = Job("pretrain", "a", str(tmp_path), (), (), reads)
    end_well(job)
    assert job.is_complete() and complete_jobs([job]) == [job]
    for path in (manifest, vocabulary):
        change(path)
        assert job.changes() == [f"{path} has changed"]
        assert complete_jobs([job]) == []
        change(path)
        assert job.is_complete()


def test_what_is_made_of_an_incomplete_model_is_not_complete(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    model = Job("pretrain", "first", str(first), ("a",), ())
    analysis = Job("analyze", "second", str(second), ("probing",), ("first",))
    end_well(model)
    end_well(analysis)
    assert complete_jobs([model, analysis]) == [model, analysis]
    other = model._replace(arguments=("b",))
    assert analysis.is_complete() and complete_jobs([other, analysis]) == []


def test_a_fine_tuning_is_not_complete_once_a_file_of_its_task_has_changed(tmp_path):
    test = tmp_path / "data" / "xnli" / "test-en.tsv"
    test.parent.mkdir(parents=True)
    test.write_text("ab")
    folder = str(tmp_path / "run")
    job = Job("finetune", "a", folder, (f"--data_dir={tmp_path}/data",), ())
    files.make_folder(folder)
    made_from = {"files": hash_files([str(test)], f"{tmp_path}/data")}
    files.write_json(f"{folder}/results.json", {"made_from": made_from})
    end_well(job)
    assert job.is_complete()
    change(test)
    assert job.changes() == ["xnli/test-en.tsv has changed"] and not job.is_complete()
    change(test)
    assert job.is_complete()
    test.unlink()
    assert job.changes() == ["xnli/test-en.tsv is gone"]


@pytest.mark.parametrize(
    "task, pattern",
    [
        (name, pattern)
        for name, task in TASKS.items()
        for pattern in dict.fromkeys(itertools.chain(*task.files.values()))
    ],
)
def test_a_fine_tuning_is_not_complete_once_its_task_has_a_new_file(
    task, pattern, tmp_path
):
    data = tmp_path / "data"
    arguments = (f"--task={task}", f"--data_dir={data}")
    job = Job("finetune", "a", str(tmp_path / "run"), arguments, ())
    end_well(job)
    for place, new in {"language": "sw", "name": "swahili", "any": "128"}.items():
        pattern = pattern.replace(f"{{{place}}}", new)
    unrelated, file = f"{pattern}.part", pattern.removesuffix(INDEX)
    for name in dict.fromkeys((unrelated, file, pattern)):
        assert job.is_complete()
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("ab")
    assert job.changes() == [f"the list of {task} files in {data} has changed"]
    assert not job.is_complete()
    end_well(job)
    assert job.is_complete()


def test_a_job_follows_the_gin_files_that_its_settings_come_from(tmp_path):
    base, row = tmp_path / "base.gin", tmp_path / "row.gin"
    base.write_text("A = 1\n")
    row.write_text(f"include '{base}'\nB = 2\n")
    job = Job("pretrain", "a", str(tmp_path), (f"--gin_file={row}",), ())
    end_well(job)
    assert job.is_complete()
    base.write_text("A = 3\n")
    assert job.changes() == [f"{base} has changed"]


def test_a_package_in_another_folder_leaves_jobs_complete(tmp_path, monkeypatch):
    job = Job("pretrain", "a", str(tmp_path / "a"), ("--gin_file=row.gin",), ())
    files.make_folder(job.folder)
    for place in ("before", "after"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "row.gin").write_text("B = 2\n")
        folder = str(tmp_path / place)
        monkeypatch.setattr(gin_files, "packaged_folder", lambda folder=folder: folder)
        if place == "before":
            end_well(job)
        assert job.is_complete()
    (tmp_path / "after" / "row.gin").write_text("B = 3\n")
    assert job.changes() == ["row.gin has changed"]


def test_a_fine_tuning_follows_the_weights_that_it_began_from(jobs, tmp_path):
    job = jobs["tasks/xnli/coupled/seed_0"]
    model = tmp_path / "models" / "coupled" / "seed_0"
    model.mkdir(parents=True)
    for name in ("checkpoint", "model.ckpt-3.index"):
        (model / name).write_text("ab")
    end_well(job)
    change(model / "model.ckpt-3.index")
    assert job.changes() == [f"{model}/model.ckpt-3.index has changed"]


def test_results_of_a_job_name_no_file_outside_its_data(tmp_path):
    job = Job("finetune", "a", str(tmp_path), (f"--data_dir={tmp_path}",), ())
    made_from = {"files": {"../secret": "ab"}}
    files.write_json(f"{tmp_path}/results.json", {"made_from": made_from})
    with pytest.raises(UserError, match="is not the name of a file below"):
        job.changes()


@pytest.mark.parametrize("damaged", [[], {"made_from": {}, "arguments": None}])
@pytest.mark.parametrize("results", [[], {"made_from": []}, {"made_from": {"a": 1}}])
def test_a_job_with_damaged_files_is_not_complete(tmp_path, damaged, results):
    job = Job("finetune", "a", str(tmp_path), (f"--data_dir={tmp_path}",), ())
    files.write_json(f"{tmp_path}/job.json", damaged)
    files.write_json(f"{tmp_path}/results.json", results)
    assert not job.is_complete() and job.conflicts() == []


@pytest.mark.parametrize("content", [[], {"made_from": 3}, {"made_from": {}}])
def test_a_job_with_damaged_results_is_not_complete(tmp_path, content):
    job = Job("finetune", "a", str(tmp_path), (f"--data_dir={tmp_path}",), ())
    files.write_json(f"{tmp_path}/results.json", content)
    end_well(job)
    assert job.changes() == ["it does not say from which files it was computed"]
    assert not job.is_complete()


def test_a_job_of_before_files_were_recorded_is_complete(tmp_path):
    job = Job("pretrain", "a", str(tmp_path), ("--x",), (), (str(tmp_path),))
    files.write_json(f"{tmp_path}/job.json", {"arguments": ["--x"], "seconds": 1.0})
    files.write_json(job.result, {})
    assert job.is_complete()


def test_a_sweep_without_tasks_is_pretraining_alone(tmp_path):
    sweep = dataclasses.replace(SWEEP, tasks=())
    made = make_jobs(sweep, ROWS, INPUTS, str(tmp_path))
    assert [job.kind for job in made] == ["pretrain"] * 4


@pytest.mark.parametrize(
    "changes, mistake",
    [
        ({"pretraining": ("import os",)}, "models/.*: 'import os' would run code"),
        (
            {"pretraining": ("TrainingConfig.batch_size = @os.getpid()",)},
            "models/.*: no configurable named 'os.getpid'",
        ),
        (
            {"finetuning": ("TrainingConfig.sead = 1",)},
            "tasks/xnli/.*: TrainingConfig has no parameter 'sead'",
        ),
        ({"task_files": {"*": "{task}.gni"}}, r"tasks/xnli/.*: xnli\.gni: no such gin"),
        (
            {"models": {"coupled": ("coupled", "OptimizerConfig.rate = 1")}},
            "models/.*: OptimizerConfig has no parameter 'rate'",
        ),
    ],
)
def test_settings_that_jobs_would_refuse_are_refused_first(changes, mistake, tmp_path):
    sweep = dataclasses.replace(SWEEP, **changes)
    made = make_jobs(sweep, ROWS, INPUTS, str(tmp_path))
    with pytest.raises(UserError, match=mistake):
        check_jobs(made)


def test_a_task_is_put_into_the_name_of_its_file_and_nothing_else_is(tmp_path):
    pattern = f"{tmp_path}/{{task.__class__}}_{{task}}.gin"
    for task in SWEEP.tasks:
        (tmp_path / f"{{task.__class__}}_{task}.gin").touch()
    sweep = dataclasses.replace(SWEEP, task_files={"*": pattern})
    job = make_jobs(sweep, ROWS, INPUTS, str(tmp_path))[1]
    assert f"--gin_file={tmp_path}/{{task.__class__}}_xnli.gin" in job.arguments


def test_a_row_has_settings_of_its_pre_training_too(tmp_path):
    settings = (
        "coupled",
        "ModelConfig.num_layers = 6",
        "OptimizerConfig.rates = {'*': 2}",
    )
    sweep = dataclasses.replace(SWEEP, rows=("twice",), keep_layers={}, tasks=(),
                                models={"twice": settings})  # fmt: skip
    [row] = make_rows(sweep, sweep.rows, ScaleConfig(), 48)
    assert row.model.num_layers == 6
    arguments = make_jobs(sweep, [row], INPUTS, str(tmp_path))[0].arguments
    assert "--gin_param=OptimizerConfig.rates = {'*': 2}" in arguments
    assert arguments.count("--gin_param=ModelConfig.num_layers = 6") == 1


def test_a_job_of_before_there_was_a_setting_is_complete(jobs, tmp_path):
    new = "--gin_param=ModelConfig.project_equal_output_widths = False"
    job = jobs["models/coupled/seed_0"]._replace(reads=())
    os.makedirs(job.folder)
    assert new in job.arguments
    before = job._replace(arguments=tuple(x for x in job.arguments if x != new))
    end_well(before)
    assert job.is_complete() and job.has_settings() and not job.conflicts()
    projected = tuple(
        x.replace("False", "True") if x == new else x for x in job.arguments
    )
    assert not job._replace(arguments=projected).is_complete()


@pytest.mark.parametrize("rank", [0, 8])
def test_a_job_with_a_setting_that_is_gone_is_complete_if_it_was_off(
    jobs, tmp_path, rank
):
    job = jobs["models/coupled/seed_0"]._replace(reads=())
    os.makedirs(job.folder)
    gone = f"--gin_param=ModelConfig.output_embedding_rank = {rank}"
    end_well(job._replace(arguments=(*job.arguments, gone)))
    assert job.is_complete() == job.has_settings() == (rank == 0)


def test_settings_of_a_sweep_may_bind_macros_and_what_the_command_takes(tmp_path):
    mesh = "finetune.mesh = @a/MeshConfig()"
    settings = ("R = 2", mesh, "TrainingConfig.batch_size = %R")
    sweep = dataclasses.replace(SWEEP, finetuning=settings)
    check_jobs(make_jobs(sweep, ROWS, INPUTS, str(tmp_path)))
