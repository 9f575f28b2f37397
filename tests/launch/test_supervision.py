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
    Group,
    Step,
    Supervisor,
    cluster_variable,
    free_ports,
    gpu_shares,
    local_group,
    run_step,
    seconds_of_steps,
)


@pytest.mark.parametrize(
    "name, raised, told",
    [
        ("SIGINT", Interrupted, "^Ctrl-C: ended in step records$"),
        ("SIGTERM", Terminated, "^SIGTERM: ended in step records; run the same comm"),
    ],
)
def test_a_signal_reaches_a_step_and_is_waited_for(tmp_path, name, raised, told):
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
    with pytest.raises(raised, match=told):
        run_step(str(tmp_path), Step("", "records", step))
    # Ctrl-C of the terminal comes to the group of the demo, and so only once.
    assert int(saved.read_text()) != os.getpgid(0)
    assert signal.getsignal(number) == before
    assert not (tmp_path / "seconds.json").exists()


def test_a_step_that_fails_is_named(tmp_path):
    with pytest.raises(UserError, match="broken: ended with code 3, see above; mend"):
        run_step(str(tmp_path), Step("", "broken", python("raise SystemExit(3)")))
    assert not (tmp_path / "seconds.json").exists()


def test_seconds_of_a_step_are_those_of_its_first_full_run(tmp_path):
    run_step(str(tmp_path), Step("", "quick", python("pass")))
    files.write_json(str(tmp_path / "seconds.json"), {"quick": 99.0})
    run_step(str(tmp_path), Step("", "quick", python("pass")))
    assert files.read_json(str(tmp_path / "seconds.json")) == {"quick": 99.0}


def test_a_step_is_shown_as_a_command_of_a_shell(tmp_path, capsys):
    run_step(str(tmp_path), Step("[1/2] nothing", "quick", ["true", "a b"]))
    assert capsys.readouterr().out == "\n[1/2] nothing\n$ true 'a b'\n"
    assert list(seconds_of_steps(str(tmp_path))) == ["quick"]
    run_step(str(tmp_path), Step("", "silent", ["true"]))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("code, shown", [(0, ""), (3, "a line\n")])
def test_a_quiet_step_prints_its_errors_where_it_fails(tmp_path, capfd, code, shown):
    write = python(f"import sys; sys.stderr.write('a line\\n'); sys.exit({code})")
    with contextlib.suppress(UserError):
        run_step(str(tmp_path), Step("speaks", "quiet", write, quiet=True))
    assert capfd.readouterr().err == shown


VISIBLE = "CUDA_VISIBLE_DEVICES"
FOREVER = [sys.executable, "-c", "import time; time.sleep(60)"]


def python(code):
    return [sys.executable, "-c", code]


def supervise(groups, max_restarts=3):
    """Runs groups one after the other; (exit code, lines, groups left)."""
    lines, left = [], list(groups)
    supervisor = Supervisor(lambda: left.pop(0), max_restarts, lines.append)
    return supervisor.run(), lines, left


def group(driver, *workers):
    return Group(driver, workers, {})


@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_a_driver_that_ends_by_itself_ends_the_run(code):
    groups = [group(python(f"raise SystemExit({code})"), FOREVER)] * 2
    assert supervise(groups) == (code, [], groups[1:])


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
    code, lines, left = supervise([group(driver, waits), group(driver, FOREVER)])
    assert (code, left) == (0, [])
    assert lines == ["worker 1 was killed by SIGKILL; restart 1 of 3 in 0.5 s"]


def test_a_driver_that_lost_its_worker_or_was_killed_is_restarted():
    killed = python("import os; os.kill(os.getpid(), 9)")
    groups = [group(python("raise SystemExit(75)")), group(killed), group(python(""))]
    code, lines, left = supervise(groups)
    assert (code, left) == (0, [])
    assert lines == [
        "driver ended with code 75; restart 1 of 3 in 0.5 s",
        "driver was killed by SIGKILL; restart 2 of 3 in 1.0 s",
    ]


def test_it_gives_up():
    groups = [group(python("raise SystemExit(75)"))] * 3
    code, lines, left = supervise(groups, max_restarts=1)
    assert (code, len(left)) == (75, 1)
    assert lines[-1] == "driver ended with code 75; gave up after 1 restarts"


def test_a_worker_alone_is_kept_running(tmp_path):
    path = tmp_path / "starts"
    worker = python(f"open({str(path)!r}, 'a').write('x')")
    code, lines, _ = supervise([Group(None, [worker], {})] * 2, max_restarts=1)
    assert code == 75
    assert path.read_text() == "xx"
    assert lines[0] == "worker 1 ended with code 0; restart 1 of 1 in 0.5 s"


def signal_when(ready, number):
    """Sends this process a signal as soon as a file is there."""

    def send():
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()


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
    assert supervise([group(driver, FOREVER)]) == (99, [], [])
    assert signal.getsignal(number) == before


def test_ctrl_c_of_the_terminal_comes_to_the_driver_through_the_supervisor_alone(
    tmp_path,
):
    """So that it comes once, and workers live until the driver has saved."""
    seen = tmp_path / "seen"
    own = "import os, sys; own = os.getpgid(0) == os.getpid()\n"
    worker = python(f"{own}import time\nif not own: sys.exit(3)\ntime.sleep(60)")
    driver = python(f"{own}open({str(seen)!r}, 'w').write(str(own))")
    assert supervise([group(driver, worker)])[0] == 0
    assert seen.read_text() == "True"


def test_a_signal_between_two_starts_ends_the_run():
    groups, lines = [group(python("raise SystemExit(75)"))], []

    def say(line):
        lines.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    assert Supervisor(lambda: groups.pop(), 3, say).run() == 75
    assert lines == ["driver ended with code 75; restart 1 of 3 in 0.5 s"]


def test_commands_of_a_local_group():
    made = local_group(["decoupled", "pretrain", "--mode=train"], 3, 2)
    assert made.driver == [
        sys.executable, "-m", "decoupled", "pretrain", "--mode=train"
    ]  # fmt: skip
    variable = json.loads(made.environment["TF_CONFIG"])
    addresses = variable["cluster"]["worker"]
    assert len(set(addresses)) == 3
    assert variable["task"] == {"type": "worker", "index": 0}
    for index, worker in enumerate(made.workers, start=1):
        assert f"--workers={','.join(addresses)}" in worker
        assert f"--index={index}" in worker and "--devices=2" in worker
        assert "--ends_with_parent" in worker


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
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8,9")

    def writes(name):
        code = f"open({str(tmp_path / name)!r}, 'w').write(os.environ[{VISIBLE!r}])"
        return python(f"import os; {code}")

    waits = f"while not os.path.exists({str(tmp_path / 'worker')!r}): time.sleep(0.01)"
    driver = python(f"import os, time\n{waits}\n{writes('driver')[-1]}")
    worker = python(f"{writes('worker')[-1]}; import time; time.sleep(60)")
    code, _, _ = supervise([Group(driver, [worker], {}, ["7", "8"])])
    assert code == 0
    assert (tmp_path / "driver").read_text() == "7"
    assert (tmp_path / "worker").read_text() == "8"


def test_other_commands_stay_as_they_are():
    assert local_group(["bash", "run.sh"], 1, 1).driver == ["bash", "run.sh"]
    variable = json.loads(cluster_variable(["a:1", "b:2"], 1)["TF_CONFIG"])
    assert variable["task"]["index"] == 1
    assert len(set(free_ports(5))) == 5
