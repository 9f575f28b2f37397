"""The demo as a command: what it needs, and a whole run."""

import os
import subprocess
import sys

import pytest

from decoupled.commands import demo
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.studies.demo import MODELS, average


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_whole_demo_and_once_more(tmp_path):
    command = [sys.executable, "-m", "decoupled", "demo", f"--work_dir={tmp_path}/run"]
    subprocess.run(command, check=True)
    # The command that is printed where Ctrl-C ends it.
    assert os.path.exists(f"{tmp_path}/run/command.1")
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
