"""Runs Python where Apache Beam cannot be imported, also not by further processes."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent


def run_without_beam(program, folder, *arguments):
    """Runs a program, with its arguments, in the checkout; returns what it printed.

    `folder`: for a module that is found instead of Beam.
    """
    folder.mkdir()
    (folder / "apache_beam.py").write_text("raise ImportError('blocked by a test')\n")
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
