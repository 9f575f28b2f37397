"""Sweeps of real commands in forks: the results of jobs alone; what fails or dies costs
one job alone, and what is complete is kept."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.core import files
from decoupled.core.release import tf
from decoupled.data.records_build import build_records
from decoupled.studies import preload
from decoupled.studies.jobs import LOG, RECORD, Inputs, Row, describe, make_jobs
from decoupled.studies.results import read_sweeps
from decoupled.studies.runner import Fork, JobRunner
from tests.command_line import decoupled
from tests.data.small_corpus import make_corpus, make_vocabulary
from tests.helpers import tiny_model
from tests.processes import python, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone")
SECONDS = 300
SWEEP = SweepConfig(
    title="Two models",
    rows=("coupled", "e_out_128"),
    keep_layers={},
    tasks=("catalogs",),
    seeds=(0,),
    finetuning_runs=1,
    task_files={"*": ""},
    pretraining=(
        "MaskingConfig.sequence_length = 16",
        "MaskingConfig.max_predictions = 2",
        "ScheduleConfig.train_steps = 3",
        "ScheduleConfig.warmup_steps = 1",
        # So that graphs are half as large.
        "OptimizerConfig.rates = {'bert/encoder/*': 0}",
        "TrainingConfig.batch_size = 4",
        "TrainingConfig.eval_batch_size = 4",
    ),
    finetuning=(
        "FinetuningConfig.num_epochs = 1.0",
        "FinetuningConfig.max_sequence_length = 12",
        "FinetuningConfig.learning_rates = (5e-3,)",
        "OptimizerConfig.rates = {'bert/e*': 0}",
        "TrainingConfig.batch_size = 8",
        "TrainingConfig.eval_batch_size = 8",
    ),
)
ENDLESS = dataclasses.replace(
    SWEEP, pretraining=(*SWEEP.pretraining, "ScheduleConfig.train_steps = 1000000")
)
PIECES = 54
COUPLED = Row(
    "coupled", tiny_model(vocab_size=PIECES, coupled=True, output_embedding_size=8), 0
)
DECOUPLED = Row("e_out_128", tiny_model(vocab_size=PIECES), 0)
# Too few embeddings for the vocabulary.
BROKEN = Row("e_out_128", tiny_model(vocab_size=PIECES - 10), 0)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Records, and a task: does a text speak of a record or of words?"""
    folder = tmp_path_factory.mktemp("inputs")
    make_corpus(folder / "corpus", evaluation=(("en", 20),))
    vocabulary = make_vocabulary(folder / "sentencepiece.model").path
    build_records(str(folder / "corpus"), vocabulary, str(folder / "records"), 2000)
    task = folder / "tasks" / "catalogs"
    task.mkdir(parents=True)
    (task / "labels.txt").write_text("record\nword\n")
    words = "the holds text of one language and every is kept here".split()
    lines = [f"{w} {label}\t{label}\n" for w in words for label in ("record", "word")]
    (task / "train-en.tsv").write_text("".join(lines))
    (task / "dev-en.tsv").write_text("".join(lines[:6]))
    (task / "test-sw.tsv").write_text("rekodi word\tword\nneno record\trecord\n")
    data_dirs = {"catalogs": str(folder / "tasks")}
    return Inputs(str(folder / "records"), vocabulary, data_dirs)


def arrays(folder):
    reader = tf.train.load_checkpoint(folder)
    return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}


def text(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as handle:
        return handle.read()


def jobs_of(inputs, folder, second):
    """Both jobs of the first row, and between them the pre-training of the second."""
    made = make_jobs(SWEEP, [COUPLED, second], inputs, str(folder))
    return [made[0], made[2], made[1]]


@pytest.fixture(scope="module")
def forked(inputs, tmp_path_factory):
    """(folder, jobs, their failure) of a sweep in forks; the second job is broken."""
    folder = tmp_path_factory.mktemp("forked")
    jobs = jobs_of(inputs, folder, BROKEN)
    [failure] = JobRunner(jobs, 1).run()
    assert failure.name == jobs[1].name
    return folder, jobs, failure


def test_forks_give_the_results_of_commands(inputs, forked, tmp_path):
    _, warm, _ = forked
    jobs = jobs_of(inputs, tmp_path, BROKEN)
    for fork, alone in zip(warm, jobs, strict=True):
        done = decoupled(alone.kind, *alone.arguments)
        assert done.returncode == (2 if alone is jobs[1] else 0), done.stderr
        # Of all that a job says, times and folders alone differ.
        logs = [text(fork.folder, LOG), done.stdout + done.stderr]
        # TensorFlow warns of a missing kernel on some processors, and only once. Where
        # work takes more than ten seconds, a line says how much is left.
        shown = [
            [
                line[:20]
                for line in log.splitlines()
                if "util.cc:" not in line and not line.endswith(" left")
            ]
            for log in logs
        ]
        assert shown[0] == shown[1]
    for place in (0, 2):
        expected, found = (arrays(one[place].folder) for one in (jobs, warm))
        assert expected.keys() == found.keys()
        for variable, value in expected.items():
            np.testing.assert_array_equal(found[variable], value, variable)
    expected, found = (
        json.loads(text(one[2].folder, "results.json")) for one in (jobs, warm)
    )
    assert expected == found and found["test"]["sw"]["examples"] == 2


def test_a_broken_job_is_reported_and_tried_again_and_complete_ones_are_kept(
    inputs, forked
):
    folder, jobs, failure = forked
    assert failure.name == "models/e_out_128/seed_0" and failure.reason == "code 2"
    assert failure.last_line.startswith("decoupled pretrain: error: ")
    assert "54" in failure.last_line and "44" in failure.last_line
    assert [job.is_complete() for job in jobs] == [True, False, True]
    before = text(jobs[0].folder, RECORD)

    mended = jobs_of(inputs, folder, DECOUPLED)

    def as_before(job):
        """A command that leaves what the first job left."""
        shutil.copytree(jobs[0].folder, job.folder, dirs_exist_ok=True)
        return ["true"]

    assert JobRunner(mended, 1, as_before).run() == []
    assert all(job.is_complete() for job in mended)
    assert text(jobs[0].folder, RECORD) == before
    assert not files.exists(os.path.join(jobs[0].folder, "command.2"))

    rows = [COUPLED, DECOUPLED]
    describe(str(folder), SWEEP, ScaleConfig(1, 1, 1), "mini", rows, [])
    results = read_sweeps([str(folder)])
    assert list(results.rows) == ["coupled", "e_out_128"]
    for row in results.rows:
        assert 0 <= results.masked_lm(row)[0] <= 100
    coupled, decoupled_row = results.rows.values()
    assert coupled.pretraining < decoupled_row.pretraining
    assert coupled.model.coupled


def test_a_fine_tuning_with_other_settings_leaves_the_finished_one(forked):
    _, (model, _, finished), _ = forked
    setting = "--gin_param=FinetuningConfig.num_epochs = 2.0"
    longer = finished._replace(arguments=(*finished.arguments, setting))
    [failure] = JobRunner([model, longer], 1).run()
    assert failure.reason == f"code 2; remove {longer.folder} to begin anew"
    assert "data.num_epochs is 1.0, not 2.0" in failure.last_line
    assert finished.is_complete() and not longer.is_complete()
    # The command itself would go on in another precision.
    setting = "--gin_param=MeshConfig.activation_dtype = 'bfloat16'"
    rounded = finished._replace(arguments=(*finished.arguments, setting))
    [failure] = JobRunner([model, rounded], 1).run()
    assert failure.reason.endswith("with MeshConfig.activation_dtype = 'float32'")
    assert finished.is_complete()


@pytest.mark.slow
def test_a_death_costs_one_job_and_signals_reach_it(inputs, tmp_path):
    job, _ = make_jobs(ENDLESS, [DECOUPLED], inputs, str(tmp_path))
    os.makedirs(job.folder)

    def begin(words):
        open(os.path.join(job.folder, LOG), "w").close()
        fork = Fork(job, None)
        return fork, wait_for(fork, job, words)

    dying, server = begin("/1000000 ")
    os.kill(server, signal.SIGKILL)
    assert dying.wait(SECONDS) == 255
    wait_until(lambda: not os.path.exists(f"/proc/{dying.pid}"), SECONDS)

    saving, server = begin("/1000000 ")
    # As a terminal does, which reaches the server too.
    os.kill(server, signal.SIGINT)
    os.kill(saving.pid, signal.SIGINT)
    assert saving.wait(SECONDS) == 130
    assert "Ctrl-C: saved at step" in text(job.folder, LOG)

    killed, same = begin("resuming from")
    assert same == server
    killed.kill()
    assert killed.wait(SECONDS) == -signal.SIGKILL

    mistaken = Fork(job._replace(arguments=("--no_such_flag",)), None)
    assert mistaken.wait(SECONDS) == 2
    assert "no_such_flag" in text(job.folder, LOG)


@pytest.mark.slow
def test_a_job_saves_and_ends_when_its_sweep_is_killed(inputs, tmp_path):
    job, _ = make_jobs(ENDLESS, [DECOUPLED], inputs, str(tmp_path))
    os.makedirs(job.folder)
    code = (
        "import json, sys; from decoupled.studies.jobs import Job; "
        "from decoupled.studies.runner import Fork; "
        "fork = Fork(Job(**json.loads(sys.argv[1])), None); "
        "print(fork.pid, flush=True); fork.wait()"
    )
    words = [*python(code), json.dumps(job._asdict())]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as sweep:
        number = int(sweep.stdout.readline())
        log = os.path.join(job.folder, LOG)
        wait_until(
            lambda: files.exists(log) and "/1000000 " in text(job.folder, LOG), SECONDS
        )
        server = parent(number)
        sweep.kill()
    for process in (number, server):
        wait_until(
            lambda number=process: not os.path.exists(f"/proc/{number}"), SECONDS
        )
    assert "SIGTERM: saved at step" in text(job.folder, LOG)


def parent(process):
    """The number of a process's parent."""
    with open(f"/proc/{process}/stat") as handle:
        return int(handle.read().rpartition(")")[2].split()[1])


def wait_for(fork, job, words):
    """Waits until the log has the words; the number of the server."""
    wait_until(
        lambda: fork.poll() is not None or words in text(job.folder, LOG), SECONDS
    )
    assert fork.poll() is None, text(job.folder, LOG)
    return parent(fork.pid)


def test_the_server_counts_its_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(preload, "_THREADS", str(tmp_path))
    monkeypatch.setattr(preload, "_SECONDS_TO_END", 0.0)
    (tmp_path / "1").mkdir()
    assert preload._is_single_thread()
    (tmp_path / "2").mkdir()
    assert not preload._is_single_thread()


def test_the_server_does_not_fork_where_cuda_is_initialized(monkeypatch):
    monkeypatch.setattr(preload, "_is_single_thread", lambda: True)
    monkeypatch.setattr(preload, "nvidia_devices", lambda: 0)
    assert preload._is_forkable()
    monkeypatch.setattr(preload, "nvidia_devices", lambda: 1)
    assert not preload._is_forkable()
