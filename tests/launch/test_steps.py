"""Steps of a long command: shown, run, timed; a signal is waited for."""

import contextlib
import os
import signal

import pytest

from decoupled.core import files
from decoupled.core.errors import Interrupted, Terminated, UserError
from decoupled.launch.steps import Step, run_step, seconds_of_steps
from tests.launch.test_supervision import python, signal_when


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
        "    time.sleep(1)\n"
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
