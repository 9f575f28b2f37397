"""The table of warm processes from numbers typed in, and a quick run."""

import json
import subprocess
import sys

import pytest

from benchmarks import sweep_jobs
from benchmarks.machine import ROOT
from tests.benchmarks.toys import comparison, measured


def test_table():
    warm = measured("warm processes", [[8.0], [12.0]], {}, {"jobs": 4})
    alone = measured("a process each", [[16.0], [24.0]], {}, {"jobs": 4})
    (table,) = sweep_jobs.tables([comparison("1 at a time", [warm, alone])])
    assert table.rows == [
        ["4, 1 at a time", "warm processes", "2.50 s (2.00-3.00)", "",
         "10.0 s (8.00-12.0)"],
        ["4, 1 at a time", "a process each", "5.00 s (4.00-6.00)",
         "2.00x (2.00-2.00)", "20.0 s (16.0-24.0)"],
    ]  # fmt: skip


@pytest.mark.slow
def test_both_ways_compute_the_same(tmp_path):
    command = [sys.executable, "-m", "benchmarks.sweep_jobs", "--quick"]
    done = subprocess.run(
        [*command, "--only=1 at a time", f"--results_dir={tmp_path}"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [found] = json.loads((tmp_path / "sweep_jobs.json").read_text())["comparisons"]
    warm, alone = ([one["loss"] for one in w["rounds"]] for w in found["workers"])
    assert warm == alone
