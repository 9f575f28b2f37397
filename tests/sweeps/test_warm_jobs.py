"""Sweeps of real commands in forks: the results of jobs alone; what fails or dies costs
one job alone, and what is complete is kept."""

import dataclasses
import json
import os
import signal
import sys
import time

import numpy as np
import pytest

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.core import files
from decoupled.core.release import tf
from decoupled.data.records_build import build_records
from decoupled.reports.results import read_sweeps
from decoupled.sweeps import warm_worker
from decoupled.sweeps.jobs import LOG, RECORD, Inputs, Job, Row, describe, make_jobs
from decoupled.sweeps.runner import JobRunner, job_command
from decoupled.sweeps.warm_jobs import Place
from tests.command_line import decoupled
from tests.data.small_corpus import make_corpus, make_vocabulary
from tests.helpers import tiny_model

pytestmark = pytest.mark.skipif(not warm_worker.can_fork(), reason="Linux alone")
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
        "TrainingConfig.batch_size = 4",
        "TrainingConfig.eval_batch_size = 4",
    ),
    finetuning=(
        "FinetuningConfig.num_epochs = 1.0",
        "FinetuningConfig.max_sequence_length = 12",
        "FinetuningConfig.learning_rates = (5e-3,)",
        "TrainingConfig.batch_size = 8",
        "TrainingConfig.eval_batch_size = 8",
    ),
    warm_processes=True,
)
PIECES = 54
COUPLED = Row(
    "coupled",
    tiny_model(vocab_size=PIECES, coupled=True, output_embedding_size=8),
    0,
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
    build_records(str(folder / "corpus"), vocabulary, str(folder / "records"), 2000, 1)
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
    jobs, lines = jobs_of(inputs, folder, BROKEN), []
    [failure] = JobRunner(jobs, 1, lines.append, warm=True).run()
    assert failure.name == jobs[1].name, lines
    return folder, jobs, failure


def test_forks_give_the_results_of_commands(inputs, forked, tmp_path):
    _, warm, _ = forked
    jobs = jobs_of(inputs, tmp_path, BROKEN)
    for fork, alone in zip(warm, jobs, strict=True):
        done = decoupled(alone.kind, *alone.arguments)
        assert done.returncode == (2 if alone is jobs[1] else 0), done.stderr
        # Of all that a job says, times and folders alone differ.
        logs = [text(fork.folder, LOG), done.stdout + done.stderr]
        shown = [[line[:20] for line in log.splitlines()] for log in logs]
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


def in_this_process(job):
    """Runs a job here, without the start of TensorFlow, and then a process."""
    assert decoupled(job.kind, *job.arguments).returncode == 0
    return ["true"]


def test_a_broken_job_is_told_and_tried_again_and_complete_ones_are_kept(
    inputs, forked
):
    folder, jobs, failure = forked
    assert failure.name == "models/e_out_128/seed_0" and failure.reason == "code 2"
    assert failure.last_line.startswith("decoupled pretrain: error: ")
    assert "54" in failure.last_line and "44" in failure.last_line
    assert [job.is_complete() for job in jobs] == [True, False, True]
    before = text(jobs[0].folder, RECORD)

    mended, lines = jobs_of(inputs, folder, DECOUPLED), []
    runner = JobRunner(mended, 1, lines.append, False, in_this_process)
    assert runner.run() == [], lines
    assert all(job.is_complete() for job in mended)
    assert text(jobs[0].folder, RECORD) == before
    assert not files.exists(os.path.join(jobs[0].folder, "command.2"))

    rows = [COUPLED, DECOUPLED]
    describe(str(folder), SWEEP, ScaleConfig(1, 1, 1), "mini", rows, mended)
    results = read_sweeps([str(folder)])
    assert list(results.rows) == ["coupled", "e_out_128"]
    for row in results.rows:
        assert 0 <= results.masked_lm(row)[0] <= 100
    coupled, decoupled_row = results.rows.values()
    assert coupled.pretraining < decoupled_row.pretraining
    assert coupled.model.coupled


@pytest.mark.slow
def test_a_death_costs_one_job_and_signals_reach_it(inputs, tmp_path):
    endless = dataclasses.replace(
        SWEEP,
        pretraining=(
            *SWEEP.pretraining,
            "ScheduleConfig.train_steps = 1000000",
        ),
    )
    job, _ = make_jobs(endless, [DECOUPLED], inputs, str(tmp_path))
    os.makedirs(job.folder)
    open(os.path.join(job.folder, LOG), "w").close()
    place = Place(["pretrain"], None, job_command, True, print)
    try:
        dying = place.start(job)
        worker = wait_for(dying, job, "/1000000 ")
        os.kill(worker, signal.SIGKILL)
        assert dying.wait(SECONDS) == -signal.SIGKILL
        wait_until(lambda: not os.path.exists(f"/proc/{dying.pid}"))

        stopped = place.start(job)
        # Of a worker that still imports nothing is left, and no job has run.
        stopped.terminate()
        assert stopped.wait(SECONDS) == -signal.SIGTERM

        open(os.path.join(job.folder, LOG), "w").close()
        saving = place.start(job)
        worker = wait_for(saving, job, "/1000000 ")
        # As a terminal does, which reaches the worker too.
        os.kill(worker, signal.SIGINT)
        os.kill(saving.pid, signal.SIGINT)
        assert saving.wait(SECONDS) == 130
        assert "Ctrl-C: saved at step" in text(job.folder, LOG)

        killed = place.start(job)
        assert wait_for(killed, job, "resuming from") == worker
        killed.kill()
        assert killed.wait(SECONDS) == -signal.SIGKILL

        mistaken = place.start(job._replace(arguments=("--no_such_flag",)))
        assert mistaken.wait(SECONDS) == 2
        assert "no_such_flag" in text(job.folder, LOG)
    finally:
        place.close()


def parent(process):
    """The number of a process's parent."""
    with open(f"/proc/{process}/stat") as handle:
        return int(handle.read().rpartition(")")[2].split()[1])


def wait_for(fork, job, words):
    """Waits until the log has the words; the number of the worker."""
    wait_until(lambda: fork.poll() is not None or fork.pid is not None)
    wait_until(lambda: fork.poll() is not None or words in text(job.folder, LOG))
    assert fork.poll() is None, text(job.folder, LOG)
    return parent(fork.pid)


def wait_until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("warm", [True, False])
def test_without_forks_a_job_is_a_process_of_its_own(tmp_path, warm):
    said = []
    job = Job("no_such_command", "job", str(tmp_path), (), ())
    alone = [sys.executable, "-c", "print('alone'); raise SystemExit(3)"]
    # The worker ends, because it cannot import the command.
    place = Place([job.kind], None, lambda _: alone, warm, said.append)
    assert place.start(job).wait(SECONDS) == 3
    assert text(job.folder, LOG) == "alone\n"
    assert place.start(job).wait(SECONDS) == 3
    place.close()
    assert len(said) == warm and all("jobs import TensorFlow" in line for line in said)


def test_a_process_with_threads_does_not_fork(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_worker, "_THREADS", str(tmp_path))
    monkeypatch.setattr(warm_worker, "_SECONDS_TO_END", 0.0)
    (tmp_path / "1").mkdir()
    assert warm_worker._is_single_thread()
    (tmp_path / "2").mkdir()
    assert not warm_worker._is_single_thread()
