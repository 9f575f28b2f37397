"""Results of a suite in one JSON file: the seconds of each step, machine and commit.

benchmarks/results/NAME.json is {"format": "decoupled-benchmark-1", "name": NAME,
"comparisons": [...]}. It is written after each comparison, so that an interrupted run
loses at most one; measuring a comparison anew replaces it.
"""

import datetime
import pathlib
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.interleave import Chunk, MeasuredWorker, Skip, Worker, interleave
from benchmarks.peers import ROOT
from decoupled.configs import saved_model
from decoupled.core import files
from decoupled.core.console import say
from decoupled.core.errors import UserError
from decoupled.core.machine import memory_sizes, processor, usable_cores

FORMAT = "decoupled-benchmark-1"
# Results and their document do not change what is measured.
_CODE = (".", ":!benchmarks/results*", ":!docs/performance*.md")
# The folders of an absolute path, also of one behind "=".
_FOLDERS = re.compile(r"(?<![^=])/(?:[^/\n]+/)+")


class Plan(NamedTuple):
    """A comparison of a suite.

    title: unique in its suite. make_workers: gives its workers when it is their turn;
    raises `Skip` where they cannot be measured. steps: instead of the suite's.
    """

    title: str
    make_workers: Callable[[], Sequence[Worker]]
    steps: int | None = None


class Comparison(NamedTuple):
    """Workers that were measured in the same rounds.

    workers: none where it was skipped. skipped: why, or None. date, command, commit,
    machine: of the run that measured it.
    """

    title: str
    workers: list[MeasuredWorker]
    skipped: str | None
    date: str
    command: str
    commit: str | None
    machine: dict[str, Any]

    def worker(self, name: str) -> MeasuredWorker:
        """The worker of this name."""
        return next(worker for worker in self.workers if worker.name == name)


def measure(path: pathlib.Path, plan: Plan, rounds: int, steps: int) -> None:
    """Measures a comparison and writes it to the file of its suite.

    It takes the place of an earlier one with its title.
    """
    by_title = {each.title: each for each in read(path)}
    reason, workers = None, []
    description = f"{path.stem}: {plan.title}"
    steps = plan.steps or steps
    try:
        workers = interleave(plan.make_workers(), rounds, steps, description)
    except Skip as error:
        reason = str(error)
        say(f"{description}: skipped, {reason}")
    # The folder of the results changes nothing.
    words = [word for word in sys.argv[1:] if not word.startswith("--results_dir=")]
    by_title[plan.title] = Comparison(
        title=plan.title,
        workers=workers,
        skipped=reason,
        date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        command=shlex.join(["python", "-m", "benchmarks", *words]),
        commit=commit(),
        machine=facts(),
    )
    write(path, list(by_title.values()))


def facts() -> dict[str, Any]:
    """Processor, usable cores, memory in bytes, system and Python of this process."""
    return {
        "processor": processor().description(),
        "features": processor().features(),
        "cores": usable_cores(),
        "memory": memory_sizes()["MemTotal"],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def commit() -> str | None:
    """The checkout's commit, with "+" where files differ from it; None without git."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--", *_CODE) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments):
    command = ["git", "-C", str(ROOT), *arguments]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    return process.stdout.strip()


def write(path: pathlib.Path, comparisons: Sequence[Comparison]) -> None:
    """Writes a suite's file, which is replaced as a whole or not at all."""
    content = {
        "format": FORMAT,
        "name": path.stem,
        "comparisons": [_as_json(comparison) for comparison in comparisons],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(str(path), content)


def read(path: pathlib.Path) -> list[Comparison]:
    """The comparisons of a suite's file; none where it does not exist.

    Raises:
      UserError: the file is not of this format.
    """
    if not path.exists():
        return []
    content = files.read_json(str(path))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path}: is not of format {FORMAT}; delete it")
    return [_from_json(entry) for entry in content["comparisons"]]


def _as_json(comparison):
    workers = [
        worker._replace(
            case=_without_folders(worker.case),
            rounds=[chunk._asdict() for chunk in worker.rounds],
        )._asdict()
        for worker in comparison.workers
    ]
    return comparison._replace(workers=workers)._asdict()


def _without_folders(value):
    """A value's absolute paths without their folders, of one machine or temporary."""
    if isinstance(value, dict):
        return {name: _without_folders(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    return _FOLDERS.sub("", value) if isinstance(value, str) else value


def _from_json(entry):
    for worker in entry["workers"]:
        case = worker["case"]
        if isinstance(case.get("model"), dict):
            case["model"] = vars(saved_model(case["model"]))
        # Earlier versions also noted the memory after each round.
        worker["rounds"] = [Chunk(c["seconds"], c["loss"]) for c in worker["rounds"]]
    workers = [MeasuredWorker(**worker) for worker in entry["workers"]]
    return Comparison(**{**entry, "workers": workers})
