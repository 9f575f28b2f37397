"""Commands and workers: what they get, and that they are gone at the end."""

import multiprocessing
import signal
import subprocess
import sys
import threading
import time

import pytest

from decoupled.core import processes
from tests.processes import python


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can do it")
def test_a_command_gets_sigterm_when_the_process_that_runs_it_is_killed():
    inner = (
        "import signal, sys, time; "
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saved'))); "
        "print('ready', flush=True); time.sleep(60)"
    )
    outer = (
        "import sys; from decoupled.core import processes; "
        "processes.run_command([sys.executable, '-c', sys.argv[1]])"
    )
    words = [*python(outer), inner]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        running.kill()
        assert running.stdout.read() == "saved\n"


def test_processes_are_ended_by_sigterm_and_killed_where_that_does_not_help():
    ready = "print('ready', flush=True); time.sleep(60)"
    saves = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(99)); {ready}"
    stays = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {ready}"
    running = [
        subprocess.Popen(
            python(f"import signal, sys, time; {code}"), stdout=subprocess.PIPE
        )
        for code in (saves, stays)
    ]
    for process in running:
        process.stdout.readline()
    done = subprocess.Popen(python("raise SystemExit(3)"))
    done.wait()
    processes.end_all([*running, done], grace=1.0)
    codes = [process.returncode for process in [*running, done]]
    assert codes == [99, -signal.SIGKILL, 3]
    for process in running:
        process.stdout.close()


def test_what_is_ignored_stays_ignored():
    """As nohup has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.handled(lambda *_: None, [signal.SIGHUP]):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def in_background(code):
    """Runs Python code where Ctrl-C is ignored, as in a background job of a script."""
    command = ["sh", "-c", 'trap \'\' INT; exec "$0" -c "$1"', sys.executable, code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_command_of_a_command_that_ignores_ctrl_c_ignores_it_too():
    child = (
        "import os, signal; os.kill(os.getpid(), signal.SIGINT); "
        "os.kill(os.getppid(), signal.SIGINT); print('went on')"
    )
    done = in_background(
        "import sys; from decoupled.core import processes; "
        f"print(processes.run_command([sys.executable, '-c', {child!r}]))"
    )
    assert (done.returncode, done.stdout) == (0, "went on\n0\n"), done.stderr


def test_workers_of_a_command_that_ignores_ctrl_c_work_to_their_end():
    done = in_background(
        "import os, signal\n"
        "from decoupled.core import processes\n"
        "if __name__ == '__main__':\n"
        "    with processes.started(abs, [-1, -2], 2, 'here') as futures:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        print([future.result() for future in futures])"
    )
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n"), done.stderr


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


def test_ctrl_c_reaches_this_process_alone():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with processes.started(masked_signals, [None], 1, "here") as futures:
        assert signal.SIGINT in futures[0].result()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def masked_signals(_):
    """The signals that a worker process does not get."""
    assert threading.current_thread() is threading.main_thread()
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())
