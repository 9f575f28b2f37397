"""Jobs in forks: results of jobs alone, and deaths that cost one job alone."""

import dataclasses
import json
import os
import signal
import sys
import time

import numpy as np
import pytest

from decoupled.core.release import tf
from decoupled.data.records_build import build_records
from decoupled.sweeps import warm_worker
from decoupled.sweeps.jobs import LOG, Inputs, Job, make_jobs
from decoupled.sweeps.runner import JobRunner, job_command
from decoupled.sweeps.warm_jobs import Place
from tests.command_line import decoupled
from tests.data.small_corpus import make_corpus, make_vocabulary
from tests.sweeps.test_real_jobs import BROKEN, DECOUPLED, SWEEP

pytestmark = pytest.mark.skipif(not warm_worker.can_fork(), reason="Linux alone")
SECONDS = 300
TUNED = dataclasses.replace(
    SWEEP,
    tasks=("catalogs",),
    finetuning=(
        "FinetuningConfig.num_epochs = 1.0",
        "FinetuningConfig.max_sequence_length = 12",
        "FinetuningConfig.learning_rates = (5e-3,)",
        "TrainingConfig.batch_size = 8",
        "TrainingConfig.eval_batch_size = 8",
    ),
)


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


def test_forks_give_the_results_of_commands(inputs, tmp_path):
    # Between the two jobs one fails.
    rows, found = [DECOUPLED, BROKEN._replace(name="broken")], {}
    for name in ("warm", "alone"):
        made = make_jobs(TUNED, rows, inputs, str(tmp_path / name))
        pretraining, finetuning, broken, _ = made
        broken = broken._replace(
            arguments=("--gin_file=models/e_out_128.gin", *broken.arguments[1:])
        )
        found[name] = [pretraining, broken, finetuning]
    lines = []
    [failure] = JobRunner(found["warm"], 1, lines.append, warm=True).run()
    assert failure.name == broken.name and failure.reason == "code 2", lines
    for warm, alone in zip(found["warm"], found["alone"], strict=True):
        done = decoupled(alone.kind, *alone.arguments)
        assert done.returncode == (2 if alone is broken else 0), done.stderr
        # Of all that a job says, times and folders alone differ.
        logs = [text(warm.folder, LOG), done.stdout + done.stderr]
        shown = [[line[:20] for line in log.splitlines()] for log in logs]
        assert shown[0] == shown[1]
    for place in (0, 2):
        warm, alone = (arrays(found[name][place].folder) for name in ("warm", "alone"))
        assert warm.keys() == alone.keys()
        for variable, value in warm.items():
            np.testing.assert_array_equal(value, alone[variable], variable)
    results = [
        json.loads(text(found[name][2].folder, "results.json"))
        for name in ("warm", "alone")
    ]
    assert results[0] == results[1] and results[0]["test"]["sw"]["examples"] == 2


@pytest.mark.slow
def test_a_death_costs_one_job_and_signals_reach_it(inputs, tmp_path):
    endless = dataclasses.replace(
        SWEEP,
        pretraining=(
            *SWEEP.pretraining,
            "ScheduleConfig.train_steps = 1000000",
        ),
    )
    [job] = make_jobs(endless, [DECOUPLED], inputs, str(tmp_path))
    os.makedirs(job.folder)
    open(os.path.join(job.folder, LOG), "w").close()
    place = Place(["pretrain"], None, job_command, True)
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
    job = Job("no_such_command", "job", str(tmp_path), (), ())
    alone = [sys.executable, "-c", "print('alone'); raise SystemExit(3)"]
    # The worker ends, because it cannot import the command.
    place = Place([job.kind], None, lambda _: alone, warm)
    assert place.start(job).wait(SECONDS) == 3
    assert text(job.folder, LOG) == "alone\n"
    assert place.start(job).wait(SECONDS) == 3
    place.close()


def test_a_process_with_threads_does_not_fork(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_worker, "_THREADS", str(tmp_path))
    monkeypatch.setattr(warm_worker, "_SECONDS_TO_END", 0.0)
    (tmp_path / "1").mkdir()
    assert warm_worker._is_single_thread()
    (tmp_path / "2").mkdir()
    assert not warm_worker._is_single_thread()
