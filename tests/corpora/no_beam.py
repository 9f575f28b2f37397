"""Runs Python where neither it nor its child processes can import Apache Beam."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent


def run_without_beam(program, folder, *arguments):
    """Runs a program, with its arguments, in the checkout; returns what it printed.

    `folder`: gets a module that Python finds instead of Beam.
    """
    folder.mkdir()
    (folder / "apache_beam.py").write_text("raise ImportError('blocked by a test')\n")
    process = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
