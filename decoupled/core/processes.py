"""Processes: commands that are run and ended, signals, and pools of workers.

Workers end with the block that started them. They also end with the process that
started them, even where it was killed. A terminal sends Ctrl-C to all processes: the
workers ignore it, and the process that started them ends them.
"""

import concurrent.futures
import contextlib
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


def command_line(*words: str) -> list[str]:
    """`decoupled COMMAND ...` as a command of this Python; any other as it is."""
    if words[0] == "decoupled":
        return [sys.executable, "-m", *words]
    return list(words)


@contextlib.contextmanager
def handled(
    handler: Callable[[int, Any], None],
    numbers: Sequence[int] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
) -> Iterator[None]:
    """Signals that end a process go to the handler while the block runs.

    Those that this process ignores, as nohup has it, stay ignored.
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
    command: Sequence[str], environment: Mapping[str, str], stderr: IO | None = None
) -> subprocess.Popen:
    """Starts a process that Ctrl-C on the terminal does not reach by itself.

    Args:
      command: with its arguments. environment: all variables.
      stderr: an open file that takes its errors; those of this process by default.
    """
    return subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=stderr
    )


def end_all(running: Iterable[subprocess.Popen], grace: float) -> None:
    """Sends SIGTERM to all; kills those that have not ended `grace` seconds later."""
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
    """Runs a command to its end; its exit code, as `subprocess` has it.

    Args:
      command: with its arguments. environment: variables beside those of this process.
      stderr: an open file that takes its errors; those of this process by default.

    Raises:
      Interrupted: Ctrl-C came, and the command has ended since. The message is the name
        of the signal.
      Terminated: SIGTERM or SIGHUP came, in the same way.
    """
    received, process = None, None

    def pass_on(number, _):
        nonlocal received
        received = number
        if process is not None:
            process.send_signal(number)

    with handled(pass_on):
        process = start_apart(command, {**os.environ, **(environment or {})}, stderr)
        if received is not None:
            process.send_signal(received)
        code = process.wait()
    if received == signal.SIGINT:
        raise Interrupted("Ctrl-C")
    if received is not None:
        raise Terminated(signal.Signals(received).name)
    return code


def choose_workers(wanted: int, tasks: int, are_small: bool) -> int:
    """How many processes share a number of tasks: at least 1, at most one per task.

    Args:
      wanted: what the user said; 0 means one per core that this process may use.
      are_small: to start processes takes longer than the tasks: with `wanted` 0 there
        is one.
    """
    if not wanted:
        wanted = 1 if are_small else usable_cores()
    return max(1, min(wanted, tasks))


@contextlib.contextmanager
def started(
    function: Callable[[Any], Any], tasks: Sequence[Any], workers: int, where: str
) -> Iterator[list[concurrent.futures.Future]]:
    """Yields a future of function(task) for each task; other processes work on them.

    Where an error or Ctrl-C ends the block, the processes are killed: `function` must
    leave its files in a state that a second start can go on from.

    Args:
      function: importable by the processes, or a partial of such a function.
      tasks: what it is called with. Tasks and results pass through a pipe: keep them
        small.
      workers: the number of processes. where: a folder or file that a message names.

    Raises:
      UserError: a process was killed by somebody else.
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
    """Ctrl-C waits for the end of the block; processes started in it never get it."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


# What a worker process does with each task.
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
