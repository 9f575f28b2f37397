"""The command of the reproduction: what it needs, its help, and a whole run."""

import json
import subprocess
import sys

import pytest

from decoupled.commands import reproduce
from decoupled.core.errors import UserError


def test_help():
    command = [sys.executable, "-m", "decoupled", "reproduce", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--document_only" in shown and "No download" in shown


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_whole_one_with_few_steps_and_once_more(tmp_path):
    command = [
        *(sys.executable, "-m", "decoupled", "reproduce", "--size=0.01"),
        f"--work_dir={tmp_path}/w",
        f"--document={tmp_path}/r.md",
        "--gin_param=SweepConfig.rows = ('e_out_128', 'e_out_3072')",
        "--gin_param=SweepConfig.keep_layers = {}",
        "--gin_param=SweepConfig.seeds = (0, 1)",
    ]
    subprocess.run(command, check=True)
    text = (tmp_path / "r.md").read_text()
    assert "24 of 24 jobs complete" in text
    assert "| score, e_out_3072 - e_out_128 |" in text
    record = tmp_path / "w/runs_0.01/models/e_out_128/seed_1/job.json"
    before = record.read_text()
    assert json.loads(before)["command"] == "pretrain"
    again = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "24 of 24 jobs complete already" in again
    assert record.read_text() == before


def test_without_the_demo_s_catalogs_nothing_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "django", None)
    with pytest.raises(UserError, match=r"django is not .*'decoupled\[demo\]'"):
        reproduce.main()
