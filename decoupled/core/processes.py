"""Commands that this process runs and ends, and a pool of workers.

Both end with the process that started them, even if it was killed. A terminal sends
Ctrl-C to all processes: commands and workers do not get it, and the process that
started them passes it on or ends them.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    old_handlers = {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, old_handler in old_handlers.items():
            signal.signal(number, old_handler)


def signal_at_end_of_parent(number: signal.Signals) -> None:
    """On Linux, sends this process a signal when the one that started it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)


def start_apart(
    command: Sequence[str],
    stderr: IO | None = None,
    stdout: IO | None = None,
) -> subprocess.Popen:
    """Starts a process that does not get Ctrl-C, or other input, from the terminal.

    On Linux it gets SIGTERM if this process is killed, so that it saves and ends
    instead of running on in a folder that the next start needs.
    """
    parent = os.getpid()

    def begin():
        signal_at_end_of_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return subprocess.Popen(
        command,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=begin,
    )


def end_all(processes: Iterable[subprocess.Popen], grace: float) -> None:
    """Sends SIGTERM to all; kills those that still run `grace` seconds later."""
    processes = list(processes)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_command(command: Sequence[str], stderr: IO | None = None) -> int:
    """Runs a command to its end; returns its exit code, as in `subprocess`.

    Raises:
      Interrupted, Terminated: Ctrl-C was pressed, or SIGTERM or SIGHUP arrived, and the
        command has ended. The message is the name of the signal.
    """
    received_number, process = None, None

    def pass_on(number, _):
        nonlocal received_number
        received_number = number
        if process is not None:
            process.send_signal(number)

    with handled(pass_on):
        process = start_apart(command, stderr)
        # A signal may have come before the process was there.
        if received_number is not None:
            process.send_signal(received_number)
        code = process.wait()
    if received_number == signal.SIGINT:
        raise Interrupted("Ctrl-C")
    if received_number is not None:
        raise Terminated(signal.Signals(received_number).name)
    return code


def choose_workers(number: int, tasks: int, are_small: bool) -> int:
    """`number` processes, or with 0 one for each core, or one if tasks are small."""
    if not number:
        number = 1 if are_small else usable_cores()
    return max(1, min(number, tasks))


@contextlib.contextmanager
def started(
    function: Callable[[Any], Any], tasks: Sequence[Any], workers: int, where: str
) -> Iterator[list[concurrent.futures.Future]]:
    """Yields a future of function(task) for each task, computed by other processes.

    If an error or Ctrl-C ends the block, the processes are killed. So `function` must
    leave its files in a state from which another start can resume.
    """
    other_processes = set(multiprocessing.active_children())
    executor = concurrent.futures.ProcessPoolExecutor(
        workers,
        # TensorFlow does not survive a fork.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(function,),
    )
    try:
        with _interrupts_delayed():
            futures = [executor.submit(_call, task) for task in tasks]
        yield futures
    except BaseException as error:
        for process in set(multiprocessing.active_children()) - other_processes:
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
def _interrupts_delayed():
    """Delays Ctrl-C to the end of the block; processes started there never get it."""
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


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
