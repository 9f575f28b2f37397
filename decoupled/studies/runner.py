"""Runs jobs in parallel, each once, as forks of a process that has imported TensorFlow.

Complete jobs are skipped. A job that fails does not stop the others, but the jobs that
need it are left out. A runner that was killed at any moment can be started again: the
commands resume in their folders.

Python's own fork server (`multiprocessing`) imports `decoupled.studies.preload` once
and forks for each job. A job starts in the state of a process that has only imported
modules: no graph, no gin setting, no flag, no session. Its results, log and exit code
are those of a new process.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decoupled.core import console, files, gfile
from decoupled.core.endings import USER_ERROR_CODE
from decoupled.core.errors import Terminated, UserError
from decoupled.core.made_from import in_words
from decoupled.core.processes import (
    command_line,
    end_all,
    handled,
    signal_at_end_of_parent,
    start_apart,
)
from decoupled.runs.run_folder import holds_results
from decoupled.studies.jobs import (
    CONVERT,
    FINETUNING,
    LOG,
    PRETRAINING,
    RECORD,
    Job,
    read_record,
)

# Seconds between two polls of the processes; seconds to end after SIGTERM.
_POLL = 0.1
_GRACE = 120.0


class Failure(NamedTuple):
    """A job that failed: its name, the reason, and the last line that it printed."""

    name: str
    reason: str
    last_line: str


def show_failures(failures: Sequence[Failure], count: int) -> None:
    """Prints which of `count` jobs are not complete, and why."""
    console.table(
        f"{len(failures)} of {count} jobs are not complete; run again to try them",
        ["job", "why", "last line of its job.log"],
        [list(failure) for failure in failures],
    )


def _refusal(job: Job) -> Failure | None:
    """Why a job cannot go on in its folder."""
    try:
        conflicts = job.conflicts()
    except UserError as error:
        return Failure(job.name, str(error), "")
    if not conflicts:
        return None
    reason = f"{job.folder} has a model trained with {', '.join(conflicts)}"
    return Failure(job.name, reason, "remove it to train anew")


class JobRunner:
    """Runs the jobs of a sweep.

    Args:
      jobs: each after the jobs that it needs.
      parallel: the number of jobs at a time. Each gets its own share of the cores if
        the system supports this and there are enough cores.
      command: job -> its argument list, if each runs as a separate process.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        parallel: int,
        command: Callable[[Job], Sequence[str]] | None = None,
    ):
        self._jobs = list(jobs)
        self._parallel = parallel
        self._running: dict[str, tuple[subprocess.Popen | Fork, float, int]] = {}
        self._command = command
        self._cores = shares_of_cores(parallel) or [None] * parallel
        # What the running jobs read.
        self._made_from: dict[str, dict[str, Any]] = {}
        # The record and the files of starts that their folders had before.
        self._history: dict[str, tuple[dict[str, Any] | None, list[str]]] = {}
        self._seconds: dict[str, list[float]] = {}
        # Jobs that leave another result than was in their folders, as for more steps.
        self._changed_jobs: set[str] = set()
        # The name of the signal that ends the sweep.
        self._signal = ""

    def run(self) -> list[Failure]:
        """Runs the incomplete jobs; returns those that failed or could not start.

        Raises:
          Terminated: SIGTERM or SIGHUP arrived; jobs have saved and were ended.
        """
        with handled(self._end, [signal.SIGTERM, signal.SIGHUP]):
            try:
                return self._run()
            finally:
                self._stop()

    def _run(self):
        complete, failures, waiting = set(), {}, []
        seen = {}
        for job in self._jobs:
            # A job whose needs have changed is run again.
            if job.is_complete(seen) and complete.issuperset(job.needs):
                complete.add(job.name)
            elif failure := _refusal(job):
                failures[job.name] = failure
            else:
                waiting.append(job)
                if job.changes_result():
                    self._changed_jobs.add(job.name)
                if changed := job.changes(seen):
                    console.say(f"{job.name}: run again: {in_words(changed)}")
        if complete:
            console.say(f"{len(complete)} of {len(self._jobs)} jobs complete already")
        while waiting or self._running:
            waiting = self._start(waiting, complete, failures)
            self._collect(complete, failures, waiting)
            if self._signal:
                self._stop()
                raise Terminated(
                    f"{self._signal}: jobs ended; run the same command to go on"
                )
            time.sleep(_POLL)
        return list(failures.values())

    def _start(self, waiting, complete, failures):
        todo = []
        for job in waiting:
            failed_needs = [name for name in job.needs if name in failures]
            if failed_needs:
                failures[job.name] = Failure(job.name, f"needs {failed_needs[0]}", "")
            elif len(self._running) < self._parallel and complete.issuperset(job.needs):
                self._launch(job)
            else:
                todo.append(job)
        return todo

    def _launch(self, job):
        made_from = self._made_from[job.name] = job.made_from()
        self._move_outdated(job, made_from)
        if job.kind == CONVERT and files.exists(job.model_dir):
            # It writes a new folder.
            console.say(f"{job.name}: run again; moved to {job.move_outdated()}")
        files.make_folder(job.folder)
        record = read_record(job.folder)
        self._history[job.name] = record, _starts(job)
        if record is not None:
            # Otherwise a report would combine this job's files with the old record.
            gfile.remove(os.path.join(job.folder, RECORD))
        console.say(f"start {job.name}")
        taken_places = {place for _, _, place in self._running.values()}
        place = next(n for n in range(self._parallel) if n not in taken_places)
        command = self._command and self._command(job)
        process = start_job(job, self._cores[place], command)
        self._running[job.name] = (process, time.monotonic(), place)

    def _move_outdated(self, job, made_from):
        """Renames the folder of a job whose needs were made anew.

        Its command would refuse this folder, or reuse the outdated results.
        """
        needs = [need for need in self._jobs if need.name in job.needs]
        for need in needs:
            if need.name in self._changed_jobs or job.read_other_files(need, made_from):
                if new_name := job.move_outdated():
                    console.say(f"{job.name}: {need.name} is new; moved to {new_name}")
                self._changed_jobs.add(job.name)
                return

    def _collect(self, complete, failures, waiting):
        jobs = {job.name: job for job in self._jobs}
        for name, (process, start, _) in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[name]
            job, seconds = jobs[name], time.monotonic() - start
            if self._signal:
                continue
            if code == 0:
                job.record(self._all_seconds(name, seconds), self._made_from[name])
                complete.add(name)
                self._seconds.setdefault(job.kind, []).append(seconds)
                console.say(self._progress(job, seconds, complete, failures, waiting))
            else:
                failures[name] = failure = self._failure(job, code)
                console.say(f"failed {name} with {failure.reason}: {failure.last_line}")

    def _all_seconds(self, name, seconds):
        """The seconds of all starts in a folder; None if one of them was killed.

        A start that had nothing left to do adds none.
        """
        record, starts = self._history[name]
        if not starts:
            return seconds
        old_seconds = (record or {}).get("seconds")
        is_more = old_seconds is not None and name in self._changed_jobs
        return old_seconds + seconds if is_more else old_seconds

    def _failure(self, job, code):
        reason, (record, starts) = f"code {code}", self._history[job.name]
        if code == USER_ERROR_CODE and _starts(job) == starts:
            # The command refused the folder, where everything is as before.
            if record is not None:
                files.write_json(os.path.join(job.folder, RECORD), record)
            if holds_results(job.folder):
                reason = f"{reason}; remove {job.folder} to begin anew"
        return Failure(job.name, reason, _last_line(os.path.join(job.folder, LOG)))

    def _progress(self, job, seconds, complete, failures, waiting):
        count = len(complete) + len(failures)
        duration = console.duration(seconds)
        line = f"{count} of {len(self._jobs)}: {job.name} in {duration}"
        jobs = {job.name: job for job in self._jobs}
        todo = [*waiting, *(jobs[name] for name in self._running)]
        if not todo:
            return line
        times = [value for values in self._seconds.values() for value in values]
        job_times = [self._seconds.get(job.kind, times) for job in todo]
        total = sum(sum(values) / len(values) for values in job_times)
        return f"{line}; about {console.duration(total / self._parallel)} left"

    def _end(self, number, _):
        self._signal = signal.Signals(number).name

    def _stop(self):
        if self._running:
            console.say(f"ending running jobs ({len(self._running)}); they save first")
        end_all((running[0] for running in self._running.values()), _GRACE)
        self._running = {}


class Fork:
    """A job in a fork, with the methods of `subprocess.Popen` that a runner needs.

    It may use these `cores`; None for all.
    """

    def __init__(self, job: Job, cores: set[int] | None):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["decoupled.studies.preload"])
        log = os.path.join(job.folder, LOG)
        words = [job.kind, *job.arguments]
        self._process = context.Process(target=_run_forked, args=(words, log, cores))
        self._process.start()
        self.pid, self._name = self._process.pid, job.name
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def poll(self) -> int | None:
        """The exit code, None while the job runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self._name, timeout)
        return self.poll()


def start_job(
    job: Job, cores: set[int] | None, command: Sequence[str] | None
) -> subprocess.Popen | Fork:
    """Starts a job, on some cores or all: a fork on Linux if there is no `command`."""
    if command is None and sys.platform == "linux":
        return Fork(job, cores)
    command = command or job_command(job)
    with open(os.path.join(job.folder, LOG), "ab") as log:
        process = start_apart(command, log, log)
    if cores:
        # Before it starts threads, which inherit this.
        os.sched_setaffinity(process.pid, cores)
    return process


def _run_forked(words: list[str], log: str, cores: set[int] | None) -> None:
    """The fork's own work: `decoupled WORDS`, with the log as stdout and stderr."""
    from decoupled.studies import preload

    # The fork ends with the server: no other process could report its exit code.
    signal_at_end_of_parent(signal.SIGKILL)
    if cores:
        os.sched_setaffinity(0, cores)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, preload.SIGNALS)
    if not preload.CAN_FORK:
        command = command_line("decoupled", *words)
        os.execv(command[0], command)
    threading.Thread(target=_end_with_sweep, daemon=True).start()
    sys.argv[1:] = words
    # As `python -m decoupled` does: locks name the main module as their holder.
    runpy.run_module("decoupled", run_name="__main__", alter_sys=True)


def _end_with_sweep() -> None:
    """Ends this fork, which saves first, if the sweep was killed."""
    multiprocessing.parent_process().join()
    os.kill(os.getpid(), signal.SIGTERM)


def shares_of_cores(parallel: int) -> list[set[int]]:
    """The cores of this process, divided among `parallel` jobs.

    Two jobs with one core each are faster than two jobs that share two cores, because
    the threads of one job do not wait for those of the other. Empty if there is one
    job, more jobs than cores, or no such system call.
    """
    if parallel == 1 or not hasattr(os, "sched_setaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    if parallel > len(cores):
        return []
    return [set(cores[place::parallel]) for place in range(parallel)]


def job_command(job: Job, accelerator: str | None = None) -> list[str]:
    """The job as a command of this Python."""
    words = (*job.arguments, *on_accelerator(job, accelerator))
    return command_line("decoupled", job.kind, *words)


def on_accelerator(job: Job, accelerator: str | None) -> list[str]:
    """The flag of a job that trains; no part of the job, which may go on elsewhere."""
    trains = accelerator is not None and job.kind in (PRETRAINING, FINETUNING)
    return [f"--accelerator={accelerator}"] if trains else []


def _starts(job):
    """The files in which commands have recorded that they began in a job's folder."""
    return gfile.glob(f"{job.folder}/", "command.*")


def _last_line(path):
    if not files.exists(path):
        # The job ended before it opened its log.
        return ""
    with open(path, "rb") as handle:
        handle.seek(0, os.SEEK_END)
        handle.seek(max(0, handle.tell() - 4096))
        lines = handle.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
