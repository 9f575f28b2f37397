"""The demo as a command: signals, what it needs, and a whole run."""

import os
import signal
import subprocess
import sys
import time

import pytest

from decoupled.commands import demo
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.launch.supervision import Step
from decoupled.studies.demo import MODELS, average


def test_ctrl_c_lets_the_step_end_and_prints_the_command_that_goes_on(tmp_path):
    """As from a terminal: all processes of the group get it."""
    ready = tmp_path / "ready"
    slow = [sys.executable, "-c", SLOW_STEP, str(ready), str(tmp_path / "saved")]
    code = RUN_STEP.format(step=Step("slow", "slow", slow))
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"--work_dir={tmp_path}/run"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (tmp_path / "saved").exists()
    message = errors.splitlines()[-1]
    assert "Ctrl-C: ended in step slow; go on with: decoupled demo" in message
    assert message.endswith(f"demo --work_dir={tmp_path}/run")


SLOW_STEP = """
import pathlib, sys, time
try:
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)
    pathlib.Path(sys.argv[2]).touch()
    sys.exit(130)
"""
RUN_STEP = """
import sys
import decoupled.studies.demo
from decoupled.commands import demo
from decoupled.core import endings
from decoupled.launch import start
from decoupled.launch.supervision import Step
decoupled.studies.demo.make_steps = lambda _: [{step!r}]
sys.argv.insert(1, "demo")
endings.end(lambda: start.run(demo))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_whole_demo_and_once_more(tmp_path):
    command = [sys.executable, "-m", "decoupled", "demo", f"--work_dir={tmp_path}/run"]
    subprocess.run(command, check=True)
    results = files.read_json(f"{tmp_path}/run/results.json")
    for model in MODELS:
        languages = results[model]["languages"]
        assert len(languages) == 12
        majority = average(languages, "trivial_accuracy")
        assert average(languages, "accuracy") > majority + 2
        assert languages["en"]["accuracy"] > 50
    again = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert again.count("complete already, reused") == 3
    assert again.count("nothing to train") == 6
    assert files.read_json(f"{tmp_path}/run/results.json") == results


def test_what_is_missing_is_reported_before_the_first_step(monkeypatch):
    """Not after minutes, when the plot is drawn."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"matplotlib .*'decoupled\[plots\]'"):
        demo.main()
