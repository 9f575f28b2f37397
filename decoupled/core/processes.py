"""Processes: runs and ends commands, handles signals, and runs pools of workers.

Workers end with the block that started them. They also end with the process that
started them, even if it was killed. A terminal sends Ctrl-C to all processes: the
workers ignore it, and the process that started them ends them.
"""

import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import IO, Any

from decoupled.core.errors import Interrupted, Terminated, UserError
from decoupled.core.machine import usable_cores

# linux/prctl.h
_PARENT_DEATH_SIGNAL = 1


def command_line(*words: str) -> list[str]:
    """`decoupled COMMAND ...` as a command of this Python; other commands unchanged."""
    if words[0] == "decoupled":
        return [sys.executable, "-m", *words]
    return list(words)


@contextlib.contextmanager
def handled(
    handler: Callable[[int, Any], None],
    numbers: Sequence[int] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
) -> Iterator[None]:
    """Sends signals that end a process to the handler while the block runs.

    Signals that this process ignores, for example because of nohup, stay ignored.
    """
    previous = {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def start_apart(
    command: Sequence[str],
    environment: Mapping[str, str],
    stderr: IO | None = None,
    begin: Callable[[], None] | None = None,
) -> subprocess.Popen:
    """Starts a process that does not get Ctrl-C from the terminal.

    Args:
      command: with its arguments. environment: all variables.
      stderr: an open file for its stderr; by default the stderr of this process.
      begin: called in the new process before the command.
    """
    return subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stderr=stderr,
        preexec_fn=begin,
    )


def _ended_with_this_process() -> Callable[[], None] | None:
    """What a command calls to get SIGTERM if this process is killed; None elsewhere.

    Only Linux can do it.
    """
    if sys.platform != "linux":
        return None
    library, parent = ctypes.CDLL(None), os.getpid()

    def begin():
        library.prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return begin


def end_all(running: Iterable[subprocess.Popen], grace: float) -> None:
    """Sends SIGTERM to all; kills those that still run `grace` seconds later."""
    running = list(running)
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    stderr: IO | None = None,
) -> int:
    """Runs a command to its end; returns its exit code, as in `subprocess`.

    If this process is killed, the command gets SIGTERM, so that it saves and ends
    instead of running on in a folder that the next start needs.

    Args:
      command: with its arguments. environment: variables in addition to this process's.
      stderr: an open file for its stderr; by default the stderr of this process.

    Raises:
      Interrupted: Ctrl-C was pressed, and the command has ended. The message is the
        name of the signal.
      Terminated: SIGTERM or SIGHUP arrived, and the command has ended.
    """
    received, process = None, None

    def pass_on(number, _):
        nonlocal received
        received = number
        if process is not None:
            process.send_signal(number)

    with handled(pass_on):
        variables = {**os.environ, **(environment or {})}
        begin = _ended_with_this_process()
        process = start_apart(command, variables, stderr, begin)
        if received is not None:
            process.send_signal(received)
        code = process.wait()
    if received == signal.SIGINT:
        raise Interrupted("Ctrl-C")
    if received is not None:
        raise Terminated(signal.Signals(received).name)
    return code


def choose_workers(wanted: int, tasks: int, are_small: bool) -> int:
    """The number of processes for some tasks: at least 1, at most one per task.

    Args:
      wanted: the user's number; 0 means one per core that this process may use.
      are_small: whether starting processes takes longer than the tasks. Then `wanted` 0
        means one process.
    """
    if not wanted:
        wanted = 1 if are_small else usable_cores()
    return max(1, min(wanted, tasks))


@contextlib.contextmanager
def started(
    function: Callable[[Any], Any], tasks: Sequence[Any], workers: int, where: str
) -> Iterator[list[concurrent.futures.Future]]:
    """Yields a future of function(task) for each task, computed by other processes.

    If an error or Ctrl-C ends the block, the processes are killed. So `function` must
    leave its files in a state from which another start can resume.

    Args:
      function: importable by the processes, or a partial of such a function.
      tasks: the arguments. Tasks and results pass through a pipe: keep them small.
      workers: the number of processes. where: a folder or file that a message names.

    Raises:
      UserError: a process was killed from outside.
    """
    others = set(multiprocessing.active_children())
    executor = concurrent.futures.ProcessPoolExecutor(
        workers,
        # TensorFlow does not survive a fork.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(function,),
    )
    try:
        with _interrupts_held():
            futures = [executor.submit(_call, task) for task in tasks]
        yield futures
    except BaseException as error:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        executor.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                f"{where}: a worker process was killed, most likely for lack of "
                "memory; run the same command again with fewer --workers"
            ) from error
        raise
    executor.shutdown()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block; processes started there never get it."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


# The function that a worker process calls with each task.
_function: Callable[[Any], Any] | None = None


def _begin(function):
    global _function
    _function = function
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def _call(task):
    return _function(task)
