"""Jobs run once, side by side; failures and kills cost themselves only."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from decoupled.configs import PretrainConfig, ScheduleConfig
from decoupled.core.errors import Terminated
from decoupled.runs.run_folder import RESUMABLE, note_settings, resumable_settings
from decoupled.studies import runner
from decoupled.studies.jobs import Job, complete_jobs
from decoupled.studies.runner import JobRunner, job_command, shares_of_cores
from decoupled.training.checkpoint_files import CheckpointWriter
from decoupled.training.checkpoints import write_list
from tests.processes import python, signal_when, wait_until


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(runner, "_POLL", 0.01)


@pytest.fixture
def make(tmp_path):
    """name, Python code, needs -> a job whose command runs the code in its folder."""

    def make(name, code="", needs=()):
        return Job("pretrain", name, str(tmp_path / name), (code,), tuple(needs))

    return make


def command_of(job):
    """Without code, a shell does it, which starts faster."""
    if not job.arguments[0]:
        begin = 'cd "$1" && printf x >> starts && : > eval.json'
        return ["sh", "-c", begin, "sh", job.folder]
    return [
        sys.executable, "-S", "-c", f"import os; os.chdir({job.folder!r})\n"
        "open('starts', 'a').write('x')\nopen('eval.json', 'w')\n"
        f"{job.arguments[0]}",
    ]  # fmt: skip


def run(jobs, parallel=1, lines=None):
    lines = [] if lines is None else lines
    made = JobRunner(jobs, parallel, command_of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.console, "say", lines.append)
        return made.run(), lines


def starts(job):
    path = os.path.join(job.folder, "starts")
    return len(open(path).read()) if os.path.exists(path) else 0


@functools.cache
def checkpoint(step):
    """The files of a checkpoint, name -> content."""
    with tempfile.TemporaryDirectory() as folder:
        with CheckpointWriter(f"{folder}/model.ckpt-{step}") as writer:
            writer.add("global_step", np.int64(step))
        return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def save(job, step=ScheduleConfig.train_steps):
    """A checkpoint, as `pretrain` leaves it; by default the last."""
    for name, content in checkpoint(step).items():
        pathlib.Path(job.folder, name).write_bytes(content)
    write_list(job.folder, [f"{job.folder}/model.ckpt-{step}"])


def test_all_jobs_run_once_in_order(make):
    first = make("first", "open('done', 'w')")
    second = make("second", f"open('{first.folder}/done')", ["first"])
    failures, lines = run([first, second], parallel=2)
    assert failures == []
    assert [starts(job) for job in (first, second)] == [1, 1]
    assert lines[0] == "start first"
    assert lines[1].startswith("1 of 2: first in ") and "left" in lines[1]

    failures, lines = run([first, second])
    assert (failures, lines) == ([], ["2 of 2 jobs complete already"])
    assert [starts(job) for job in (first, second)] == [1, 1]


def test_what_needs_another_result_is_run_again(make):
    """Such as fine-tunings of a model that is trained for more steps."""
    first, second = make("first"), make("second", "", ["first"])
    run([first, second])
    steps = "--gin_param=ScheduleConfig.train_steps = 20"
    failures, lines = run([first._replace(arguments=("", steps)), second])
    assert failures == [] and "start first" in lines and "start second" in lines
    aside = f"{second.folder}.replaced.1"
    assert f"second: first is new; moved to {aside}" in lines
    # The model goes on in its folder; what was made of the old one does not.
    assert [starts(job) for job in (first, second)] == [2, 1]
    assert starts(second._replace(folder=aside)) == 1


def test_a_kill_before_the_second_leaves_nothing_of_the_earlier_model(make):
    first, second = make("first"), make("second", "", ["first"])
    run([first, second])
    longer = first._replace(
        arguments=(
            "import signal; os.kill(os.getppid(), signal.SIGTERM)",
            "--gin_param=ScheduleConfig.train_steps = 20",
        )
    )
    with pytest.raises(Terminated):
        run([longer, second])
    assert complete_jobs([longer, second]) == []
    longer = longer._replace(arguments=("", *longer.arguments[1:]))
    assert run([longer, second])[0] == []
    assert starts(second) == 1


def test_a_model_that_is_refused_leaves_what_was_made_of_the_earlier_one(make):
    first, second = make("first"), make("second", "", ["first"])
    run([first, second])
    steps = "--gin_param=ScheduleConfig.train_steps = 20"
    refused = first._replace(arguments=("raise SystemExit(2)", steps))
    failures, lines = run([refused, second])
    assert [failure.name for failure in failures] == ["first", "second"]
    assert not any("moved" in line for line in lines)
    assert run([first, second])[1] == ["2 of 2 jobs complete already"]


def test_a_kill_between_a_new_model_and_what_needs_it_is_made_good(make):
    """The record of the second job names the files of the earlier model."""
    first, second = make("first"), make("second", "", ["first"])
    second = second._replace(reads=(first.folder,))
    run([first])
    save(first, 10)
    run([first, second])
    # The model went on, and its job is complete.
    save(first, 20)
    failures, lines = run([first, second])
    assert failures == []
    assert f"second: first is new; moved to {second.folder}.replaced.1" in lines
    assert run([first, second])[1] == ["2 of 2 jobs complete already"]


def test_a_job_runs_again_where_a_file_that_it_read_has_changed(make, tmp_path):
    text = tmp_path / "text"
    text.write_text("one")
    first = make("first")._replace(reads=(str(text),))
    second, third = make("second", "", ["first"]), make("third")
    run([first, second, third])
    save(first)
    text.write_text("two")
    failures, lines = run([first, second, third])
    assert failures == [] and lines[0] == f"first: run again: {text} has changed"
    assert "1 of 3 jobs complete already" in lines
    assert [starts(job) for job in (first, second, third)] == [2, 2, 1]
    assert run([first, second, third])[1] == ["3 of 3 jobs complete already"]


def test_a_sweep_whose_folders_moved_goes_on_in_them(make):
    first, second = make("first"), make("second", "", ["first"])
    run([first, second])
    save(first)
    moved = [job._replace(arguments=("", "--x=elsewhere")) for job in (first, second)]
    assert run(moved)[0] == []
    assert [starts(job) for job in moved] == [2, 2]


def test_a_job_that_fails_now_is_no_longer_complete(make):
    """Or a report would show what it left for another command."""
    job = make("job")
    run([job])
    assert job.is_complete()
    [failure], _ = run([job._replace(arguments=("raise SystemExit('no')",))])
    assert failure.last_line == "no"
    assert not job.is_complete()


def test_a_job_that_refuses_its_folder_stays_recorded_until_one_has_begun(make):
    code = "open('results.json', 'w').write('{}')"
    job = make("job", code)._replace(kind="finetune")
    run([job])
    refusing = job._replace(arguments=("raise SystemExit(2)",))
    [failure], lines = run([refusing])
    assert failure.reason == f"code 2; remove {job.folder} to begin anew"
    assert lines[-1].startswith(f"failed job with {failure.reason}: ")
    assert job.is_complete()
    begun = "open('command.1', 'w'); raise SystemExit(2)"
    [failure], _ = run([job._replace(arguments=(begun,))])
    assert failure.reason == "code 2" and not job.is_complete()


def test_a_record_has_the_seconds_of_all_starts_that_did_the_work(make):
    job, begin = make("job"), "open('command.1', 'w')"

    def seconds_after(code, steps, old_seconds=None):
        path = pathlib.Path(job.folder, "job.json")
        if old_seconds is not None:
            content = json.loads(path.read_text()) | {"seconds": old_seconds}
            path.write_text(json.dumps(content))
            save(job, 10)
        param = f"--gin_param=ScheduleConfig.train_steps = {steps}"
        words = f"{begin}; {code}", param
        run([job._replace(arguments=words)])
        return json.loads(path.read_text())["seconds"] if path.exists() else "no record"

    assert seconds_after("1", 10) < 60
    # The model is complete; or more steps are trained.
    assert seconds_after("2", 10, old_seconds=60.0) == 60
    assert seconds_after("import time; time.sleep(.2)", 20, old_seconds=60.0) > 60
    assert seconds_after("raise SystemExit(1)", 20) == "no record"
    assert seconds_after("1", 20) is None


def test_a_model_of_another_learning_rate_is_not_taken_for_its_successor(make):
    def trained(rate, steps, *more):
        values = {
            "OptimizerConfig.learning_rate": rate,
            "ScheduleConfig.train_steps": steps,
            "OptimizerConfig.beta1": 0.9,
        }
        params = [f"{name} = {value}" for name, value in values.items()]
        words = [f"--gin_param={param}" for param in (*params, *more)]
        folder = pathlib.Path(make("job").folder)
        folder.mkdir(exist_ok=True)
        # As `pretrain` writes them, before its first checkpoint.
        if not (folder / "checkpoint").exists():
            entry = {"from_step": 0, "settings": values}
            (folder / "settings.json").write_text(json.dumps([entry]))
        return make("job")._replace(arguments=("", *words))

    needs_it = make("next", "", ["job"])
    assert run([trained(1e-3, 10)])[0] == []
    folder = pathlib.Path(make("job").folder)
    save(make("job"), 10)
    assert run([trained(1e-3, 20)])[0] == []
    for job, setting in (
        (trained(2e-3, 20), "OptimizerConfig.learning_rate = 0.001"),
        (trained(1e-3, 5), "ScheduleConfig.train_steps = 10"),
        (
            trained(1e-3, 20, "OptimizerConfig.beta1 = 0.5"),
            "OptimizerConfig.beta1 = 0.9",
        ),
    ):
        [failure, lost], _ = run([job, needs_it])
        assert failure.reason.endswith(f"job has a model trained with {setting}")
        assert lost.reason == "needs job"
        # A job that was killed has no record.
        (folder / "job.json").unlink(missing_ok=True)
    assert starts(make("job")) == 2 and not starts(needs_it)


def with_setting(job, setting):
    return job._replace(arguments=(*job.arguments, f"--gin_param={setting}"))


@pytest.fixture
def trained(make):
    """A pre-trained model with its recorded settings, and a job that needs it."""
    first, second = make("first"), make("second", "", ["first"])
    run([first, second])
    settings = resumable_settings(PretrainConfig(), RESUMABLE)
    note_settings(first.folder, settings, 0, ScheduleConfig.train_steps)
    save(first)
    return first, second


def test_a_model_of_an_optimizer_that_is_gone_is_not_taken(trained):
    first, _ = trained
    path = pathlib.Path(first.folder, "settings.json")
    [entry] = json.loads(path.read_text())
    for name, gone in (
        ("adamw", []),
        ("adafactor", ["OptimizerConfig.name = 'adafactor'"]),
    ):
        entry["settings"]["OptimizerConfig.name"] = name
        path.write_text(json.dumps([entry]))
        assert first.conflicts() == gone


def test_a_model_of_other_settings_stays_and_is_not_taken(trained):
    first, second = trained
    for name, other, before in (
        ("MeshConfig.slice_dtype", "'bfloat16'", "'float32'"),
        ("MeshConfig.activation_dtype", "'bfloat16'", "'float32'"),
        ("TrainingConfig.batch_size", "4", "2048"),
    ):
        [failure, lost], lines = run([with_setting(first, f"{name} = {other}"), second])
        assert failure.reason == (
            f"{first.folder} has a model trained with {name} = {before}"
        )
        assert lost.reason == "needs first" and lines == []
        assert first.is_complete() and second.is_complete()


def test_where_a_model_stays_so_does_what_was_made_of_it(trained):
    first, second = trained
    for setting in (
        "TrainingConfig.log_steps = 7",
        "TrainingConfig.eval_sequences = 9",
        "TrainingConfig.gradient_accumulation = 2",
        "MeshConfig.mesh_shape = 'all:2'",
    ):
        first = with_setting(first, setting)
    failures, lines = run([first, second])
    assert failures == [] and not any("moved" in line for line in lines)
    assert [starts(job) for job in trained] == [2, 2]


def test_a_conversion_that_runs_again_has_a_new_folder(make):
    convert = make("convert", "os.mkdir('model'); open('model/conversion.json', 'w')")
    convert = convert._replace(kind="convert")
    assert run([convert])[0] == []
    os.remove(f"{convert.folder}/job.json")
    failures, lines = run([convert])
    aside = f"{convert.folder}.replaced.1"
    assert failures == [] and lines[0] == f"convert: run again; moved to {aside}"
    assert os.path.isdir(f"{aside}/model") and convert.is_complete()


def test_settings_of_a_start_that_saved_nothing_are_no_model_s(make):
    """Such as more steps, killed before a checkpoint: the model is the earlier one."""
    job = make("job")
    assert run([job])[0] == []
    entries = [
        {"from_step": step, "settings": {"ScheduleConfig.train_steps": steps}}
        for step, steps in ((0, 20), (20, 4000))
    ]
    pathlib.Path(job.folder, "settings.json").write_text(json.dumps(entries))
    save(job, 20)
    twenty = "--gin_param=ScheduleConfig.train_steps = 20"
    assert run([job._replace(arguments=("", twenty))])[0] == []
    save(job, 30)
    pathlib.Path(job.folder, "job.json").unlink()
    [failure], _ = run([job._replace(arguments=("", twenty))])
    assert failure.reason.endswith("with ScheduleConfig.train_steps = 4000")


def test_a_folder_that_cannot_be_read_stops_no_other_job(make):
    bad, good = make("bad"), make("good")
    os.mkdir(bad.folder)
    pathlib.Path(bad.folder, "checkpoint").write_text("?")
    [failure], _ = run([bad, good])
    assert failure.reason.startswith(f"{bad.folder}/checkpoint: cannot be read")
    assert good.is_complete() and not starts(bad)


def test_a_failure_is_reported_and_stops_nobody_else(make):
    bad = make(
        "bad", "print('something', flush=True); raise SystemExit('no such file')"
    )
    needs_bad = make("needs_bad", "", ["bad"])
    needs_more = make("needs_more", "", ["needs_bad"])
    good = make("good")
    failures, _ = run([bad, needs_bad, needs_more, good])
    assert [tuple(failure) for failure in failures] == [
        ("bad", "code 1", "no such file"),
        ("needs_bad", "needs bad", ""),
        ("needs_more", "needs needs_bad", ""),
    ]
    assert starts(good) == 1 and good.is_complete()
    assert starts(needs_bad) == 0
    # The next start tries it again.
    run([bad, good])
    assert (starts(bad), starts(good)) == (2, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_ends_jobs_and_the_next_start_goes_on(make, tmp_path, number):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        _ends_and_goes_on(make, tmp_path, number)
    finally:
        signal.signal(signal.SIGHUP, before)


def _ends_and_goes_on(make, tmp_path, number):
    code = (
        "import signal, sys, time\n"
        "if os.path.exists('saved'): sys.exit(0)\n"
        "def save(*_):\n    open('saved', 'w')\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open('ready', 'w'); time.sleep(60)"
    )
    job = make("job", code)
    signal_when((tmp_path / "job" / "ready").exists, number)
    said = []
    with pytest.raises(Terminated, match="run the same command"):
        run([job], lines=said)
    assert said[-1] == "ending running jobs (1); they save first"
    assert (tmp_path / "job" / "saved").exists() and not job.is_complete()
    assert run([job])[0] == [] and job.is_complete()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone")
def test_a_job_ends_with_a_sweep_that_is_killed(tmp_path):
    """Or it would go on in the folder that the next start needs."""
    job = Job("no_such_command", "job", str(tmp_path), (), ())
    endless = python("print('on', flush=True); import time; time.sleep(99)")
    code = (
        "import json, sys; from decoupled.studies.jobs import Job; "
        "from decoupled.studies.runner import start_job; "
        "job = start_job(Job(**json.loads(sys.argv[1])), None, sys.argv[2:]); "
        "print(job.pid, flush=True); job.wait()"
    )
    words = [*python(code), json.dumps(job._asdict()), *endless]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as sweep:
        number = int(sweep.stdout.readline())
        wait_until(lambda: (tmp_path / "job.log").read_text() == "on\n")
        sweep.kill()
    wait_until(lambda: not os.path.exists(f"/proc/{number}"))


def test_a_job_is_a_command_of_this_package(make):
    command = job_command(make("a", "--x"))
    assert command == [sys.executable, "-m", "decoupled", "pretrain", "--x"]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux alone")
def test_jobs_side_by_side_have_cores_of_their_own(make, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 5, 7, 8})
    assert shares_of_cores(1) == shares_of_cores(6) == []
    assert shares_of_cores(2) == [{1, 5, 8}, {4, 7}]
    monkeypatch.undo()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    # A job has its share a moment after its start.
    wait = (
        "import time\nwhile not os.path.exists('../{}/starts'): time.sleep(0.01)\n"
        "end = time.monotonic() + 60\n"
        "while time.monotonic() < end and "
        f"len(os.sched_getaffinity(0)) == {len(cores)}: time.sleep(0.01)\n"
        "print(*sorted(os.sched_getaffinity(0)))\n"
    )
    jobs = [make("one", wait.format("two")), make("two", wait.format("one"))]
    assert run(jobs, parallel=2)[0] == []
    message = [open(f"{job.folder}/job.log").read().split() for job in jobs]
    assert [[*map(int, own)] for own in message] == [cores[::2], cores[1::2]]
    assert sorted(os.sched_getaffinity(0)) == cores


@pytest.mark.parametrize(
    "kind, flag", [("pretrain", ["--accelerator=gpu"]), ("analyze", [])]
)
def test_only_jobs_that_train_run_on_an_accelerator(kind, flag):
    job = Job(kind, "name", "folder", ("--seed=1",), (), ())
    words = job_command(job, "gpu")
    assert words[words.index("--seed=1") :] == ["--seed=1", *flag]
    assert job_command(job)[-1] == "--seed=1"
