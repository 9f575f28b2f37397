"""Does the units of a job: in this process, in others of this machine, or on Beam.

A unit reads and writes files of its own and leaves a note (`decoupled.corpora.units`).
So the files do not depend on who does the units, and after a kill or a mistake in one
input the same command goes on with what is missing.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from decoupled.core import console, installed, processes
from decoupled.core.errors import UserError
from decoupled.corpora import beam, units
from decoupled.corpora.units import Job, Unit

_LOCAL = "local"


@dataclasses.dataclass(frozen=True)
class Runner:
    """Where the units are done.

    name: "local", processes of this machine; or a Beam runner, e.g. "DataflowRunner",
    "FlinkRunner", "SparkRunner", "PortableRunner", or "DirectRunner", Beam's own on
    this machine.
    workers: processes of "local"; 0: one per core, or none beside this one where the
    job is small.
    options: of Beam, "NAME=VALUE" or "NAME".

    Raises:
      UserError: an argument has no effect with this runner, or Beam is not installed.
    """

    name: str = _LOCAL
    workers: int = 0
    options: tuple[str, ...] = ()

    def __post_init__(self):
        if self.name == _LOCAL:
            if self.options:
                raise UserError(
                    f"--beam_option={self.options[0]}: has no effect with "
                    f"--runner={_LOCAL}; give a Beam runner"
                )
            return
        if self.workers:
            raise UserError(
                f"--workers={self.workers}: has no effect with --runner={self.name}, "
                "whose workers are set by its own --beam_option"
            )
        installed.need("apache_beam", purpose="--runner other than local")


LOCAL = Runner()


def run_units(
    job: Job,
    wanted: Sequence[Unit],
    runner: Runner,
    description: str,
    small: int,
) -> list[dict[str, Any]]:
    """Does the units that are not done yet; shows how far they are.

    Args:
      job: what is done with each. wanted: the units, names unique.
      runner: where. description: what a unit is part of, for the progress.
      small: units that weigh less together are done in this process, unless the runner
        says otherwise: to start others would take longer.

    Returns:
      the result of each, in the order of `wanted`.

    Raises:
      UserError: units failed. All others are done; the first reason is told.
    """
    results = {unit.name: units.result_of(job, unit) for unit in wanted}
    missing = [unit for unit in wanted if results[unit.name] is None]
    if len(missing) < len(wanted):
        console.say(f"{description}: {len(wanted) - len(missing)} done before")
    if missing:
        units.forget(job, missing)
        _run(job, missing, runner, description, small)
    for unit in missing:
        results[unit.name] = units.result_of(job, unit)
        if results[unit.name] is None:
            raise RuntimeError(f"{job.work_dir}: {unit.name} ended without a note")
    return [results[unit.name] for unit in wanted]


def _run(job, missing, runner, description, small):
    """Does the units; failures are said at once, and raised when all else is done."""
    # What takes longest is begun first.
    ordered = sorted(missing, key=lambda unit: (-unit.weight, unit.name))
    if runner.name == _LOCAL:
        outcomes = _on_this_machine(job, ordered, runner.workers, small)
    else:
        outcomes = beam.do_units(job, ordered, runner.name, runner.options)
    failures = []
    # Closed whatever happens, and with it the processes.
    with contextlib.closing(outcomes):
        for failure in console.track(outcomes, description, total=len(ordered)):
            if failure is not None:
                console.say(failure)
                failures.append(failure)
    if failures:
        told = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{told}; what else was done is kept")


def _on_this_machine(job, ordered, workers, small) -> Iterator[str | None]:
    """For each unit, as it ends, why it failed, or None."""
    are_small = sum(unit.weight for unit in ordered) < small
    workers = processes.choose_workers(workers, len(ordered), are_small)
    attempt = functools.partial(units.attempt, job)
    if workers == 1:
        yield from map(attempt, ordered)
        return
    with processes.started(attempt, ordered, workers, job.work_dir) as futures:
        for future in concurrent.futures.as_completed(futures):
            yield future.result()
