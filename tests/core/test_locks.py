"""A folder has one writer at a time, and a dead one keeps nobody out."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from decoupled.core import locks
from decoupled.core.errors import UserError

HOLDER = """
import os, sys, time
from decoupled.core import locks
with locks.hold(sys.argv[1]):
    if "fork" in sys.argv:
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, b"runs")
            time.sleep(60)
            os._exit(0)
        # The worker gives its copy of the lock up when it begins to run.
        os.read(reading, 4)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds tmp_path/run and waits; killed at the end."""
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    started = []

    def start(*more):
        command = [sys.executable, str(script), str(tmp_path / "run"), *more]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def refusal(folder):
    with pytest.raises(UserError) as caught, locks.hold(str(folder)):
        pass
    return str(caught.value)


def test_the_second_command_is_told_who_holds_the_folder(tmp_path, holder):
    process = holder()
    result = re.fullmatch(
        rf"{tmp_path}/run: holder.py \(process (\d+) on (.+), since (.+) UTC\) writes "
        "here; wait until it ends, stop it, or use another folder",
        refusal(tmp_path / "run"),
    )
    assert result, refusal(tmp_path / "run")
    assert int(result[1]) == process.pid
    assert result[2] == socket.gethostname()
    begun = time.strptime(result[3], "%Y-%m-%d %H:%M:%S")
    assert abs(time.mktime(time.gmtime()) - time.mktime(begun)) < 60
    # Who was refused has taken nothing from the holder.
    assert str(process.pid) in refusal(tmp_path / "run")


def test_a_forked_worker_does_not_keep_the_lock_of_a_dead_command(tmp_path, holder):
    process = holder("fork")
    process.kill()
    process.wait()
    with locks.hold(str(tmp_path / "run")):
        pass


def test_the_end_of_a_worker_leaves_the_lock(tmp_path):
    with locks.hold(str(tmp_path)):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert "writes here" in refusal(tmp_path)


def test_nothing_is_left_in_the_folder(tmp_path):
    with locks.hold(str(tmp_path)):
        (tmp_path / "result").write_text("")
    assert os.listdir(tmp_path) == ["result"]
    with locks.hold(str(tmp_path)):
        pass


def test_a_folder_that_stays_empty_is_taken_back(tmp_path):
    with pytest.raises(KeyboardInterrupt), locks.hold(str(tmp_path / "a" / "b")):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    (tmp_path / "mine").mkdir()
    with locks.hold(str(tmp_path / "mine")):
        pass
    assert os.listdir(tmp_path) == ["mine"]


def test_a_folder_that_is_removed_by_its_command(tmp_path):
    with locks.hold(str(tmp_path / "run")):
        os.remove(tmp_path / "run" / locks.LOCK)
        os.rmdir(tmp_path / "run")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "[" * 2000, json.dumps({"command": "x\ny" * 99})]
)
def test_a_lock_file_that_says_nothing(tmp_path, content):
    with locks.hold(str(tmp_path)):
        (tmp_path / locks.LOCK).write_text(content)
        assert refusal(tmp_path).startswith(f"{tmp_path}: another process writes here")


def test_a_full_disk_takes_the_name_of_the_holder_and_not_the_lock(
    tmp_path, monkeypatch, capsys
):
    def nothing():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(locks, "_description", nothing)
    with locks.hold(str(tmp_path)):
        monkeypatch.undo()
        assert "another process writes here" in refusal(tmp_path)
    assert capsys.readouterr().out == ""


def test_a_folder_without_locks_is_reported(tmp_path, monkeypatch, capsys):
    import fcntl

    def flock(descriptor, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locks.hold(str(tmp_path)):
        pass
    message = (
        "cannot be locked (Operation not supported); make sure that no other command"
    )
    assert capsys.readouterr().out == f"{tmp_path}: {message} writes here\n"


COMMANDS = {
    "build_corpus": "--source=catalogs:django --output_dir",
    "build_records": "--corpus_dir=none --vocabulary=none --output_dir",
    "build_vocabulary": "--corpus_dir=none --output_dir",
    "pretrain": "--gin_file=models/demo_decoupled.gin "
    "--gin_file=runs/demo_pretrain.gin --records_dir=none --vocabulary=none "
    "--model_dir",
    "finetune": "--gin_file=runs/demo_finetune.gin --task=catalogs --data_dir=none "
    "--init_checkpoint=none --model_dir",
    "retrieve": "--gin_file=tasks/retrieval.gin --task=tatoeba --data_dir=none "
    "--init_checkpoint=none --output_dir",
    "sweep": "--gin_file=sweeps/table4.gin --records_dir=none --vocabulary=none "
    "--sweep_dir",
    "reproduce": "--work_dir",
    "demo": "--work_dir",
    "analyze layer_drop": "--finetuned_dir=none --output_dir",
}


# One process for all: the start of each takes longer than its command.
EACH = """
import json, sys
from tests.command_line import mistake
lines = [mistake(*words) for words in json.load(sys.stdin)]
print(json.dumps([lines, "tensorflow" in sys.modules]))
"""


def test_who_writes_for_a_long_time_locks_first(tmp_path):
    """Also before TensorFlow is imported, so that the answer comes at once."""
    folder = tmp_path / "run"
    words = [f"{name} {flags}={folder}".split() for name, flags in COMMANDS.items()]
    with locks.hold(str(folder)):
        done = subprocess.run(
            [sys.executable, "-c", EACH], input=json.dumps(words),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert os.listdir(folder) == [locks.LOCK]
    assert done.returncode == 0, done.stderr
    lines, has_tensorflow = json.loads(done.stdout)
    for command, line in zip(COMMANDS, lines, strict=True):
        assert line.startswith(f"decoupled {command}: error: {folder}: ")
        assert f"process {os.getpid()} on" in line
    assert not has_tensorflow


def test_a_remote_folder_is_reported(capsys):
    with locks.hold("ram://none/run"):
        pass
    assert capsys.readouterr().out == (
        "ram://none/run: cannot be locked (it is remote); make sure that no other "
        "command writes here\n"
    )
