"""A long command as steps: each is a command of its own, shown, run and timed."""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from decoupled.core import console, files
from decoupled.core.errors import Interrupted, Terminated, UserError
from decoupled.core.processes import command_line, run_command

SECONDS = "seconds.json"


class Step(NamedTuple):
    """A command among several.

    title: what it does, printed with the command; without one nothing is printed.
    name: key of its seconds. command: as in a shell. quiet: its stderr is shown only
    where it fails. environment: variables beside those of this process.
    """

    title: str
    name: str
    command: Sequence[str]
    quiet: bool = False
    environment: Mapping[str, str] = {}


def run_step(work_dir: str, step: Step) -> None:
    """Runs one step, its output as it comes.

    The seconds of its first full run are kept in work_dir/seconds.json under its name.

    Raises:
      UserError: it failed.
      Interrupted, Terminated: a signal came, and it has ended.
    """
    if step.title:
        console.say(f"\n{step.title}\n$ {shlex.join(step.command)}")
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        stderr = errors if step.quiet else None
        try:
            code = run_command(command_line(*step.command), step.environment, stderr)
        except Interrupted as error:
            raise Interrupted(f"{error}: ended in step {step.name}") from error
        except Terminated as error:
            raise Terminated(
                f"{error}: ended in step {step.name}; run the same command again to go "
                "on"
            ) from error
        if code:
            errors.seek(0)
            sys.stderr.write(errors.read())
            raise UserError(
                f"{step.name}: ended with code {code}, see above; mend it and run the "
                "same command again, which goes on from here"
            )
    seconds = seconds_of_steps(work_dir)
    if step.name not in seconds:
        seconds[step.name] = round(time.monotonic() - started, 1)
        files.write_json(os.path.join(work_dir, SECONDS), seconds)


def seconds_of_steps(work_dir: str) -> dict[str, float]:
    """Name -> seconds of the first full run, of the steps that had one."""
    path = os.path.join(work_dir, SECONDS)
    return files.read_json(path) if files.exists(path) else {}
