"""Runs jobs in forks of a process that has imported TensorFlow, or as new processes.

`decoupled.sweeps.warm_worker` explains the forks and why they are safe. Each job is a
new process if forking is not possible (the system is not Linux, a module has started a
thread, a module cannot be imported) or if `SweepConfig.warm_processes` is False. Its
results, log and exit code are the same in both cases.
"""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from decoupled.sweeps import warm_worker
from decoupled.sweeps.jobs import LOG, Job

# Seconds between two polls of a job.
_POLL = 0.02


def _pin(process: int, cores: set[int] | None) -> None:
    """Pins a process to cores, before it starts threads, which inherit this."""
    if cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(process, cores)


class Place:
    """A slot for one job at a time, with its own cores.

    Args:
      kinds: of the jobs; their modules are imported.
      cores: the cores that it and its jobs may use; None for all.
      command: job -> its argument list as a separate process.
      warm: whether jobs are forks of one permanent process, the worker.
      say: prints a line.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        cores: set[int] | None,
        command: Callable[[Job], Sequence[str]],
        warm: bool,
        say: Callable[[str], None],
    ):
        self._kinds, self._cores, self._command = kinds, cores, command
        self._say = say
        self._worker: subprocess.Popen | None = None
        self._forks = warm and warm_worker.can_fork()

    def start(self, job: Job) -> "subprocess.Popen | Fork":
        """Starts a job; the previous one must have ended."""
        if not self._forks:
            return self.start_alone(job)
        request = {
            "command": job.kind,
            "arguments": list(job.arguments),
            "log": os.path.join(job.folder, LOG),
        }
        if self._worker is None:
            self._start_worker()
        # A worker that has died is noticed when its reply is read.
        with contextlib.suppress(BrokenPipeError):
            self._worker.stdin.write(json.dumps(request).encode() + b"\n")
        return Fork(self._worker, job, self)

    def start_alone(self, job: Job) -> subprocess.Popen:
        """Starts a job as a separate process."""
        with open(os.path.join(job.folder, LOG), "ab") as log:
            process = subprocess.Popen(
                self._command(job),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        _pin(process.pid, self._cores)
        return process

    def stop_forking(self, code: int) -> None:
        """Starts each job as a separate process from now on.

        Args:
          code: exit code of the worker, which ended before its job had begun.
        """
        self.close()
        self._forks = False
        why = f"exit code {code}" if code else "a module has started a thread"
        self._say(
            f"the warm process ended before a job had begun ({why}); jobs import "
            "TensorFlow themselves, which takes longer and changes no result"
        )

    def close(self) -> None:
        """Ends the worker; its job has ended. The next job starts another one."""
        if self._worker is not None:
            # It may still be importing. It runs no job and holds nothing to save.
            self._worker.kill()
            self._worker.wait()
            self._worker.stdin.close()
            self._worker.stdout.close()
            self._worker = None

    def _start_worker(self):
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "decoupled.sweeps.warm_worker", *self._kinds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        _pin(self._worker.pid, self._cores)


class Fork:
    """A job in a fork, with the methods of `subprocess.Popen` that a runner needs.

    If the worker cannot fork, the job becomes a separate process.

    Attributes: `pid` of the fork, None before it has begun.
    """

    def __init__(self, worker: subprocess.Popen, job: Job, owner: Place):
        self._worker, self._job, self._owner = worker, job, owner
        self._unread = b""
        self.pid: int | None = None
        self._code: int | None = None
        self._alone: subprocess.Popen | None = None

    def poll(self) -> int | None:
        """The exit code, None while the job runs."""
        if self._alone is not None:
            return self._alone.poll()
        while self._code is None and select.select([self._worker.stdout], [], [], 0)[0]:
            found = os.read(self._worker.stdout.fileno(), 4096)
            if not found:
                return self._worker_died()
            *lines, self._unread = (self._unread + found).split(b"\n")
            for line in lines:
                message = json.loads(line)
                self.pid = message.get("pid", self.pid)
                self._code = message.get("code")
        return self._code

    def _worker_died(self):
        """The code of a job that died with its worker; None if it had not begun."""
        code = self._worker.wait()
        if self.pid is not None:
            # Another job may succeed: most likely memory was short.
            self._owner.close()
            self._code = code or 1
            return self._code
        self._owner.stop_forking(code)
        self._alone = self._owner.start_alone(self._job)
        return None

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number):
        if self.poll() is not None:
            return
        if self._alone is not None:
            self._alone.send_signal(number)
        elif self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        else:
            # The worker still imports; nothing of the job has run.
            self._owner.close()
            self._code = -number

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self._job.name, timeout)
            time.sleep(_POLL)
        return code
