"""The command of the reproduction: what it needs, and a whole run."""

import json
import re
import subprocess
import sys

import pytest

from decoupled.core.errors import UserError
from decoupled.studies import reproduce as run


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_whole_one_with_few_steps_and_once_more(tmp_path):
    """From messages of Django's catalogs alone, with nothing downloaded."""
    command = [
        *(sys.executable, "-m", "decoupled", "reproduce", "--size=0.01"),
        f"--work_dir={tmp_path}/w",
        f"--document={tmp_path}/r.md",
        "--gin_param=StudyConfig.first_rows = ('e_small', 'e_large')",
        "--gin_param=StudyConfig.control_rows = ('e_small',)",
        "--gin_param=SweepConfig.seeds = (0, 1)",
    ]
    subprocess.run(command, check=True)
    text = (tmp_path / "r.md").read_text()
    jobs = re.search(r"(\d+) of (\d+) jobs", text)
    assert jobs[1] == jobs[2]
    # Two seeds and thirty steps decide nothing.
    assert "**supported**" not in text and "**contradicted**" not in text
    record = tmp_path / "w/runs_0.01/models/e_small/seed_1/job.json"
    before = record.read_text()
    assert json.loads(before)["command"] == "pretrain"
    again = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"{jobs[2]} of {jobs[2]} jobs complete already" in again
    assert record.read_text() == before


def test_without_the_catalogs_package_no_step_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "django", None)
    options = run.Options(work_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"django is not .*'decoupled\[demo\]'"):
        run.run(options, [])
    assert not (tmp_path / "data").exists()
