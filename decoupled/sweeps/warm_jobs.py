"""Starts jobs as forks of a process that has imported TensorFlow, or as new processes.

Python's own fork server (`multiprocessing`) imports `decoupled.sweeps.preload` once and
forks for each job. A job starts in the state of a process that has only imported
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
from collections.abc import Sequence

from decoupled.core.processes import (
    command_line,
    signal_at_end_of_parent,
    start_apart,
)
from decoupled.sweeps.jobs import LOG, Job


class Fork:
    """A job in a fork, with the methods of `subprocess.Popen` that a runner needs.

    It may use these `cores`; None for all.
    """

    def __init__(self, job: Job, cores: set[int] | None):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["decoupled.sweeps.preload"])
        log = os.path.join(job.folder, LOG)
        words = [job.kind, *job.arguments]
        self._process = context.Process(target=_run, args=(words, log, cores))
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


def start(
    job: Job, cores: set[int] | None, warm: bool, command: Sequence[str]
) -> subprocess.Popen | Fork:
    """Starts a job, on some cores or all; if `warm`, as a fork where that is possible.

    `command` is its argument list as a new process.
    """
    if warm and sys.platform == "linux":
        return Fork(job, cores)
    with open(os.path.join(job.folder, LOG), "ab") as log:
        process = start_apart(command, log, log)
    if cores:
        # Before it starts threads, which inherit this.
        os.sched_setaffinity(process.pid, cores)
    return process


def _run(words: list[str], log: str, cores: set[int] | None) -> None:
    """The fork's own work: `decoupled WORDS`, with the log as stdout and stderr."""
    from decoupled.sweeps import preload

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
        new = command_line("decoupled", *words)
        os.execv(new[0], new)
    threading.Thread(target=_end_with_sweep, daemon=True).start()
    sys.argv[1:] = words
    # As `python -m decoupled` does: locks name the main module as their holder.
    runpy.run_module("decoupled", run_name="__main__", alter_sys=True)


def _end_with_sweep() -> None:
    """Ends this fork, which saves first, if the sweep was killed."""
    multiprocessing.parent_process().join()
    os.kill(os.getpid(), signal.SIGTERM)
