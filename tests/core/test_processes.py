"""Processes share tasks and are gone when the block that needs them ends."""

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import threading
import time

import pytest

from decoupled.core import processes
from decoupled.core.errors import UserError


@pytest.mark.parametrize(
    "wanted, tasks, are_small, expected",
    [
        (0, 100, False, 5),
        (0, 3, False, 3),
        (0, 100, True, 1),
        (7, 100, True, 7),
        (7, 2, False, 2),
        (0, 0, False, 1),
    ],
)
def test_how_many_processes(monkeypatch, wanted, tasks, are_small, expected):
    monkeypatch.setattr(processes, "usable_cores", lambda: 5)
    assert processes.choose_workers(wanted, tasks, are_small) == expected


def test_futures_are_in_the_order_of_the_tasks():
    with processes.started(functools.partial(pow, 2), range(9), 2, "here") as futures:
        assert [future.result() for future in futures] == [2**n for n in range(9)]
    assert multiprocessing.active_children() == []


def test_what_a_task_raises_is_raised_and_the_others_go_on():
    with processes.started(functools.partial(divmod, 6), [0, 3], 2, "") as futures:
        with pytest.raises(ZeroDivisionError):
            futures[0].result()
        assert futures[1].result() == (2, 0)


def test_an_error_in_the_block_kills_the_processes_and_no_others():
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=time.sleep, args=(60,))
    other.start()
    try:
        began = time.monotonic()
        with pytest.raises(ValueError, match="^stop$"):
            with processes.started(time.sleep, [60] * 5, 2, "here"):
                raise ValueError("stop")
        assert time.monotonic() - began < 30
        assert multiprocessing.active_children() == [other]
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


def test_a_killed_process_ends_the_others_and_is_told():
    parameters = [(0.0, 0), (60.0, 0), (0.0, signal.SIGKILL)]
    with pytest.raises(UserError) as caught:
        with processes.started(sleep_and_die, parameters, 2, "/a/b") as futures:
            for future in concurrent.futures.as_completed(futures):
                future.result()
    assert str(caught.value) == (
        "/a/b: a worker process was killed, most likely for lack of memory; run the "
        "same command again with fewer --workers"
    )
    assert multiprocessing.active_children() == []


def sleep_and_die(parameters):
    """Sleeps some seconds, then sends itself a signal, if it is not 0."""
    seconds, number = parameters
    time.sleep(seconds)
    if number:
        os.kill(os.getpid(), number)


def test_ctrl_c_reaches_this_process_alone():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with processes.started(masked_signals, [None], 1, "here") as futures:
        assert signal.SIGINT in futures[0].result()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def masked_signals(_):
    """The signals that a worker process does not get."""
    assert threading.current_thread() is threading.main_thread()
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())
