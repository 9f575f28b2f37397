"""Steps of a long command; a driver and its workers, watched, restarted and ended."""

import contextlib
import json
import os
import signal
import sys
import threading
import time

import pytest

from decoupled.core import files
from decoupled.core.errors import Interrupted, Terminated, UserError
from decoupled.launch.supervision import (
    HostProcess,
    Step,
    free_addresses,
    gpu_shares,
    members,
    run_step,
    seconds_of_steps,
    supervise,
)

VISIBLE = "CUDA_VISIBLE_DEVICES"


def python(code):
    return [sys.executable, "-c", code]


FOREVER = python("import time; time.sleep(60)")


def signal_when(ready, number):
    """Sends this process a signal as soon as a file is there."""

    def send():
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()


@pytest.mark.parametrize(
    "name, raised, message",
    [
        ("SIGINT", Interrupted, "^Ctrl-C: ended in step records$"),
        ("SIGTERM", Terminated, "^SIGTERM: ended in step records; run the same comm"),
    ],
)
def test_a_signal_reaches_a_step_and_is_waited_for(tmp_path, name, raised, message):
    """A child of `subprocess.run` is killed a quarter of a second after Ctrl-C."""
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    number = getattr(signal, name)
    before = signal.getsignal(number)
    step = python(
        "import os, pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(0.5)\n"
        f"    pathlib.Path({str(saved)!r}).write_text(str(os.getpgid(0)))\n"
        "    sys.exit(130)\n"
        f"signal.signal(signal.{name}, save)\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "time.sleep(60)"
    )
    signal_when(ready, number)
    with pytest.raises(raised, match=message):
        run_step(str(tmp_path), Step("", "records", step))
    # Ctrl-C of the terminal comes to the group of the demo, and so only once.
    assert int(saved.read_text()) != os.getpgid(0)
    assert signal.getsignal(number) == before
    # The rest of an interrupted step is not the time of the step.
    run_step(str(tmp_path), Step("", "records", ["true"]))
    assert seconds_of_steps(str(tmp_path)) == {"records": None}


def test_steps_are_shown_and_their_first_full_runs_are_timed(tmp_path, capsys):
    run_step(str(tmp_path), Step("[1/2] nothing", "quick", ["true", "a b"]))
    assert capsys.readouterr().out == "\n[1/2] nothing\n$ true 'a b'\n"
    assert list(seconds_of_steps(str(tmp_path))) == ["quick"]
    files.write_json(str(tmp_path / "seconds.json"), {"quick": 99.0})
    run_step(str(tmp_path), Step("", "quick", ["true"]))
    assert capsys.readouterr().out == ""
    assert seconds_of_steps(str(tmp_path)) == {"quick": 99.0}


@pytest.mark.parametrize("code, shown", [(0, ""), (3, "a line\n")])
def test_a_step_that_fails_is_named_with_its_errors(tmp_path, capfd, code, shown):
    write = python(f"import sys; sys.stderr.write('a line\\n'); sys.exit({code})")
    message = "quiet: ended with code 3, see above; mend"
    with pytest.raises(UserError, match=message) if code else contextlib.nullcontext():
        run_step(str(tmp_path), Step("speaks", "quiet", write, quiet=True))
    assert capfd.readouterr().err == shown
    assert (seconds_of_steps(str(tmp_path))["quiet"] is None) == (code != 0)


def run(starts, max_restarts=3):
    """Supervises starts one after the other; (exit code, lines, starts left)."""
    lines, left = [], list(starts)
    code = supervise(lambda: left.pop(0), max_restarts, lines.append)
    return code, lines, left


def start(driver, *workers):
    named = {f"worker {n}": words for n, words in enumerate(workers, start=1)}
    return [HostProcess(*each, {}) for each in {**named, "driver": driver}.items()]


@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_a_driver_that_ends_by_itself_ends_the_run(code):
    starts = [start(python(f"raise SystemExit({code})"), FOREVER)] * 2
    assert run(starts) == (code, [], starts[1:])


def test_a_lost_worker_restarts_everybody(tmp_path):
    mark = tmp_path / "started"
    driver = python(
        f"import os, sys, time\nif os.path.exists({str(mark)!r}): sys.exit(0)\n"
        f"open({str(mark)!r}, 'w').close(); time.sleep(60)"
    )
    waits = python(
        f"import os, signal, time\nwhile not os.path.exists({str(mark)!r}):\n"
        "    time.sleep(0.01)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    code, lines, left = run([start(driver, waits), start(driver, FOREVER)])
    assert (code, left) == (0, [])
    assert lines == ["worker 1 was killed by SIGKILL; restart 1 of 3 in 0.5 s"]


def test_a_driver_that_lost_its_worker_or_was_killed_is_restarted():
    killed = python("import os; os.kill(os.getpid(), 9)")
    starts = [start(python("raise SystemExit(75)")), start(killed), start(python(""))]
    code, lines, left = run(starts)
    assert (code, left) == (0, [])
    assert lines == [
        "driver ended with code 75; restart 1 of 3 in 0.5 s",
        "driver was killed by SIGKILL; restart 2 of 3 in 1.0 s",
    ]


def test_it_gives_up_also_where_the_driver_is_on_another_host(tmp_path):
    path = tmp_path / "starts"
    worker = python(f"open({str(path)!r}, 'a').write('x')")
    starts = [[HostProcess("worker 1", worker, {})]] * 3
    assert run(starts, max_restarts=1) == (
        75,
        [
            "worker 1 ended with code 0; restart 1 of 1 in 0.5 s",
            "worker 1 ended with code 0; gave up after 1 restarts",
        ],
        starts[2:],
    )
    assert path.read_text() == "xx"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_reaches_the_driver_which_may_save(tmp_path, name):
    ready = tmp_path / "ready"
    number = getattr(signal, name)
    before = signal.getsignal(number)
    driver = python(
        "import signal, sys, time\n"
        f"signal.signal(signal.{name}, lambda *_: sys.exit(99))\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "time.sleep(60)"
    )
    signal_when(ready, number)
    assert run([start(driver, FOREVER)]) == (99, [], [])
    assert signal.getsignal(number) == before


def test_ctrl_c_of_the_terminal_comes_to_the_driver_through_the_supervisor_alone(
    tmp_path,
):
    """So that it comes once, and workers live until the driver has saved."""
    seen = tmp_path / "seen"
    leads = "import os, sys; leads = os.getpgid(0) == os.getpid()\n"
    worker = python(f"{leads}import time\nif not leads: sys.exit(3)\ntime.sleep(60)")
    driver = python(f"{leads}open({str(seen)!r}, 'w').write(str(leads))")
    assert run([start(driver, worker)])[0] == 0
    assert seen.read_text() == "True"


def test_a_signal_between_two_starts_ends_the_run():
    starts, lines = [start(python("raise SystemExit(75)"))], []

    def say(line):
        lines.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    assert supervise(starts.pop, 3, say) == 75
    assert lines == ["driver ended with code 75; restart 1 of 3 in 0.5 s"]


def test_processes_of_one_host():
    command = ["decoupled", "pretrain", "--mode=train"]
    addresses = free_addresses(3)
    assert len(set(addresses)) == 3
    gpus = ["6", "7", "8"]
    *workers, driver = members(command, addresses, range(3), 2, False, gpus)
    assert driver.command == [sys.executable, "-m", *command]
    assert driver.environment[VISIBLE] == "6"
    variable = json.loads(driver.environment["TF_CONFIG"])
    assert variable["cluster"]["worker"] == addresses
    assert variable["task"] == {"type": "worker", "index": 0}
    for index, (_, words, variables) in enumerate(workers, start=1):
        assert f"--workers={','.join(addresses)}" in words
        assert f"--index={index}" in words and "--devices=2" in words
        assert "--ends_with_parent" in words
        assert variables == {VISIBLE: gpus[index]}


def test_the_processes_are_told_which_ports_the_user_accepted():
    *_, worker, driver = members(["bash", "run.sh"], ["a:1", "b:2"], [0, 1], 1, True)
    assert driver.command == ["bash", "run.sh"]
    assert json.loads(driver.environment["TF_CONFIG"])["accept_open_ports"] is True
    assert "--accept_open_ports" in worker.command


@pytest.mark.parametrize(
    "processes, gpus, visible, expected",
    [
        (2, 2, None, ["0", "1"]),
        (2, 5, None, ["0,1", "2,3"]),
        (2, 8, "6, 3,GPU-1,0", ["6,3", "GPU-1,0"]),
        # CUDA reads no further than -1.
        (2, 8, "4,5,-1,6", ["4", "5"]),
        (2, 8, "", []),
        (2, 8, "-1", []),
        (2, 0, None, []),
        # A single process uses all that there are.
        (1, 4, None, []),
    ],
)
def test_processes_share_the_gpus_of_a_host(processes, gpus, visible, expected):
    assert gpu_shares(processes, gpus, visible) == expected


@pytest.mark.parametrize("gpus, visible", [(2, None), (8, "0,1")])
def test_fewer_gpus_than_processes_are_refused(gpus, visible):
    with pytest.raises(UserError, match="--processes: 3, but this host has 2 GPUs"):
        gpu_shares(3, gpus, visible)


def test_each_process_sees_its_own_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv(VISIBLE, "7,8,9")

    def writes(name):
        code = f"open({str(tmp_path / name)!r}, 'w').write(os.environ[{VISIBLE!r}])"
        return f"import os, time; {code}"

    waits = f"while not os.path.exists({str(tmp_path / 'worker')!r}): time.sleep(0.01)"
    driver = python(f"import os, time\n{waits}\n{writes('driver')}")
    worker = python(f"{writes('worker')}; time.sleep(60)")
    starts = [HostProcess("worker 1", worker, {VISIBLE: "8"})]
    starts.append(HostProcess("driver", driver, {VISIBLE: "7"}))
    assert run([starts])[0] == 0
    assert (tmp_path / "driver").read_text() == "7"
    assert (tmp_path / "worker").read_text() == "8"
