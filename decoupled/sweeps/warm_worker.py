"""A process that has imported TensorFlow once, and forks for each job.

  python -m decoupled.sweeps.warm_worker pretrain finetune

imports what these commands use. Each line on stdin is then a job, a JSON object of
"command", "arguments" and "log": a fork of this process runs it as
`decoupled COMMAND ARGUMENTS`, with the log as stdout and stderr. Each job is told of in
two lines on stdout: {"pid": N} once it has begun, {"code": N} when it has ended, as
`subprocess` gives codes. The process ends where stdin does, after its job.

Why a fork is safe here, although TensorFlow does not survive one: what does not survive
are its threads and the locks that they hold. They start with the first session, eager
operation or dataset, and not while TensorFlow is imported (seen with 2.15 and 2.21).
This process never gets so far. OpenBLAS, below NumPy and SciPy, starts threads when it
is loaded; it ends them before each fork by a handler of its own, and parent and child
start them again where they multiply. Before each fork this process counts its threads;
unless it is the only one, it ends, and the job runs in a process of its own.

So a job finds the state of a process that has only imported modules: no graph, no
setting of gin, no flag, no session. Nothing that a job does reaches another's memory,
and its memory is given back when it ends. Cores, environment variables and the number
of OpenBLAS's threads are those of this process, as with a process of its own.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterable

from decoupled.core import dependencies

_THREADS = "/proc/self/task"
# A thread that was joined stays in /proc for a moment.
_SECONDS_TO_END = 2.0
# linux/prctl.h
_PARENT_DEATH_SIGNAL = 1
# Those that a terminal or a service manager sends to all processes of a sweep.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What the package imports where it draws, in functions.
_DRAWING = (
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
)


def can_fork() -> bool:
    """Whether this system lets a process count its threads; only Linux does."""
    return hasattr(os, "fork") and os.path.isdir(_THREADS)


def main() -> None:
    """Imports, forks for each job, and runs the job in the fork."""
    requests, replies = _own_channel()
    # Ctrl-C of a terminal is for the jobs; whoever started this process ends it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _import_what_jobs_use(sys.argv[1:])
    _end_threads_of_openblas()
    gc.collect()
    # The collector would write to each object, and so copy all memory to each fork.
    gc.freeze()
    job = _serve(requests, replies)
    if job is None:
        return
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sys.argv[1:] = [job["command"], *job["arguments"]]
    # As `python -m decoupled` does it: locks name the main module as who holds them.
    runpy.run_module("decoupled", run_name="__main__", alter_sys=True)


def _own_channel():
    """Files of requests and replies. What modules print or read meets nothing."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    return requests, replies


def _import_what_jobs_use(commands: Iterable[str]) -> None:
    """TensorFlow, the commands, and what their functions import.

    A module that is missing here is missed by the jobs that need it, if any does.
    """
    names = ["decoupled.core.compat", *_DRAWING, "decoupled.launch.start"]
    for command in commands:
        names += [f"decoupled.commands.{command}"]
        names += dependencies.imports_of(dependencies.command_path(command))
    for name in dict.fromkeys(names):
        with contextlib.suppress(ImportError):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                # Of `from a import b`, where b is no module.
                importlib.import_module(name.rpartition(".")[0] or name)


def _end_threads_of_openblas():
    """Forks once in vain: OpenBLAS ends its threads before that."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def _is_single_thread():
    end = time.monotonic() + _SECONDS_TO_END
    while len(os.listdir(_THREADS)) > 1:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _serve(requests, replies):
    """Forks for each job; returns the job in the fork, and None at the end of all."""
    me, child = os.getpid(), 0
    for line in requests:
        if child:
            # Only now, so that its number is free for no other process while whoever
            # asked for the job can still send it a signal.
            os.waitpid(child, 0)
        if not _is_single_thread():
            break
        child = os.fork()
        if not child:
            requests.close()
            replies.close()
            return _begin(json.loads(line), me)
        try:
            _tell(replies, pid=child)
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            _tell(replies, code=_code(ended))
        except BrokenPipeError:
            # Whoever asked has been killed. The job goes on to its end.
            os.waitpid(child, 0)
            break
    return None


def _tell(replies, **message):
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _code(ended):
    """The code of an ended process: that of its exit, or minus its signal."""
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status
    return -ended.si_status


def _begin(job, parent):
    """Makes this fork what a process of its own would be."""
    # Nobody could tell how it ends without its parent: it ends with that.
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    log = os.open(job["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    return job


if __name__ == "__main__":
    main()
