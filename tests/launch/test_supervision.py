"""Steps of a long command; processes that are restarted, and ended, together."""

import contextlib
import os
import signal
import sys

import pytest

from decoupled.core import files
from decoupled.core.errors import Interrupted, Terminated, UserError
from decoupled.launch import supervision
from decoupled.launch.supervision import (
    Step,
    members,
    run_step,
    seconds_of_steps,
    supervise,
)
from tests.processes import python, signal_when

FOREVER = ["sleep", "60"]


def shell(script):
    """A program that starts sooner than an interpreter of Python."""
    return ["sh", "-c", script]


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
    signal_when(ready.exists, number)
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
    write = shell(f"echo a line >&2; exit {code}")
    message = "quiet: ended with code 3, see above; mend"
    with pytest.raises(UserError, match=message) if code else contextlib.nullcontext():
        run_step(str(tmp_path), Step("speaks", "quiet", write, quiet=True))
    assert capfd.readouterr().err == shown
    assert (seconds_of_steps(str(tmp_path))["quiet"] is None) == (code != 0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """Half a second between two starts, and then longer, otherwise."""
    monkeypatch.setattr(supervision, "_FIRST_PAUSE", 0.1)


def run(starts, max_restarts=3):
    """Supervises starts one after the other; (exit code, lines, starts left)."""
    lines, left = [], list(starts)
    code = supervise(lambda: left.pop(0), max_restarts, lines.append)
    return code, lines, left


def ends(code):
    return shell(f"exit {code}")


KILLED = shell("kill -9 $$")
LATER = shell("sleep 0.3; exit 75")


@pytest.mark.parametrize(
    "codes, expected",
    [([0, 0], 0), ([1], 1), ([2, 75], 2), ([75, 2], 2), ([143, 143], 143)],
)
def test_a_run_that_ends_by_itself_is_not_started_again(codes, expected):
    starts = [list(map(ends, codes))] * 2
    assert run(starts) == (expected, [], starts[1:])


def test_all_are_started_again_where_one_was_killed_or_lost_another():
    starts = [[LATER, KILLED], [ends(75)], [KILLED], [ends(0), ends(0)]]
    code, lines, left = run(starts)
    assert (code, left) == (0, [])
    assert lines == [
        "process 1 was killed by SIGKILL; restart 1 of 3 in 0.1 s",
        "the command ended with code 75; restart 2 of 3 in 0.2 s",
        "the command was killed by SIGKILL; restart 3 of 3 in 0.4 s",
    ]


def test_who_outlives_another_s_end_is_ended(monkeypatch):
    monkeypatch.setattr(supervision, "_GRACE", 0.2)
    assert run([[FOREVER, ends(2)]]) == (2, [], [])


def test_it_gives_up():
    code, lines, left = run([[ends(75)]] * 3, max_restarts=1)
    assert (code, len(left)) == (75, 1)
    assert lines[1] == "the command ended with code 75; gave up after 1 restarts"


def test_the_pause_of_many_restarts_is_a_number(monkeypatch):
    """A float holds no 2**1024."""
    monkeypatch.setattr(supervision, "_LONGEST_PAUSE", 0.0)
    monkeypatch.setattr(supervision, "_codes", lambda processes: [75])
    code, lines, _ = run([[]] * 1100, max_restarts=1099)
    assert (code, len(lines)) == (75, 1100)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_reaches_all_processes_once_which_may_save(tmp_path, name):
    ready, number = [tmp_path / "0", tmp_path / "1"], getattr(signal, name)
    before = signal.getsignal(number)
    both = [
        python(
            "import os, signal, sys, time\n"
            f"signal.signal(signal.{name}, lambda *_: sys.exit(99))\n"
            # Ctrl-C of the terminal comes to the group of the supervisor.
            "assert os.getpgid(0) == os.getpid()\n"
            f"open({str(path)!r}, 'w').close()\n"
            "time.sleep(60)"
        )
        for path in ready
    ]
    signal_when(lambda: all(path.exists() for path in ready), number)
    assert run([both]) == (99, [], [])
    assert signal.getsignal(number) == before


def test_a_signal_before_a_process_was_started_reaches_it():
    def make_members():
        os.kill(os.getpid(), signal.SIGTERM)
        return [FOREVER, FOREVER]

    assert supervise(make_members, 3, print) == 128 + signal.SIGTERM


def test_a_signal_between_two_starts_ends_the_run():
    starts, lines = [[ends(75)]], []

    def say(line):
        lines.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    assert supervise(starts.pop, 3, say) == 75
    assert lines == ["the command ended with code 75; restart 1 of 3 in 0.1 s"]


def test_processes_of_one_host_get_a_new_address_at_each_start():
    words = [sys.executable, "-m", "decoupled", "pretrain"]
    assert members(["decoupled", "pretrain"], None) == [words]
    first, other = members(["decoupled", "pretrain"], 2)
    assert first[:4] == other[:4] == words
    assert first[4].startswith("--coordinator=127.0.0.1:")
    assert first[5:] == ["--processes=2", "--process=0"]
    assert other[4:] == [first[4], "--processes=2", "--process=1"]
    assert members(["decoupled", "pretrain"], 2)[0][4] != first[4]
