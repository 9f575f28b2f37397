"""Several processes as one run: equal numbers, one writer, and how all end."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.training.events import read_scalars
from decoupled.training.xla import coordination, hosts
from tests.commands.pretraining import (
    checkpoint,
    finish,
    make_records,
    pretrain_words,
    wait_for,
)

pytestmark = pytest.mark.skipif(
    find_spec("jax") is None, reason="needs the [xla] extra"
)

MAIN = "from decoupled.__main__ import main; main()"
MESH = [
    "MeshConfig.mesh_shape = 'd:2;m:2'",
    "MeshConfig.layout_rules = 'batch:d;vocab:m;heads:m'",
]
# The head alone is trained, in programs that are compiled in half the time.
HEAD_ALONE = "OptimizerConfig.rates = {'bert/*': 0}"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """(records folder, vocabulary)."""
    return make_records(tmp_path_factory.mktemp("data"))


def words(data, folder, steps, *more):
    settings = [*MESH, f"ScheduleConfig.train_steps = {steps}"]
    train = pretrain_words(data, folder, *settings, *more)
    return [*train, "--accelerator=cpu"]


def commands(data, folder, steps, more=((), ()), code=("", "")):
    """What is behind `python` for each process; `more` are bindings of each, `code`
    what it runs first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    return [
        [
            *("-c", f"{code[index]}\n{MAIN}"),
            *words(data, folder, steps, *more[index])[1:],
            *(f"--coordinator={address}", f"--processes={len(more)}"),
            f"--process={index}",
        ]
        for index in range(len(more))
    ]


def start(*arguments, **options):
    """Starts processes with these `commands`."""
    return [
        subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands(*arguments, **options)
    ]


# Processes whose imports are made once: nothing of TensorFlow and JAX runs before the
# forks. Lists of processes run one after the other.
FORKS = """
import json, os, sys
import jax
from decoupled.commands import pretrain
from decoupled.runs import pretraining
from decoupled.training.xla import loop

for number, group in enumerate(json.loads(sys.argv[1])):
    children = []
    for index, (_, code, *sys.argv[1:]) in enumerate(group):
        children.append(os.fork())
        if not children[-1]:
            for stream in (1, 2):
                os.dup2(os.open(f"{number}-{index}-{stream}", 65), stream)
            exec(code)
            sys.exit()
    print(*(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children))
"""


def forked(folder, *groups):
    """(exit code, stdout, stderr) of each process of the groups of `commands`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, json.dumps(groups)],
        capture_output=True, text=True, cwd=folder, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [
        [
            (
                int(code),
                *((folder / f"{number}-{index}-{s}").read_text() for s in (1, 2)),
            )
            for index, code in enumerate(line.split())
        ]
        for number, line in enumerate(done.stdout.splitlines())
    ]


def losses(folder):
    return read_scalars(str(folder), "loss")


def assert_equal_runs(folder, expected):
    assert losses(folder) == losses(expected)
    weights = checkpoint(expected)
    for name, value in checkpoint(folder).items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)


def run_alone(data, folder, steps, *more):
    """Runs one process with four devices, which add as several processes do."""
    [process] = start(data, folder, steps, more=[more])
    code, _, error = finish(process)
    assert code == 0, error
    return folder


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    return run_alone(data, tmp_path_factory.mktemp("undisturbed") / "run", 120)


# What the clock saved is not removed.
KEEPING = """
from decoupled.training import bookkeeping
bookkeeping.remove_checkpoint = lambda path: None
"""
# Of the first process: its clock decides for all, and a library writes a line.
HASTY = f"""{KEEPING}
import os
bookkeeping.FIRST_SECONDS = 0.0
begin = bookkeeping.Monitor.begin
def begin_and_write(self, step):
    begin(self, step)
    os.write(2, b"from a library")
bookkeeping.Monitor.begin = begin_and_write
"""


@pytest.mark.interop
def test_two_processes_give_the_numbers_of_one(data, tmp_path):
    alone, folder = tmp_path / "alone", tmp_path / "run"
    more = ((HEAD_ALONE,), (HEAD_ALONE,))
    [whole], ends = forked(
        tmp_path,
        commands(data, alone, 12, more[:1]),
        commands(data, folder, 12, more, code=(HASTY, KEEPING)),
    )
    assert [code for code, _, _ in (whole, *ends)] == [0] * 3, (whole, *ends)
    assert "2 processes: process 0 (" in ends[0][1]
    assert "step 12/12" in ends[0][1] and "step 12/12" not in ends[1][1]
    assert_equal_runs(folder, alone)
    assert (folder / "model.ckpt-10.index").exists()
    written = {path.name for path in folder.iterdir()}
    assert not [name for name in written if "tmp" in name or "temp" in name]
    logs = {path.name: path.read_text() for path in (folder / "logs").iterdir()}
    assert set(logs) == {"process-0.txt", "process-1.txt"}
    assert "from a library" in logs["process-0.txt"]
    assert "from a library" not in logs["process-1.txt"]
    assert "from a library" not in ends[0][2]


@pytest.mark.interop
def test_who_reads_other_text_is_named(data, tmp_path):
    """As from a local disk of each host, on which one has a copy of another day."""
    for name in ("a", "b", "c"):
        shutil.copytree(data[0], tmp_path / name / "records")
    for folder, split in (("b", "train"), ("c", "eval")):
        path = tmp_path / folder / "records/manifest.json"
        content = json.loads(path.read_text())
        content["splits"][split]["sw"]["files"][0]["sha256"] = "0" * 64
        path.write_text(json.dumps(content))
    places = [f"import os\nos.chdir({str(tmp_path / name)!r})" for name in "abc"]
    groups = [
        commands(
            ("records", data[1]), tmp_path / "run", 2, ((), ()), (places[0], place)
        )
        for place in places[1:]
    ]
    texts = ("the training text in records", "the held-out text in records")
    for ends, text in zip(forked(tmp_path, *groups), texts, strict=True):
        assert [code for code, _, _ in ends] == [2, 2], ends
        assert "process 1 (" in ends[0][2] and f": {text} is '" in ends[0][2]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_other_and_costs_no_number(
    data, undisturbed, tmp_path, killed
):
    processes = start(data, tmp_path, 120)
    wait_for(tmp_path / "model.ckpt-50.index", processes[0])
    processes[killed].kill()
    code, _, error = finish(processes[1 - killed])
    assert code == 75, error
    assert "run again, what is saved is kept" in error
    finish(processes[killed])
    ends = [finish(process) for process in start(data, tmp_path, 120)]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert_equal_runs(tmp_path, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "signalled, number, code",
    [(0, signal.SIGINT, 130), (1, signal.SIGTERM, 143), (1, signal.SIGINT, 130)],
)
def test_all_save_the_same_step_where_one_is_told_to_stop(
    data, tmp_path, signalled, number, code
):
    processes = start(data, tmp_path, 100_000)
    wait_for(tmp_path / "model.ckpt-50.index", processes[0])
    os.kill(processes[signalled].pid, number)
    ends = [finish(process) for process in processes]
    assert [end[0] for end in ends] == [code] * 2, ends
    saved = int(checkpoint(tmp_path)["global_step"])
    assert f"saved at step {saved}" in ends[0][2] and saved == max(losses(tmp_path))


# The quick test of it is in tests/core/test_joining.py.
@pytest.mark.slow
def test_a_setting_that_differs_is_named_before_anything_is_written(data, tmp_path):
    processes = start(
        data, tmp_path / "run", 20, more=((), ["TrainingConfig.seed = 7"])
    )
    for code, _, error in map(finish, processes):
        assert code == 2
        assert "process 1 (" in error
        assert "a setting is 'TrainingConfig.seed = 7', not" in error
    assert not (tmp_path / "run").exists()


# Of one process, what fails and how all end.
MISTAKE = """
from decoupled.core.errors import UserError
from decoupled.training.bookkeeping import Monitor
def fail(self, step, values):
    raise UserError("a mistake")
Monitor.after_steps = fail
"""
FULL = """
from decoupled.training.checkpoint_files import CheckpointWriter
def fail(self):
    raise OSError(28, "No space left on device")
CheckpointWriter._flush = fail
"""
STUCK = """
import time
from decoupled.training.bookkeeping import Monitor
before = Monitor.after_steps
def wait(self, step, values):
    before(self, step, values)
    if step > 60:
        time.sleep(600)
Monitor.after_steps = wait
"""
HURRY = """
from decoupled.training.xla import hosts
hosts._STUCK_SECONDS = 5.0
"""


# A process that compiles for longer than others wait for its devices.
SLOW = """
import time
from decoupled.training.xla import loop
before = loop._compile
def compile_slowly(*arguments):
    time.sleep(40)
    return before(*arguments)
loop._compile = compile_slowly
"""


@pytest.mark.slow
def test_who_compiles_for_long_is_awaited(data, tmp_path):
    ends = [finish(each) for each in start(data, tmp_path, 2, code=("", SLOW))]
    assert [code for code, _, _ in ends] == [0, 0], ends


def test_kubernetes_is_not_asked(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert coordination.scheduled_hosts("cpu", 1.0) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "code, expected, message",
    [
        ((MISTAKE, ""), 2, "process 0 (HOST): error: a mistake"),
        (("", MISTAKE), 2, "process 1 (HOST): error: a mistake"),
        (("", FULL), 2, "saved (process 1 (HOST): No space left on device); what"),
        ((HURRY, HURRY + STUCK), 75, "no step for 5 s; run again, what is saved is"),
    ],
)
def test_what_ends_one_process_ends_all_with_its_code(
    data, tmp_path, code, expected, message
):
    ends = [finish(each) for each in start(data, tmp_path, 10_000, code=code)]
    assert [end[0] for end in ends] == [expected] * 2, ends
    message = message.replace("HOST", socket.gethostname())
    assert message in ends[0][2] + ends[1][2]


def test_a_folder_that_one_process_does_not_see_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts.hosts, "count", lambda: 2)
    monkeypatch.setattr(hosts.hosts, "gather", lambda name, sees: [sees, False])
    monkeypatch.setattr(hosts, "_watch", SimpleNamespace(names=["one", "another"]))
    message = "another does not see what one writes there"
    with hosts.hosts.private(), pytest.raises(UserError, match=message):
        with hosts.shared(str(tmp_path)):
            pass
    assert list(tmp_path.iterdir()) == []
