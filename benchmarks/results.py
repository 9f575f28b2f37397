"""Results of a suite in one JSON file: every raw second, with machine and commit.

benchmarks/results/NAME.json is {"format": "decoupled-benchmark-1", "name": NAME,
"comparisons": [...]}. It is written after each comparison, so that an interrupted run
loses at most one; measuring a comparison anew replaces it.
"""

import datetime
import json
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.interleave import Chunk, Measured, Skip, Worker, interleave
from decoupled.configs import saved_model
from decoupled.core.console import say
from decoupled.core.errors import UserError

FORMAT = "decoupled-benchmark-1"
# The folders of an absolute path, also of one behind "=".
_FOLDERS = re.compile(r"(?<![^=])/(?:[^/\n]+/)+")


class Comparison(NamedTuple):
    """Workers that were measured in the same rounds.

    title: unique in its suite. workers: none where it was skipped. skipped: why, or
    None. date, command, commit, machine: of the run that measured it.
    """

    title: str
    workers: list[Measured]
    skipped: str | None
    date: str
    command: str
    commit: str | None
    machine: dict[str, Any]

    def worker(self, name: str) -> Measured:
        """The worker of this name."""
        return next(worker for worker in self.workers if worker.name == name)


class Results:
    """A suite's comparisons, in memory and in its file.

    Args:
      path: of the file.
      name: of the suite.
      resume: keeps the comparisons in the file that belong to the checkout's commit and
        does not measure these again.
    """

    def __init__(self, path: pathlib.Path, name: str, resume: bool):
        self._path = path
        self._name = name
        self._commit = machine.commit()
        self._comparisons = {c.title: c for c in read(path)} if path.exists() else {}
        self._done = set()
        if resume:
            self._done = {
                title
                for title, comparison in self._comparisons.items()
                if comparison.commit == self._commit
            }

    def measure(
        self,
        title: str,
        make_workers: Callable[[], Sequence[Worker]],
        rounds: int,
        steps: int,
        together: bool = True,
    ) -> None:
        """Measures a comparison and writes it, unless it is resumed.

        Args:
          title: of the comparison.
          make_workers: gives its workers; raises `Skip` where it cannot be measured.
          rounds, steps, together: as in `interleave`.
        """
        if title in self._done:
            say(f"{self._name}: {title}: kept")
            return
        skipped = None
        measured = []
        try:
            measured = interleave(
                make_workers(), rounds, steps, f"{self._name}: {title}", together
            )
        except Skip as reason:
            skipped = str(reason)
            say(f"{self._name}: {title}: skipped, {skipped}")
        self._comparisons[title] = Comparison(
            title=title,
            workers=measured,
            skipped=skipped,
            date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            command=shlex.join(["python", "-m", f"benchmarks.{self._name}"] + _flags()),
            commit=self._commit,
            machine=machine.facts(),
        )
        write(self._path, self._name, list(self._comparisons.values()))

    def comparisons(self) -> list[Comparison]:
        """All comparisons of the file, those of earlier runs too."""
        return list(self._comparisons.values())


def _flags():
    """The command line without where the results went, which changes nothing."""
    return [flag for flag in sys.argv[1:] if not flag.startswith("--results_dir=")]


def write(path: pathlib.Path, name: str, comparisons: Sequence[Comparison]) -> None:
    """Writes a suite's file; it is there completely or as it was before."""
    content = {
        "format": FORMAT,
        "name": name,
        "comparisons": [_as_json(comparison) for comparison in comparisons],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read(path: pathlib.Path) -> list[Comparison]:
    """The comparisons of a suite's file.

    Raises:
      UserError: the file is missing or not of this format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error}); delete it") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path}: is not of format {FORMAT}; delete it")
    return [_from_json(entry) for entry in content["comparisons"]]


def _as_json(comparison):
    workers = [
        worker._replace(
            case=_lasting(worker.case),
            rounds=[chunk._asdict() for chunk in worker.rounds],
        )._asdict()
        for worker in comparison.workers
    ]
    return comparison._replace(workers=workers)._asdict()


def _lasting(value):
    """Absolute paths without their folders, which are of one machine or temporary."""
    if isinstance(value, dict):
        return {name: _lasting(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lasting(item) for item in value]
    return _FOLDERS.sub("", value) if isinstance(value, str) else value


def _from_json(entry):
    for worker in entry["workers"]:
        case = worker["case"]
        if isinstance(case.get("model"), dict):
            case["model"] = vars(saved_model(case["model"]))
    workers = [
        Measured(**{**worker, "rounds": [Chunk(**chunk) for chunk in worker["rounds"]]})
        for worker in entry["workers"]
    ]
    return Comparison(**{**entry, "workers": workers})
