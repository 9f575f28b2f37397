"""Training over several processes: the losses of one, whoever dies."""

import os
import random
import re
import signal
import time

import numpy as np
import pytest

from decoupled.training.events import read_scalars
from tests.command_line import decoupled
from tests.commands.pretraining import (
    checkpoint,
    finish,
    make_records,
    pretrain_words,
    start_command,
    wait_for,
)
from tests.pretrained import make_pretrained

STEPS = 120
# Enough for 20 kills, each after another checkpoint, on a fast machine too.
LONG_STEPS = 600
MESH = ['MeshConfig.mesh_shape = "m:2"', 'MeshConfig.layout_rules = "vocab:m;heads:m"']
PATIENCE = "ClusterConfig.patience_seconds = 2.0"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """(records folder, vocabulary)."""
    return make_records(tmp_path_factory.mktemp("data"))


def pretrain(data, folder, steps, *more):
    length = f"ScheduleConfig.train_steps = {steps}"
    return pretrain_words(data, folder, length, *MESH, PATIENCE, *more)


def supervised(command):
    """Starts a command on two processes."""
    return start_command(
        *("decoupled", "supervise", "--processes=2", "--max_restarts=100", "--"),
        *command,
    )


def children(process, name):
    """Process ids of a supervisor's driver ("pretrain") or workers ("worker")."""
    path = f"/proc/{process.pid}/task/{process.pid}/children"
    found = []
    for pid in open(path, encoding="ascii").read().split():
        try:
            command = open(f"/proc/{pid}/cmdline", encoding="utf-8").read()
        except OSError:
            continue
        if f"\0decoupled\0{name}\0" in command:
            found.append(int(pid))
    return found


def end_with_a_killed_worker(process, saved):
    """Kills the worker of a supervised run that has written a file, and waits for the
    end of the run; returns what it printed."""
    wait_for(saved, process)
    [worker] = children(process, "worker")
    os.kill(worker, signal.SIGKILL)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "worker 1 was killed by SIGKILL; restart 1 of 100" in out
    assert re.search(r"resuming from .*model.ckpt-\d+ at step \d+", out)
    return out


def losses(folder):
    return read_scalars(str(folder), "loss")


def run_alone(data, folder, steps):
    """The same run on one process with two virtual devices; returns its folder."""
    process = start_command(*pretrain(data, folder, steps))
    code, _, error = finish(process)
    assert code == 0, error
    return folder


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    return run_alone(data, tmp_path_factory.mktemp("undisturbed") / "run", STEPS)


@pytest.fixture(scope="module")
def long_undisturbed(data, tmp_path_factory):
    return run_alone(data, tmp_path_factory.mktemp("long") / "run", LONG_STEPS)


@pytest.mark.slow
def test_a_killed_worker_costs_the_steps_since_the_checkpoint(
    data, undisturbed, tmp_path
):
    process = supervised(pretrain(data, tmp_path / "run", STEPS))
    end_with_a_killed_worker(process, tmp_path / "run" / "checkpoint")
    # Of one process or two, to the last bit but for the order of a few sums.
    expected, found = losses(undisturbed), losses(tmp_path / "run")
    assert sorted(found) == list(range(1, STEPS + 1))
    worst = max(abs(found[step] - expected[step]) for step in expected)
    assert worst < 1e-5
    for name, value in checkpoint(undisturbed).items():
        np.testing.assert_allclose(
            checkpoint(tmp_path / "run")[name], value, rtol=0, atol=1e-4, err_msg=name
        )


@pytest.mark.slow
def test_without_a_supervisor_the_driver_ends_and_says_why(data, tmp_path):
    from decoupled.launch.supervision import free_addresses

    addresses = free_addresses(2)
    worker = start_command(
        "decoupled", "worker", f"--workers={','.join(addresses)}", "--index=1"
    )
    try:
        workers = f"ClusterConfig.workers = {tuple(addresses)}"
        driver = start_command(*pretrain(data, tmp_path / "run", 100_000, workers))
        wait_for(tmp_path / "run" / "checkpoint", driver)
        worker.kill()
        killed = time.monotonic()
        _, error = driver.communicate(timeout=60)
    finally:
        worker.kill()
        worker.communicate()
    assert time.monotonic() - killed < 60
    assert driver.returncode == 75
    [message] = [line for line in error.splitlines() if "error:" in line]
    assert re.search(rf"{addresses[1]}: .*not answered|started anew|lost", message)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["worker", "pretrain"])
def test_killed_20_times(data, long_undisturbed, tmp_path, name):
    folder = tmp_path / "run"
    chance = random.Random(0)
    process = supervised(
        pretrain(data, folder, LONG_STEPS, "TrainingConfig.save_checkpoints_steps = 5")
    )
    for kills in range(20):
        marks = set(folder.glob("model.ckpt-*.index")) if folder.exists() else set()
        end = time.monotonic() + 120
        # Some time after the next checkpoint, so that the run gets on.
        while not set(folder.glob("model.ckpt-*.index")) - marks:
            assert process.poll() is None, (kills, process.communicate())
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
        for pid in children(process, name)[:1]:
            os.kill(pid, signal.SIGKILL)
        time.sleep(1.0)
    out, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    assert out.count("was killed by SIGKILL; restart") == 20
    expected, found = losses(long_undisturbed), losses(folder)
    assert sorted(found) == list(range(1, LONG_STEPS + 1))
    assert max(abs(found[step] - expected[step]) for step in expected) < 1e-5


PACKED = r"batches of 8 examples packed into \d rows of \d+ tokens"
EPOCHS, STEPS_PER_EPOCH, BATCH = 3, 16, 8


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A folder with a pre-trained model and a task of short and of long texts."""
    folder = tmp_path_factory.mktemp("task")
    made = make_pretrained(folder / "made", max_positions=128)
    made.rename(folder / "pretrained")
    catalogs = folder / "tasks" / "catalogs"
    catalogs.mkdir(parents=True)
    labels = ("record", "word")
    (catalogs / "labels.txt").write_text("\n".join(labels) + "\n")
    rows = [
        f"{' '.join([label] * words)} here\t{label}\n"
        for label in labels
        for words in (1, 9)
    ]
    copies = STEPS_PER_EPOCH * BATCH // len(rows)
    (catalogs / "train-en.tsv").write_text("".join(rows * copies))
    return folder


def finetune(task, folder):
    """The command's words; half of every batch is on the second device."""
    params = [
        'MeshConfig.mesh_shape = "d:2"',
        'MeshConfig.layout_rules = "batch:d"',
        f"FinetuningConfig.num_epochs = {EPOCHS}",
        "OptimizerConfig.learning_rate = 1e-3",
        f"TrainingConfig.batch_size = {BATCH}",
        "TrainingConfig.log_steps = 1",
        "TrainingConfig.save_checkpoints_steps = 10",
        PATIENCE,
    ]
    return [
        "decoupled", "finetune", "--mode=train", "--task=catalogs",
        *(f"--gin_param={param}" for param in params),
        f"--data_dir={task / 'tasks'}", f"--init_checkpoint={task / 'pretrained'}",
        f"--model_dir={folder}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def tuned_losses(task, tmp_path_factory):
    """Step -> loss of one process that fine-tunes on two virtual devices."""
    folder = tmp_path_factory.mktemp("tuned") / "run"
    _, *words = finetune(task, folder)
    done = decoupled(*words)
    assert done.returncode == 0, done.stderr
    assert re.search(PACKED, done.stdout)
    found = losses(folder)
    assert sorted(found) == list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
    return found


def test_two_processes_fine_tune_like_one(task, tuned_losses, tmp_path):
    code, out, error = finish(supervised(finetune(task, tmp_path / "run")))
    assert code == 0, error
    assert re.search(PACKED, out) and "worker 0 of 2" in out
    assert losses(tmp_path / "run") == pytest.approx(tuned_losses, rel=0, abs=1e-5)


@pytest.mark.slow
def test_killed_fine_tuning_goes_on(task, tuned_losses, tmp_path):
    process = supervised(finetune(task, tmp_path / "run"))
    saved = tmp_path / "run" / "checkpoint"
    out = end_with_a_killed_worker(process, saved)
    assert len(re.findall(PACKED, out)) == 2
    assert losses(tmp_path / "run") == pytest.approx(tuned_losses, rel=0, abs=1e-5)
