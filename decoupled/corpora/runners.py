"""Runs units of work: in this process, in other local processes, or on Apache Beam.

A large job is divided into independent units. So any number of processes or machines
can share it, and a job that was killed, or that failed at one input, resumes with the
missing units. A unit reads and writes its own files, whose contents do not depend on
where it runs. Its last step is to write a note that describes these files.
The work folder holds, for a unit NAME,

    NAME.done.json      {"inputs": ..., "result": ...}, written last
    NAME.failed.json    {"message": ...}, why it failed on Beam; removed at the next
                        attempt

A unit is done if the inputs in its note equal its current inputs.

Apache Beam, whose runners distribute the units to other machines, runs

    Create(units) | Reshuffle | Map(do a unit)

No text passes through Beam; the result of a unit is read from its note. Beam is
imported only if units run on it.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import logging
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from decoupled.core import console, files, gfile, installed, processes
from decoupled.core.errors import UserError

DONE = ".done.json"
FAILED = ".failed.json"

_LOCAL = "local"
# Beam's own runner on this machine.
_DIRECT = "DirectRunner"
# Its job server may have further options.
_PORTABLE = "PortableRunner"
_USER_ERROR = re.compile(r"UserError: (.+?)(?: \[while running .*)?$", re.MULTILINE)


class Unit(Protocol):
    """A part of a job. It is pickled for other processes and machines.

    name: unique in the job, used as a file name. weight: heavy units are begun first.
    """

    name: str
    weight: int


class UnitJob(Protocol):
    """The work on each unit. It is pickled for other processes and machines.

    work_dir: the folder of the notes, which every machine can reach.
    """

    work_dir: str

    def inputs(self, unit: Unit) -> dict[str, Any]:
        """Everything that the result depends on, as JSON values."""

    def run(self, unit: Unit) -> dict[str, Any]:
        """Does the unit, from its beginning or from where it stopped.

        Returns the result for the note, as JSON values. Raises UserError for a bad
        input; other units go on.
        """

    def is_intact(self, result: dict[str, Any]) -> bool:
        """False if files that the note names no longer exist."""


def attempt(job: UnitJob, unit: Unit) -> str | None:
    """Does a unit and leaves its note; returns why it cannot be done, or None."""
    try:
        note = {"inputs": job.inputs(unit), "result": job.run(unit)}
        files.write_json(_path(job, unit, DONE), note)
    except UserError as error:
        return str(error)
    except gfile.OpError as error:
        # Errors of readers name their files, so this error comes from writing.
        return (
            f"{job.work_dir}: cannot write ({files.reason(error)}); make room and run "
            "the same command again"
        )
    return None


def result_of(job: UnitJob, unit: Unit) -> dict[str, Any] | None:
    """The result in the note of a unit; None if the unit is not done yet."""
    path = _path(job, unit, DONE)
    if not files.exists(path):
        return None
    note = files.read_json(path)
    if not isinstance(note, dict) or note.get("inputs") != job.inputs(unit):
        return None
    return note["result"] if job.is_intact(note.get("result")) else None


def forget(job: UnitJob, units: Sequence[Unit]) -> None:
    """Removes the notes of units that have to be done again."""
    names = {name.rstrip("/") for name in gfile.listdir(job.work_dir)}
    for unit in units:
        for suffix in (DONE, FAILED):
            if unit.name + suffix in names:
                gfile.remove(_path(job, unit, suffix))


def _path(job, unit, suffix):
    return os.path.join(job.work_dir, unit.name + suffix)


@dataclasses.dataclass(frozen=True)
class Runner:
    """Where the units are done.

    name: "local" for processes on this machine, or a Beam runner: "DataflowRunner",
    "FlinkRunner", "SparkRunner", "PortableRunner", or "DirectRunner", which is Beam's
    own runner on this machine.
    workers: number of processes of "local"; 0 means one per core, or only this process
    if the job is small.
    options: Beam's options, "NAME=VALUE" or "NAME".
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
    job: UnitJob,
    units: Sequence[Unit],
    runner: Runner,
    description: str,
    small_weight: int,
) -> list[dict[str, Any]]:
    """Does the units that are not done yet; shows the progress.

    Args:
      small_weight: units of less total weight are done in this process, unless the
        runner names a number of workers: starting processes would take longer.

    Returns:
      the result of each unit, in the order of `units`.
    """
    results = {unit.name: result_of(job, unit) for unit in units}
    missing = [unit for unit in units if results[unit.name] is None]
    if len(missing) < len(units):
        console.say(f"{description}: {len(units) - len(missing)} done before")
    if missing:
        forget(job, missing)
        _run(job, missing, runner, description, small_weight)
    for unit in missing:
        results[unit.name] = result_of(job, unit)
        if results[unit.name] is None:
            raise RuntimeError(f"{job.work_dir}: {unit.name} ended without a note")
    return [results[unit.name] for unit in units]


def _run(job, units, runner, description, small_weight):
    # The units that take longest are begun first.
    sorted_units = sorted(units, key=lambda unit: (-unit.weight, unit.name))
    if runner.name == _LOCAL:
        outcomes = _on_this_machine(job, sorted_units, runner.workers, small_weight)
    else:
        outcomes = _on_beam(job, sorted_units, runner.name, runner.options)
    failures = []
    # Closing the generator ends its processes, after errors as well.
    with contextlib.closing(outcomes):
        for failure in console.track(outcomes, description, total=len(sorted_units)):
            if failure is not None:
                console.say(failure)
                failures.append(failure)
    if failures:
        more = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{more}; what else was done is kept")


def _on_this_machine(job, units, workers, small_weight) -> Iterator[str | None]:
    """Yields for each unit, as it ends, why it failed, or None."""
    is_small = sum(unit.weight for unit in units) < small_weight
    workers = processes.choose_workers(workers, len(units), is_small)
    do_unit = functools.partial(attempt, job)
    if workers == 1:
        yield from map(do_unit, units)
        return
    with processes.started(do_unit, units, workers, job.work_dir) as futures:
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


def _on_beam(
    job: UnitJob, units: Sequence[Unit], runner: str, options: Sequence[str]
) -> Iterator[str | None]:
    """Yields for each unit, after all of them ended, why it failed, or None."""
    with _quiet():
        import apache_beam

        pipeline = _make_pipeline(runner, options)
        (
            pipeline
            | apache_beam.Create(list(units))
            | apache_beam.Reshuffle()
            | "units" >> apache_beam.Map(functools.partial(_do_unit, job))
        )
        try:
            pipeline.run().wait_until_finish()
        except Exception as error:
            # An error of another process arrives as a traceback in a message.
            name = "UserError: " if isinstance(error, UserError) else ""
            if match := _USER_ERROR.search(f"{name}{error}"):
                raise UserError(match[1]) from error
            raise
    names = {name.rstrip("/") for name in gfile.listdir(job.work_dir)}
    for unit in units:
        if unit.name + FAILED in names:
            yield files.read_json(_path(job, unit, FAILED))["message"]
        else:
            yield None


def _do_unit(job, unit):
    """Does one unit on a machine of Beam, and leaves a note if it failed.

    It has no annotations: Beam would check them, which is impossible for a protocol.
    """
    failure = attempt(job, unit)
    if failure is not None:
        try:
            files.write_json(_path(job, unit, FAILED), {"message": failure})
        except gfile.OpError as error:
            raise UserError(failure) from error


def _make_pipeline(runner: str, options: Sequence[str]):
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    arguments = [f"--{option.lstrip('-')}" for option in options]
    # Given the name "DirectRunner", Beam would first try to download another runner.
    direct_runner = FnApiRunner() if runner == _DIRECT else None
    runner_arguments = [] if direct_runner else [f"--runner={runner}"]
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            pipeline_options = PipelineOptions([*arguments, *runner_arguments])
            unknown_names = _unknown_options(pipeline_options)
            if unknown_names and runner != _PORTABLE:
                raise ValueError(f"no option {', '.join(unknown_names)}")
            return apache_beam.Pipeline(direct_runner, pipeline_options)
    except (SystemExit, ValueError) as error:
        # argparse prints its complaint and exits.
        lines = complaints.getvalue().strip().splitlines()
        reason = lines[-1] if isinstance(error, SystemExit) and lines else str(error)
        raise UserError(f"Beam with {runner}: {' '.join(reason.split())}") from error


def _unknown_options(options) -> list[str]:
    known_options = type(options)([]).get_all_options()
    given_options = options.get_all_options(retain_unknown_options=True)
    return sorted(set(given_options) - set(known_options))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Beam's log off the terminal; its exceptions say everything of interest."""
    old_level = logging.root.manager.disable
    # Beam logs to the root logger, even while it is imported.
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(old_level)
