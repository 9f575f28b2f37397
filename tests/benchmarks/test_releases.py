"""The table of two releases of TensorFlow from numbers typed in, and a quick run."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import releases
from benchmarks.machine import ROOT
from tests.benchmarks.toys import comparison, measured


def version(release):
    return {"versions": {"tensorflow": release}}


def test_table():
    workers = [
        measured("newest TensorFlow", [[2.0], [2.0]], facts=version("2.21.0")),
        measured("oldest TensorFlow", [[3.0], [5.0]], facts=version("2.15.1")),
        measured("transformers masked", [[8.0], [8.0]], facts={"versions": {}}),
    ]
    (table,) = releases.tables([comparison("float32: pre-training", workers)])
    assert [row[1] for row in table.rows] == [
        "TensorFlow 2.21.0", "TensorFlow 2.15.1", "transformers masked",
    ]  # fmt: skip
    assert [row[3] for row in table.rows] == [
        "", "2.00x (1.50-2.50)", "4.00x (4.00-4.00)",
    ]  # fmt: skip


@pytest.mark.slow
def test_quick_run_with_this_interpreter_as_both(tmp_path):
    command = [sys.executable, "-m", "benchmarks.releases", "--quick"]
    done = subprocess.run(
        [*command, "--only=tiny", "--only=fine-tuning", "--dtypes=float32",
         f"--results_dir={tmp_path}"],
        cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "DECOUPLED_OLDEST_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "releases.json").read_text())["comparisons"]
    for each in measured:
        newest, oldest = each["workers"]
        assert newest["rounds"][-1]["loss"] == oldest["rounds"][-1]["loss"]
