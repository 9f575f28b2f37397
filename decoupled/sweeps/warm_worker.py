"""A process that has imported TensorFlow once, and forks for each job.

  python -m decoupled.sweeps.warm_worker pretrain finetune

imports the modules that these commands use. Then each line on stdin is a job, a JSON
object with "command", "arguments" and "log". A fork of this process runs it as
`decoupled COMMAND ARGUMENTS`, with the log as stdout and stderr. Each job is reported
in two lines on stdout: {"pid": N} when it has begun, and {"code": N} when it has ended,
with the codes of `subprocess`. The process ends at the end of stdin, after its current
job.

A fork is safe here, although a running TensorFlow does not survive one. The reason it
does not survive are its threads and the locks that they hold. These start with the
first session, eager operation or dataset, but not when TensorFlow is imported (observed
with 2.15 and 2.21), and this process only imports it. OpenBLAS, which NumPy and SciPy
use, starts threads when it is loaded. It ends them before each fork by its own handler,
and parent and child start them again when they multiply. Before each fork this process
counts its threads. If there is more than one, it ends, and the job runs as a new
process.

So a job starts in the state of a process that has only imported modules: no graph, no
gin setting, no flag, no session. A job cannot change the memory of another job, and its
memory is freed when it ends. Cores, environment variables and the number of OpenBLAS's
threads are those of this process, as for a new process.
"""

import ast
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import runpy
import signal
import sys
import time
from collections.abc import Iterable, Iterator

COMMANDS = pathlib.Path(__file__).parent.parent / "commands"
_THREADS = "/proc/self/task"
# A joined thread stays in /proc for a moment.
_SECONDS_TO_END = 2.0
# linux/prctl.h
_PARENT_DEATH_SIGNAL = 1
# Signals that a terminal or a service manager sends to all processes of a sweep.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Modules that the package imports within the functions that draw.
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
    # Ctrl-C of a terminal is for the jobs; the parent ends this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _import_what_jobs_use(sys.argv[1:])
    _end_threads_of_openblas()
    gc.collect()
    # The garbage collector would write to every object, and so copy all memory per
    # fork.
    gc.freeze()
    job = _serve(requests, replies)
    if job is None:
        return
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sys.argv[1:] = [job["command"], *job["arguments"]]
    # As `python -m decoupled` does: locks name the main module as their holder.
    runpy.run_module("decoupled", run_name="__main__", alter_sys=True)


def _own_channel():
    """Files of requests and replies, separate from what modules print or read."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    return requests, replies


def _import_what_jobs_use(commands: Iterable[str]) -> None:
    """Imports TensorFlow, the commands, and the modules that their functions import.

    If a module is missing, the jobs that need it report this.
    """
    names = ["decoupled.core.compat", *_DRAWING, "decoupled.launch.start"]
    for command in commands:
        names += [f"decoupled.commands.{command}"]
        names += _imports_of(COMMANDS / f"{command}.py")
    for name in dict.fromkeys(names):
        with contextlib.suppress(ImportError):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                # Of `from a import b`, where b is no module.
                importlib.import_module(name.rpartition(".")[0] or name)


def _imports_of(path: pathlib.Path) -> Iterator[str]:
    """The imports of a file and its functions; a.b for `from a import b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _end_threads_of_openblas():
    """Forks once without a job, because OpenBLAS ends its threads before a fork."""
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
            # Reaped only now: until then no other process can get its number, and the
            # requester can still send it a signal.
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
            # The requester has been killed. The job continues to its end.
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
    """Gives this fork the state of a new process."""
    # The fork ends with its parent, because nobody else could report its exit code.
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
