"""Training over several processes: the losses of one, whoever dies."""

import os
import random
import re
import signal
import time

import numpy as np
import pytest

from decoupled.training.events import read_scalars
from tests.commands.pretraining import (
    checkpoint,
    finish,
    make_records,
    pretrain_words,
    start_command,
    wait_for,
)

STEPS = 120
# Enough for 20 kills, each after a checkpoint of its own, on a fast machine too.
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


def supervised(data, folder, steps, *more):
    return start_command(
        "decoupled", "supervise", "--processes=2", "--max_restarts=100", "--",
        *pretrain(data, folder, steps, *more),
    )  # fmt: skip


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
    process = supervised(data, tmp_path / "run", STEPS)
    wait_for(tmp_path / "run" / "model.ckpt-50.index", process)
    [worker] = children(process, "worker")
    os.kill(worker, signal.SIGKILL)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "worker 1 was killed by SIGKILL; restart 1 of 100" in out
    assert re.search(r"resuming from .*model.ckpt-\d+ at step \d+", out)
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
    from decoupled.launch.supervision import free_ports

    addresses = [f"localhost:{port}" for port in free_ports(2)]
    worker = start_command(
        "decoupled", "worker", f"--workers={','.join(addresses)}", "--index=1"
    )
    try:
        workers = f"ClusterConfig.workers = {tuple(addresses)}"
        driver = start_command(*pretrain(data, tmp_path / "run", 100_000, workers))
        wait_for(tmp_path / "run" / "model.ckpt-50.index", driver)
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
        data, folder, LONG_STEPS, "TrainingConfig.save_checkpoints_steps = 5"
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
