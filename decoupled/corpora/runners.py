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
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from decoupled.core import console, files, gfile, installed, processes
from decoupled.core.errors import UserError

DONE = ".done.json"
FAILED = ".failed.json"

_LOCAL = "local"
# Beam's own runner on this machine.
_DIRECT = "DirectRunner"
# Its job server may have options of its own.
_PORTABLE = "PortableRunner"
_USER_ERROR = re.compile(r"\.UserError: (.+?)(?: \[while running .*)?$")
_POLL_SECONDS = 0.2
_REMOTE_POLL_SECONDS = 10.0


class Unit(Protocol):
    """A part of a job. It is pickled for other processes and machines.

    name: unique in the job, used as a file name. weight: heavy units are begun first.
    """

    name: str
    weight: int


class Job(Protocol):
    """The work on each unit. It is pickled for other processes and machines.

    work_dir: the folder of the notes, which every machine can reach.
    """

    work_dir: str

    def inputs(self, unit: Unit) -> dict[str, Any]:
        """Everything that the result depends on, as JSON values."""

    def run(self, unit: Unit) -> dict[str, Any]:
        """Does the unit, from its beginning or from where it stopped.

        Returns:
          the result for the note, as JSON values.

        Raises:
          UserError: an input is bad; other units go on.
        """

    def is_intact(self, result: dict[str, Any]) -> bool:
        """False if files that the note names no longer exist."""


def attempt(job: Job, unit: Unit) -> str | None:
    """Does a unit and leaves its note; returns why it cannot be done, or None."""
    try:
        result = job.run(unit)
        note = {"inputs": job.inputs(unit), "result": result}
        files.write_json(_path(job, unit.name, DONE), note)
    except UserError as error:
        return str(error)
    except gfile.OpError as error:
        # Errors of readers name their files, so this error comes from writing.
        told = f"{job.work_dir}: cannot write ({files.reason(error)})"
        return f"{told}; make room and run the same command again"
    return None


def note_failure(job: Job, unit: Unit, message: str) -> None:
    """Leaves a note for the command, which may wait on another machine.

    Raises:
      UserError: `message`, where there is no room even for the note.
    """
    try:
        files.write_json(_path(job, unit.name, FAILED), {"message": message})
    except gfile.OpError as error:
        raise UserError(message) from error


def result_of(job: Job, unit: Unit) -> dict[str, Any] | None:
    """The result in the note of a unit; None if the unit is not done yet."""
    path = _path(job, unit.name, DONE)
    if not files.exists(path):
        return None
    note = files.read_json(path)
    if not isinstance(note, dict) or note.get("inputs") != job.inputs(unit):
        return None
    return note["result"] if job.is_intact(note.get("result")) else None


def forget(job: Job, units: Collection[Unit]) -> None:
    """Removes the notes of units that have to be done again."""
    there = set(_notes(job))
    for unit in units:
        for suffix in (DONE, FAILED):
            if unit.name + suffix in there:
                gfile.remove(_path(job, unit.name, suffix))


def ended(job: Job, waited: Collection[str]) -> dict[str, str | None]:
    """Name -> why it failed, or None, of each unit in `waited` that has a note.

    The folder is listed once, however many units there are.
    """
    found = {}
    for entry in _notes(job):
        for suffix in (DONE, FAILED):
            name = entry.removesuffix(suffix)
            if name != entry and name in waited:
                failed = suffix == FAILED
                path = _path(job, name, suffix)
                found[name] = files.read_json(path)["message"] if failed else None
    return found


def _notes(job):
    return [name.rstrip("/") for name in gfile.listdir(job.work_dir)]


def _path(job, name, suffix):
    return os.path.join(job.work_dir, name + suffix)


@dataclasses.dataclass(frozen=True)
class Runner:
    """Where the units are done.

    name: "local" for processes on this machine, or a Beam runner: "DataflowRunner",
    "FlinkRunner", "SparkRunner", "PortableRunner", or "DirectRunner", which is Beam's
    own runner on this machine.
    workers: number of processes of "local"; 0 means one per core, or only this process
    if the job is small.
    options: Beam's options, "NAME=VALUE" or "NAME".

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
    """Does the units that are not done yet; shows the progress.

    Args:
      job: the work on each unit. wanted: the units, with unique names.
      runner: where the units run. description: of the whole work, for the progress.
      small: units whose total weight is below this are done in this process, unless
        the runner names a number of workers: starting processes would take longer.

    Returns:
      the result of each unit, in the order of `wanted`.

    Raises:
      UserError: units failed. All others are done; the message has the first reason.
    """
    results = {unit.name: result_of(job, unit) for unit in wanted}
    missing = [unit for unit in wanted if results[unit.name] is None]
    if len(missing) < len(wanted):
        console.say(f"{description}: {len(wanted) - len(missing)} done before")
    if missing:
        forget(job, missing)
        _run(job, missing, runner, description, small)
    for unit in missing:
        results[unit.name] = result_of(job, unit)
        if results[unit.name] is None:
            raise RuntimeError(f"{job.work_dir}: {unit.name} ended without a note")
    return [results[unit.name] for unit in wanted]


def _run(job, missing, runner, description, small):
    """Does the units; prints failures at once, and raises after all units ended."""
    # The units that take longest are begun first.
    ordered = sorted(missing, key=lambda unit: (-unit.weight, unit.name))
    if runner.name == _LOCAL:
        outcomes = _on_this_machine(job, ordered, runner.workers, small)
    else:
        outcomes = _on_beam(job, ordered, runner.name, runner.options)
    failures = []
    # Closing the generator ends its processes, after errors as well.
    with contextlib.closing(outcomes):
        for failure in console.track(outcomes, description, total=len(ordered)):
            if failure is not None:
                console.say(failure)
                failures.append(failure)
    if failures:
        told = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{told}; what else was done is kept")


def _on_this_machine(job, ordered, workers, small) -> Iterator[str | None]:
    """Yields for each unit, as it ends, why it failed, or None."""
    are_small = sum(unit.weight for unit in ordered) < small
    workers = processes.choose_workers(workers, len(ordered), are_small)
    do_unit = functools.partial(attempt, job)
    if workers == 1:
        yield from map(do_unit, ordered)
        return
    with processes.started(do_unit, ordered, workers, job.work_dir) as futures:
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


def _on_beam(
    job: Job, wanted: Sequence[Unit], runner: str, options: Sequence[str]
) -> Iterator[str | None]:
    """Yields for each unit, as it ends, why it failed, or None.

    Args:
      job: the work on each unit. wanted: the units, without notes.
      runner: a Beam runner's name. options: Beam's, "NAME=VALUE" or "NAME".

    Raises:
      UserError: Beam does not know the runner or one of its options, or a unit could
        not even leave a note.
    """
    raised = []
    arguments = (_run_pipeline, raised, job, wanted, runner, options)
    # A daemon, so that Ctrl-C ends the command.
    pipeline = threading.Thread(target=_keep_error, args=arguments, daemon=True)
    with _quiet():
        pipeline.start()
        yield from _follow(job, {unit.name for unit in wanted}, pipeline)
    if raised:
        raise _as_user_error(raised[0])


def _do_unit(job, unit):
    """Does one unit; Beam calls it, in this process or on another machine.

    It has no annotations: Beam would check them, which is impossible for a protocol.

    Raises:
      UserError: the unit failed, and there is no room for the note that says why.
    """
    failure = attempt(job, unit)
    if failure is not None:
        note_failure(job, unit, failure)


def _keep_error(function, raised, *arguments):
    try:
        function(*arguments)
    except BaseException as error:  # re-raised by the thread that waits
        raised.append(error)


def _follow(job, waited: set[str], pipeline: threading.Thread) -> Iterator[str | None]:
    """Looks at the notes until the pipeline ends."""
    wait = _REMOTE_POLL_SECONDS if "://" in job.work_dir else _POLL_SECONDS
    running = True
    while running:
        pipeline.join(wait)
        # Checked before the folder is listed, so that no later note is missed.
        running = pipeline.is_alive()
        for name, failure in sorted(ended(job, waited).items()):
            waited.remove(name)
            yield failure


def _run_pipeline(job, wanted, runner, options):
    import apache_beam

    pipeline = _make_pipeline(runner, options)
    (
        pipeline
        | apache_beam.Create(list(wanted))
        | apache_beam.Reshuffle()
        | "units" >> apache_beam.Map(functools.partial(_do_unit, job))
    )
    pipeline.run().wait_until_finish()


def _make_pipeline(runner: str, options: Sequence[str]):
    """An empty pipeline.

    Raises:
      UserError: Beam does not know the runner or one of its options.
    """
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    given = [f"--{option.lstrip('-')}" for option in options]
    # Given the name "DirectRunner", Beam would first try to download another runner.
    direct = FnApiRunner() if runner == _DIRECT else None
    named = [] if direct else [f"--runner={runner}"]
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            parsed = PipelineOptions([*given, *named])
            unknown = _unknown_options(parsed)
            if unknown and runner != _PORTABLE:
                raise ValueError(f"no option {', '.join(unknown)}")
            return apache_beam.Pipeline(direct, parsed)
    except (SystemExit, ValueError) as error:
        # argparse prints its complaint and exits.
        lines = complaints.getvalue().strip().splitlines()
        told = lines[-1] if isinstance(error, SystemExit) and lines else str(error)
        told = " ".join(told.split())
        raise UserError(f"Beam with {runner}: {told}") from error


def _unknown_options(options) -> list[str]:
    known = type(options)([]).get_all_options()
    given = options.get_all_options(retain_unknown_options=True)
    return sorted(set(given) - set(known))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Beam's log off the terminal; its exceptions say everything of interest."""
    disabled = logging.root.manager.disable
    # Beam logs to the root logger, even while it is imported.
    logging.disable(logging.CRITICAL)
    yield
    # This line is not reached if the command ends before the pipeline. Logging then
    # stays off, because the pipeline's threads would log errors.
    logging.disable(disabled)


def _as_user_error(error: BaseException) -> BaseException:
    """The UserError that Beam reports as text, or the error itself."""
    # An error of a worker process arrives as a traceback in another error's message.
    lines = str(error).splitlines()
    if isinstance(error, UserError):
        lines = [f".UserError: {lines[0]}"]
    for line in lines:
        if found := _USER_ERROR.search(line.strip()):
            return UserError(found[1])
    return error
