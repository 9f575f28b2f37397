"""Does the units of a job on Apache Beam: in processes of this machine or on a cluster.

    Create(shares) | Reshuffle | ParDo(do each unit of the share)

A unit reads and writes files of its own (`decoupled.corpora.units`); no text goes
through Beam, whose runner on one machine keeps what is shuffled in memory.

On a cluster a share is one unit, and the cluster's runner balances them. Beam's own
runner on one machine gives each process its part of the shares beforehand, however long
they take; here each process has one share, that of all units, and takes the next one
that no other has taken.
"""

import contextlib
import io
import logging
import os
import re
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from decoupled import console
from decoupled.corpora import installed, units
from decoupled.corpora.units import Job, Unit
from decoupled.errors import UserError

DIRECT = "DirectRunner"
# Its job server may have options of its own.
PORTABLE = "PortableRunner"
# Started by Beam for each process beside this one.
_WORKER_MODULE = "decoupled.corpora.beam_worker"
_USER_ERROR = re.compile(r"\.UserError: (.+?)(?: \[while running .*)?$")
_POLL_SECONDS = 0.2
_REMOTE_POLL_SECONDS = 10.0


class Runner(NamedTuple):
    """Where the units are done.

    name: a Beam runner, e.g. "DirectRunner" (this machine), "DataflowRunner",
    "FlinkRunner", "SparkRunner", "PortableRunner".
    workers: processes on this machine; 0: one per core, or none beside this one where
    the job is small. A cluster's are set by its own options.
    options: further options of Beam, "NAME=VALUE" or "NAME".
    """

    name: str = DIRECT
    workers: int = 0
    options: tuple[str, ...] = ()


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
    installed.need("apache_beam")
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
    """Runs the pipeline beside this thread, which follows the notes."""
    raised = []
    failures = []
    with contextlib.ExitStack() as stack:
        claims = None
        if runner.name == DIRECT:
            claims = stack.enter_context(tempfile.TemporaryDirectory())
        arguments = (_run_pipeline, raised, job, missing, runner, small, claims)
        # A daemon, so that Ctrl-C ends the command and with it the processes.
        pipeline = threading.Thread(target=_keep_error, args=arguments, daemon=True)
        killed = stack.enter_context(_quiet())
        pipeline.start()
        waited = {unit.name for unit in missing}
        seen = _follow(job, waited, pipeline, failures, killed)
        for _ in console.track(seen, description, total=len(missing)):
            pass
    if raised:
        raise _as_user_error(raised[0])
    if failures:
        told = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise UserError(f"{failures[0]}{told}; what else was done is kept")


def _keep_error(function, raised, *arguments):
    try:
        function(*arguments)
    except BaseException as error:  # re-raised by the thread that waits
        raised.append(error)


def _follow(
    job,
    waited: set[str],
    pipeline: threading.Thread,
    failures: list[str],
    killed: list[BaseException],
) -> Iterator[str]:
    """The names of units as they end; their failures are said at once, and kept."""
    wait = _REMOTE_POLL_SECONDS if "://" in job.work_dir else _POLL_SECONDS
    running = True
    while running:
        pipeline.join(wait)
        # Asked before the look at the folder, so that no note comes after the last.
        running = pipeline.is_alive()
        for name, message in sorted(units.ended(job, waited).items()):
            waited.remove(name)
            if message is not None:
                console.say(message)
                failures.append(message)
            yield name
        if running and killed:
            raise UserError(
                f"{job.work_dir}: a worker process was killed, most likely for lack of "
                "memory; run the same command again with fewer --workers"
            )


def _run_pipeline(job, missing, runner, small, claims):
    import apache_beam

    from decoupled.corpora.beam_units import DoUnits

    ordered = sorted(missing, key=lambda unit: (-unit.weight, unit.name))
    workers = _workers(runner, ordered, small)
    shares = [tuple(ordered)] * workers if claims else [(unit,) for unit in ordered]
    pipeline = _make_pipeline(runner, workers)
    # The numbers keep equal shares apart.
    (
        pipeline
        | apache_beam.Create(list(enumerate(shares)))
        | apache_beam.Reshuffle()
        | "units" >> apache_beam.ParDo(DoUnits(job, claims))
    )
    pipeline.run().wait_until_finish()


def _workers(runner, ordered, small) -> int:
    if runner.workers:
        return min(runner.workers, len(ordered))
    if sum(unit.weight for unit in ordered) < small:
        return 1
    return min(os.cpu_count() or 1, len(ordered))


def _make_pipeline(runner: Runner, workers: int):
    """An empty pipeline.

    Raises:
      UserError: Beam does not know the runner or one of its options.
    """
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions

    given = [f"--{option.lstrip('-')}" for option in runner.options]
    local = _local_runner(workers) if runner.name == DIRECT else None
    name = f"--direct_num_workers={workers}" if local else f"--runner={runner.name}"
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            options = PipelineOptions([*given, name])
            unknown = _unknown_options(options)
            if unknown and runner.name != PORTABLE:
                raise ValueError(f"no option {', '.join(unknown)}")
            return apache_beam.Pipeline(local, options)
    except (SystemExit, ValueError) as error:
        # argparse prints what is wrong, and exits.
        lines = complaints.getvalue().strip().splitlines()
        told = lines[-1] if isinstance(error, SystemExit) and lines else str(error)
        told = " ".join(told.split())
        raise UserError(f"Beam with {runner.name}: {told}") from error


def _unknown_options(options) -> list[str]:
    known = type(options)([]).get_all_options()
    given = options.get_all_options(retain_unknown_options=True)
    return sorted(set(given) - set(known))


def _local_runner(workers: int):
    """Beam's own runner on this machine: this process, or others."""
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    environment = None
    if workers > 1:
        # exec: the process that Beam knows is the worker and not a shell around it.
        command = f"{shlex.quote(sys.executable)} -m {_WORKER_MODULE} {os.getpid()}"
        environment = SubprocessSDKEnvironment.from_command_string(
            f"exec {command} 2>{os.devnull}"
        )
    # By name, "DirectRunner" would first try to download another one.
    return FnApiRunner(default_environment=environment)


@contextlib.contextmanager
def _quiet() -> Iterator[list[BaseException]]:
    """Keeps Beam's log from the terminal; what it raises says all that is wrong.

    Yields:
      what Beam's threads raised that wait for a worker process each. Where one of these
      is killed, the pipeline would wait for ever.
    """
    killed = []

    def keep(arguments):
        if "Worker subprocess exited" in str(arguments.exc_value):
            killed.append(arguments.exc_value)

    disabled, hook = logging.root.manager.disable, threading.excepthook
    # Beam logs to the root, also while it is imported.
    logging.disable(logging.CRITICAL)
    threading.excepthook = keep
    yield killed
    # Left so where the command ends before the pipeline, whose threads then complain.
    logging.disable(disabled)
    threading.excepthook = hook


def _as_user_error(error: BaseException) -> BaseException:
    """A UserError out of Beam's account of it, which is text; or the error itself."""
    # Of a worker process there is the traceback, as the message of another error.
    lines = str(error).splitlines()
    if isinstance(error, UserError):
        lines = [f".UserError: {lines[0]}"]
    for line in lines:
        if found := _USER_ERROR.search(line.strip()):
            return UserError(found[1])
    return error
