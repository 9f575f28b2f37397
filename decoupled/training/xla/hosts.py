"""Several processes that train together: how they begin, stop and end as one.

Each has some of the mesh's devices and runs the same command (`decoupled.core.hosts`).
What one learns, that it was told to stop, or that it ends with an error, it writes into
the table that JAX's coordination service keeps in process 0. Where a process is gone
without a word, or is alive and no longer moves, the others end with exit code 75: what
is saved is kept, and the same command goes on from it. After an error nobody waits for
anybody.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from decoupled.configs.hardware import Hardware
from decoupled.core import console, endings, files, gfile, hosts
from decoupled.core.errors import (
    WORKER_LOST_CODE,
    Terminated,
    UserError,
    in_one_line,
)
from decoupled.core.joining import Hosts, join
from decoupled.core.locks import LOCK
from decoupled.training.bookkeeping import StopOnSignal
from decoupled.training.xla.coordination import (
    Coordination,
    environment,
    scheduled_hosts,
)

# Keys of the table.
_END_KEY, _SEEN_KEY, _LEFT_KEY = "ended", "seen", "left"
_SIGNAL_KEY, _LOOK_KEY, _STOP_KEY = "asked", "looks", "stop"
# Seconds that a process has to end by itself in the error that ended another, and that
# process 0 waits at an error until the others have read why.
_OWN_END_SECONDS, _READ_SECONDS = 3.0, 15.0
# Seconds between two questions who is alive, and whether this process moves.
_INTERVAL = 2.0
# A step that takes so many seconds, and so many times as long as others, never ends.
_STUCK_SECONDS, _STUCK_TIMES = 600.0, 20
# A process may be a step ahead of the one that is told to stop.
_STEPS_AHEAD = 2


_watch: "_Watch | None" = None


@contextlib.contextmanager
def joined(hardware: Hardware, facts: Mapping[str, str]) -> Iterator[None]:
    """Makes this process one of those that the flags, a scheduler or the TPU name.

    `facts` must be equal on all hosts, as packages and variables must. WorkerLost: a
    process did not come, or is gone.
    """
    global _watch
    kind = hardware.accelerator
    process_group = kind and (
        hardware.hosts or scheduled_hosts(kind, hardware.patience_seconds)
    )
    if not process_group:
        yield
        return
    names = join(process_group, {**facts, **environment(kind)}, console.say)
    table = Coordination(kind, process_group)
    group = hosts.Group(process_group.index, names, table, process_group.seconds)
    if process_group.index:
        endings.call_command(f"{endings.command()}, {names[process_group.index]}")
        # Libraries write there as process 0's do.
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    endings.end_at_once()
    _watch = _Watch(process_group, names, table)
    with hosts.member(group), _terminating():
        if len(names) > 1:
            console.say(f"{len(names)} processes: {', '.join(names)}")
        try:
            yield
            hosts.gather("the end", None)
        except BaseException as error:
            _watch.tell(error)
            raise
        _watch.finish()


@contextlib.contextmanager
def shared(folder: str) -> Iterator[None]:
    """Keeps what the libraries of each process write in a folder, which all hosts must
    see. If nothing else is in the folder after the block, it is removed again."""
    token = _write_token(folder) if hosts.count() > 1 else None
    if token is None:
        yield
        return
    can_see = hosts.gather("look for a file", files.exists(token))
    gfile.remove(token)
    names = _watch.names
    blind_names = [n for n, sees in zip(names, can_see, strict=True) if not sees]
    if blind_names:
        raise UserError(
            f"{folder}: {', '.join(blind_names)} does not see what {names[0]} writes "
            "there; give a folder that all hosts share (NFS, or gs://)"
        )
    if "://" in folder:
        yield
        return
    logs = _watch.message_folder = os.path.join(folder, "logs")
    os.makedirs(logs, exist_ok=True)
    endings.keep_messages(os.path.join(logs, f"process-{hosts.index()}.txt"))
    hosts.gather("the beginning", None)

    def remove_alone():
        if hosts.is_first() and {*os.listdir(folder)} <= {"logs", LOCK}:
            shutil.rmtree(logs, ignore_errors=True)

    with endings.cleaned_up(remove_alone):
        yield


@hosts.by_first
def _write_token(folder):
    if not gfile.isdir(folder):
        return None
    token = files.temporary_name(os.path.join(folder, "hosts"))
    with gfile.GFile(token, "w") as file:
        file.write("")
    return token


@contextlib.contextmanager
def _terminating():
    """SIGTERM ends the process as an error does, so that the others hear of it."""

    def terminate(number, frame):
        raise Terminated("SIGTERM: ended; run again to go on")

    old_handler = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old_handler)


class AgreedStop:
    """Whether training is to end after a step: all processes say so at the same one.

    Who is told to stop asks the others for it. From then on each looks into the table
    at every step, and says that it does; then process 0 chooses the step.
    """

    def __init__(self, stop: StopOnSignal):
        self._stop = stop
        self._has_asked, self._is_looking, self._stop_step = False, False, None

    def after(self, step: int) -> bool:
        """To be asked when a step is started and the one before it has been read.

        So no process is more than a step ahead of another that asks, and all find the
        step that is chosen before they come to it.
        """
        if _watch is None:
            return self._stop.after_steps()
        if self._stop.signal_number is not None and not self._has_asked:
            _watch.table.try_set(_SIGNAL_KEY, str(self._stop.signal_number))
            self._has_asked = True
        if _watch.stop_signal is None:
            return False
        if not self._is_looking:
            _watch.table.try_set(f"{_LOOK_KEY}/{hosts.index()}", "")
            self._is_looking = True
        if self._stop_step is None:
            if hosts.is_first() and self._all_look():
                _watch.table.try_set(_STOP_KEY, str(step + _STEPS_AHEAD))
            self._stop_step = int(_watch.table.peek(_STOP_KEY) or 0) or None
        if self._stop_step is None or step < self._stop_step:
            return False
        self._stop.signal_number = _watch.stop_signal
        return True

    def _all_look(self):
        return len(_watch.table.values_below(_LOOK_KEY)) == hosts.count()


def moves() -> None:
    """Tells the watch that a step is done."""
    if _watch is not None:
        _watch.note_move()


def pauses() -> None:
    """Tells the watch that something begins that may take long."""
    if _watch is not None:
        _watch.last_move = None


class _Watch:
    """Looks after the others, and ends this process where it could only wait."""

    def __init__(self, process_group: Hosts, names: list[str], table: Coordination):
        self.names, self.table = names, table
        self._hosts, self._own_name = process_group, names[process_group.index]
        self.last_move: float | None = None
        # The folder with what libraries write.
        self.message_folder: str | None = None
        # The signal for which the others are asked to stop.
        self.stop_signal: int | None = None
        self._step_seconds: list[float] = []
        self._code: int | None = None
        self._end_note: str | None = None
        self._on_abort()
        for work in (self._hear, self._hear_stop, self._count, self._see_moves):
            threading.Thread(target=work, daemon=True, name="watch").start()

    def note_move(self) -> None:
        now = time.monotonic()
        if self.last_move is not None:
            self._step_seconds = [*self._step_seconds[-99:], now - self.last_move]
        self.last_move = now

    def tell(self, error: BaseException) -> None:
        """Tells the others why this process ends; they end too."""
        pauses()
        code, line = endings.code_and_line(error)
        code = 1 if code is None else code
        if code == WORKER_LOST_CODE and (note := self.table.peek(_END_KEY, True)):
            # It is gone because of an error of its own.
            self.table.try_set(f"{_SEEN_KEY}/{self._hosts.index}", "")
            self._leave_as(note)
        line = line or in_one_line(str(error) or type(error).__name__)
        self._code = code
        self.table.try_set(_END_KEY, json.dumps([self._hosts.index, code, line]))
        self.table.try_set(f"{_SEEN_KEY}/{self._hosts.index}", "")
        self._wait_for_others(_SEEN_KEY)

    def finish(self) -> None:
        """Leaves the service, which process 0 ends last."""
        self._code = 0
        pauses()
        self.table.try_set(f"{_LEFT_KEY}/{self._hosts.index}", "")
        self._wait_for_others(_LEFT_KEY)
        self.table.close()

    def _wait_for_others(self, folder):
        """Process 0 has the service, without which JAX aborts the others."""
        deadline = time.monotonic() + _READ_SECONDS
        while self._hosts.index == 0 and time.monotonic() < deadline:
            if len(self.table.values_below(folder)) == len(self.names):
                break
            time.sleep(0.05)
        # The others end.
        time.sleep(0.2 if self._hosts.index == 0 else 0.0)

    def _hear(self):
        while self._code is None:
            note = self.table.wait_for(_END_KEY)
            if note is None:
                time.sleep(_INTERVAL)
            elif json.loads(note)[0] != self._hosts.index:
                self._end_note = note
                # This process most likely meets the same error.
                time.sleep(_OWN_END_SECONDS)
                self.table.try_set(f"{_SEEN_KEY}/{self._hosts.index}", "")
                self._leave_as(note)
            else:
                return

    def _hear_stop(self):
        while self._code is None and self.stop_signal is None:
            number = self.table.wait_for(_SIGNAL_KEY)
            if number is None:
                time.sleep(_INTERVAL)
            else:
                self.stop_signal = int(number)

    def _leave_as(self, note):
        index, code, line = json.loads(note)
        self._leave(code, f"{self.names[index]}: {line}")

    def _count(self):
        """Waits until a process gives no sign of life."""
        while self._code is None:
            indexes = self.table.live_indexes(len(self.names))
            if indexes is not None and len(indexes) < len(self.names):
                names = [n for i, n in enumerate(self.names) if i not in indexes]
                time.sleep(_OWN_END_SECONDS)
                if self._code is None:
                    self._leave_as_lost(f"{', '.join(names)}: gives no sign of life")
            time.sleep(_INTERVAL)

    def _see_moves(self):
        while self._code is None:
            time.sleep(_INTERVAL)
            last_move, step_seconds = self.last_move, self._step_seconds
            if last_move is None:
                continue
            median_seconds = statistics.median(step_seconds) if step_seconds else 0.0
            limit = max(_STUCK_SECONDS, _STUCK_TIMES * median_seconds)
            if time.monotonic() - last_move > limit:
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
                self._leave_as_lost(f"{self._own_name}: no step for {limit:.0f} s")

    def _on_abort(self):
        """JAX aborts a process that hears no more of process 0."""
        libc = ctypes.CDLL(None)

        def abort(number):
            if self._code is not None:
                os._exit(self._code)
            try:
                socket.create_connection(self._hosts.address, 5.0).close()
            except OSError:
                self._leave_as_lost(f"{self.names[0]}: is gone")
            # This is a defect; the process aborts as it would have without the handler.
            libc.signal(number, None)

        handler_type = ctypes.CFUNCTYPE(None, ctypes.c_int)
        # Python must keep the handler as long as it may be called.
        self._handler = handler_type(abort)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(signal.SIGABRT, ctypes.cast(self._handler, ctypes.c_void_p))

    def _leave_as_lost(self, problem):
        if self._end_note is not None:
            self._leave_as(self._end_note)
        hint = f"; {self.message_folder} may say why" if self.message_folder else ""
        self._leave(
            WORKER_LOST_CODE,
            f"error: {problem}; run again, what is saved is kept{hint}",
        )

    def _leave(self, code, line):
        self._code = code
        endings.write_line(f"{endings.command()}: {line}")
        endings.leave(code)
