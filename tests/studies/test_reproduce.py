"""A reproduction goes on where it was stopped, and checks everything first."""

import dataclasses
import json
import os

import pytest

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.machine import Processor
from decoupled.studies import reproduce as run
from decoupled.studies import runner
from decoupled.studies.jobs import LOG
from decoupled.studies.reproduce import Options
from decoupled.studies.study_jobs import StudyJobs, sized


@pytest.fixture
def made(folders, monkeypatch):
    """The flags of a reproduction whose data are there and whose document is not
    written: the list has an entry for each time that it would be."""
    written = []
    monkeypatch.setattr(run, "make_data", lambda *_: None)
    monkeypatch.setattr(run, "choose_languages", lambda *_: ["en", "de"])
    monkeypatch.setattr(run, "write", lambda *_: written.append(1))
    monkeypatch.setattr(runner, "_POLL", 0.01)
    options = Options(
        folders.work_dir,
        data_dir=folders.data_dir,
        gin_file=["sweeps/reproduce_first.gin"],
        gin_param=["SweepConfig.seeds = (0, 1)"],
    )
    return options, written


class Ended:
    """A process that has ended, as a runner sees it."""

    def __init__(self, code):
        self._code = code

    def poll(self):
        return self._code


def commands(monkeypatch, *broken):
    """Every job ends at once and has results; those of these models fail."""

    def start(job, cores, _):
        files.make_folder(os.path.dirname(job.result))
        files.write_json(job.result, {})
        fails = any(name in job.folder for name in broken)
        files.write_text(os.path.join(job.folder, LOG), "no disk\n" if fails else "")
        return Ended(int(fails))

    monkeypatch.setattr(runner, "start_job", start)


def test_a_task_that_cannot_be_scored_is_refused_before_a_job(
    made, folders, monkeypatch, capsys
):
    """XTREME's preprocessing removes the tags of test files."""
    options, _ = made
    commands(monkeypatch)
    path = os.path.join(folders.data_dir, "xtreme/udpos/test-en.tsv")
    files.write_text(path, "Go\n")
    with pytest.raises(UserError, match="udpos: no test file can be .*'Go' is not a"):
        run.run(options, [])
    os.remove(path)
    with pytest.raises(UserError, match="udpos: no test file can be .*there is none"):
        run.run(options, [])
    assert names_started(capsys.readouterr().out) == []
    # Learning rates are chosen by held-out loss.
    assert run.run(options._replace(rates=True), [])


def names_started(shown):
    return [line.split()[1] for line in shown.splitlines() if line.startswith("start")]


def test_complete_jobs_are_not_repeated_and_failures_are_named(
    made, monkeypatch, capsys
):
    options, written = made
    commands(monkeypatch, "models/e_small/seed_1")
    assert not run.run(options, [])
    shown = capsys.readouterr().out
    first = names_started(shown)
    # Both seeds of three rows; all jobs that need the failed ones are left out.
    assert (
        "models/e_small/seed_0" in first and "tasks/udpos/e_small/seed_1" not in first
    )
    assert "models/e_small/seed_1" in shown and "no disk" in shown
    # What is complete is written although a job failed.
    assert len(written) == 1

    commands(monkeypatch)
    assert run.run(options, [])
    shown = capsys.readouterr().out
    again = names_started(shown)
    assert again[0] in ("models/e_small/seed_1", "control/models/e_small/seed_1")
    assert not set(first) & set(again) - {again[0], "control/models/e_small/seed_1"}

    assert run.run(options, [])
    shown = capsys.readouterr().out
    assert "jobs; seeds: 0, 1\n" in shown
    assert names_started(shown) == [] and "jobs complete already" in shown


def test_a_document_of_nothing(tmp_path):
    options = Options(str(tmp_path / "w"))
    with pytest.raises(UserError, match="no data here yet; run the command without"):
        run.write(options, [])


@pytest.mark.parametrize("source", ["aligned", "text", "catalogs:django"])
def test_a_page_is_of_the_text_that_its_models_read(folders, tmp_path, source):
    path = os.path.join(folders.corpus, "manifest.json")
    files.write_json(path, files.read_json(path) | {"inputs": {"source": source}})
    kinds = {
        "aligned": (folders.data_dir, ()),
        "text": (folders.data_dir, ("en=a.txt",)),
        "catalogs:django": (None, ()),
    }
    for kind, (data_dir, text) in kinds.items():
        page = tmp_path / "page.md"
        options = Options(
            folders.work_dir,
            str(page),
            data_dir=data_dir,
            gin_param=[f"StudyConfig.text = {text}"],
        )
        message = "no job of" if kind == source else f"--data_dir: .* made of {source},"
        with pytest.raises(UserError, match=message):
            run.write(options, [])
        assert not page.exists()


def test_a_page_stays_where_no_job_is_complete(folders, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("results")
    options = Options(
        folders.work_dir,
        str(page),
        data_dir=folders.data_dir,
        gin_file=["sweeps/reproduce_first.gin"],
    )
    with pytest.raises(UserError, match="no job of this study is complete.*page.md st"):
        run.write(options, [])
    assert page.read_text() == "results"


@pytest.mark.parametrize(
    "setting, message",
    [
        ("claims = {'3': ()}", "no contrast decides '3'"),
        ("claims = {'3': ('S: e_large - e_small',)}", "has no rule; end it with one"),
        ("claims = {'3': ('T: e_large - e_small > 0',)}", "T is not among measures"),
        ("claims = {'3': ('S: e_larg - e_small > 0',)}", "e_larg is not among Sweep"),
        ("claims = {'3': ('S: e_large - e_large > 0',)}", "names a row twice"),
        ("secondary = (1,)", "1 is no string"),
        ("sensitivity = {'3': 5}", "5 is no string"),
        ("sensitivity = {'3': 'S: e_large'}", None),
    ],
)
def test_contrasts_that_decide_nothing_are_refused(setting, message):
    options = Options("w", gin_param=[f"StudyConfig.{setting}"])
    if message is None:
        run.configure(options)
        return
    with pytest.raises(UserError, match=message):
        run.configure(options)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("first_rows = ('unfolded',)", "unfolded goes on from trunk, which is not"),
        ("continued = {'unfolded': ('folded',)}", "unfolded needs folded before it"),
        ("continued = {'unfolded': ()}", "'unfolded' names no row that it goes on"),
    ],
)
def test_a_row_goes_on_from_one_that_is_run(setting, message):
    fold = ["sweeps/reproduce_fold.gin"]
    options = Options("w", gin_file=fold, gin_param=[f"StudyConfig.{setting}"])
    with pytest.raises(UserError, match=message):
        run.configure(options)


def test_the_page_and_its_folder_have_two_names():
    with pytest.raises(UserError, match="--document=results: end it with .md"):
        run.configure(Options("w", "results"))


def test_steps_are_read_in_any_spelling(root):
    steps = ("ScheduleConfig.train_steps=30", " ScheduleConfig.warmup_steps  = 4")
    sweep = dataclasses.replace(root.sweep, pretraining=steps)
    half = sized(dataclasses.replace(root, sweep=sweep), 0.5).sweep
    assert half.pretraining == (
        "ScheduleConfig.train_steps = 15",
        "ScheduleConfig.warmup_steps = 2",
    )
    assert run.train_steps(half.pretraining) == 15


def test_the_page_has_the_steps_that_rows_set_for_themselves(folders):
    for part, steps in (("reinvest", 3600), ("fold", 3000)):
        options = Options("w", size=4, gin_file=[f"sweeps/reproduce_{part}.gin"])
        maker = StudyJobs(run.configure(options), folders, "float32")
        assert run.facts_of(maker)["steps"] == steps


def test_settings_of_a_row_are_those_of_its_training(root, folders):
    models = dict(root.sweep.models)
    models["e_large"] = (*models["e_large"], "OptimizerConfig.beta1 = 0.5")
    sweep = dataclasses.replace(root.sweep, models=models)
    makers = [
        StudyJobs(dataclasses.replace(root, sweep=each), folders, "float32")
        for each in (root.sweep, sweep)
    ]
    before, now = (maker.training() for maker in makers)
    differing = [row for row in before if before[row] != now[row]]
    assert differing == ["e_large"]
    assert "OptimizerConfig.beta1 = 0.5" in now["e_large"]


def test_another_length_has_other_runs(folders):
    places = {
        size: Options(folders.work_dir, size=size).folders().runs
        for size in (0.5, 1, 2, 4, 8)
    }
    assert places[1] == places[4] == f"{folders.work_dir}/runs"
    assert places[2] == places[8] == f"{folders.work_dir}/runs_2"
    assert places[0.5] == f"{folders.work_dir}/runs_0.5"


def test_activations_keep_their_type_on_another_machine(tmp_path, monkeypatch):
    def on(*flags):
        this = Processor("a", "b", frozenset(flags))
        monkeypatch.setattr(run, "processor", lambda: this)
        return run.activation_dtype(str(tmp_path))

    assert on("avx2", "amx_bf16") == "bfloat16"
    assert on("avx2") == "bfloat16"
    (tmp_path / run.DESCRIPTION).unlink()
    assert on("avx2") == "float32"
    assert json.loads((tmp_path / run.DESCRIPTION).read_text()) == {
        "activation_dtype": "float32"
    }


def test_the_command_is_told_without_folders_of_this_machine():
    flags = ["--work_dir=w", "--data_dir=/home/me/DATA", "--document_only", "--size=4"]
    command = "decoupled reproduce --work_dir=w --data_dir=DATA --size=4"
    assert run.document_command(flags) == command


@pytest.mark.parametrize("row", ["unfolded", "folded_projection"])
def test_a_row_goes_on_from_a_step_before_its_decay(folders, row):
    options = Options("w", size=4, gin_file=["sweeps/reproduce_fold.gin"])
    root = run.configure(options)
    run.plan(root, folders)
    settings = root.study.settings | {row: ("ScheduleConfig.decay_steps = 601",)}
    study = dataclasses.replace(root.study, settings=settings)
    message = f"models/{row}/seed_5: it goes on from step 2400 of .*/trunk.* step 2399"
    with pytest.raises(UserError, match=message):
        run.plan(dataclasses.replace(root, study=study), folders)


def test_nothing_is_written_with_settings_that_jobs_would_refuse(root, folders):
    wrong = ("ScheduleConfig.train_stepz = 3",)
    sweep = dataclasses.replace(root.sweep, pretraining=wrong)
    with pytest.raises(UserError, match=r"^\S+: 'ScheduleConfig.train_stepz = 3': "):
        run.plan(dataclasses.replace(root, sweep=sweep), folders)


def test_settings_of_all_jobs_are_checked_before_the_first(root, folders):
    maker = StudyJobs(sized(root, 4), folders, "float32")
    run.check_jobs(maker.of_seed(0))

    wrong = ("FinetuningConfig.num_epochs = 0",)
    sweep = dataclasses.replace(root.sweep, finetuning=wrong)
    root = sized(dataclasses.replace(root, sweep=sweep), 1)
    jobs = StudyJobs(root, folders, "f").of_seed(0)
    with pytest.raises(UserError, match=r"MeshConfig.activation_dtype: .*'f'"):
        run.check_jobs(jobs)
    tuned = [job for job in jobs if job.kind == "finetune"]
    with pytest.raises(UserError, match=r"tasks/udpos/in_small/seed_0: .*num_epochs"):
        run.check_jobs(tuned)
