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
_ENDED, _SEEN, _LEFT = "ended", "seen", "left"
_ASKED, _LOOKS, _STOP = "asked", "looks", "stop"
# Seconds that a process has to end by itself in the error that ended another, and that
# process 0 waits at an error until the others have read why.
_OWN_END, _READ_WHY = 3.0, 15.0
# Seconds between two questions who is alive, and whether this process moves.
_INTERVAL = 2.0
# A step that takes so many seconds, and so many times as long as others, never ends.
_STUCK_SECONDS, _STUCK_TIMES = 600.0, 20
# A process may be a step ahead of the one that is told to stop.
_AHEAD = 2


_watch: "_Watch | None" = None


@contextlib.contextmanager
def joined(hardware: Hardware, facts: Mapping[str, str]) -> Iterator[None]:
    """Makes this process one of those that the flags, a scheduler or the TPU name.

    `facts` must be equal on all hosts, as packages and variables must. WorkerLost: a
    process did not come, or is gone.
    """
    global _watch
    kind = hardware.accelerator
    described = kind and (
        hardware.hosts or scheduled_hosts(kind, hardware.patience_seconds)
    )
    if not described:
        yield
        return
    names = join(described, {**facts, **environment(kind)}, console.say)
    table = Coordination(kind, described)
    group = hosts.Group(described.index, names, table, described.seconds)
    if described.index:
        endings.call_command(f"{endings.command()}, {names[described.index]}")
        # Libraries write there as process 0's do.
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    endings.end_at_once()
    _watch = _Watch(described, names, table)
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
    seen = hosts.gather("look for a file", files.exists(token))
    gfile.remove(token)
    blind = [name for name, sees in zip(_watch.names, seen, strict=True) if not sees]
    if blind:
        raise UserError(
            f"{folder}: {', '.join(blind)} does not see what {_watch.names[0]} writes "
            "there; give a folder that all hosts share (NFS, or gs://)"
        )
    if "://" in folder:
        yield
        return
    logs = _watch.messages = os.path.join(folder, "logs")
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

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class AgreedStop:
    """Whether training is to end after a step: all processes say so at the same one.

    Who is told to stop asks the others for it. From then on each looks into the table
    at every step, and says that it does; then process 0 chooses the step.
    """

    def __init__(self, stop: StopOnSignal):
        self._stop = stop
        self._asked, self._looks, self._at = False, False, None

    def after(self, step: int) -> bool:
        """To be asked when a step is started and the one before it has been read.

        So no process is more than a step ahead of another that asks, and all find the
        step that is chosen before they come to it.
        """
        if _watch is None:
            return self._stop.after_steps()
        if self._stop.received is not None and not self._asked:
            _watch.table.try_set(_ASKED, str(self._stop.received))
            self._asked = True
        if _watch.asked is None:
            return False
        if not self._looks:
            _watch.table.try_set(f"{_LOOKS}/{hosts.index()}", "")
            self._looks = True
        if self._at is None:
            if hosts.is_first() and len(_watch.table.below(_LOOKS)) == hosts.count():
                _watch.table.try_set(_STOP, str(step + _AHEAD))
            self._at = int(_watch.table.peek(_STOP) or 0) or None
        if self._at is None or step < self._at:
            return False
        self._stop.received = _watch.asked
        return True


def moves() -> None:
    """Tells the watch that a step is done."""
    if _watch is not None:
        _watch.moved()


def pauses() -> None:
    """Tells the watch that something begins that may take long."""
    if _watch is not None:
        _watch.last = None


class _Watch:
    """Looks after the others, and ends this process where it could only wait."""

    def __init__(self, described: Hosts, names: list[str], table: Coordination):
        self.names, self.table = names, table
        self._hosts, self._mine = described, names[described.index]
        self.last: float | None = None
        # The folder with what libraries write.
        self.messages: str | None = None
        # The signal for which the others are asked to stop.
        self.asked: int | None = None
        self._taken: list[float] = []
        self._code: int | None = None
        self._note: str | None = None
        self._on_abort()
        for work in (self._hear, self._hear_stop, self._count, self._see_moves):
            threading.Thread(target=work, daemon=True, name="watch").start()

    def moved(self) -> None:
        now = time.monotonic()
        if self.last is not None:
            self._taken = [*self._taken[-99:], now - self.last]
        self.last = now

    def tell(self, error: BaseException) -> None:
        """Tells the others why this process ends; they end too."""
        pauses()
        code, line = endings.code_and_line(error)
        code = 1 if code is None else code
        if code == WORKER_LOST_CODE and (note := self.table.peek(_ENDED, True)):
            # It is gone because of an error of its own.
            self.table.try_set(f"{_SEEN}/{self._hosts.index}", "")
            self._leave_as(note)
        line = line or in_one_line(str(error) or type(error).__name__)
        self._code = code
        self.table.try_set(_ENDED, json.dumps([self._hosts.index, code, line]))
        self.table.try_set(f"{_SEEN}/{self._hosts.index}", "")
        self._wait_for_others(_SEEN)

    def finish(self) -> None:
        """Leaves the service, which process 0 ends last."""
        self._code = 0
        pauses()
        self.table.try_set(f"{_LEFT}/{self._hosts.index}", "")
        self._wait_for_others(_LEFT)
        self.table.close()

    def _wait_for_others(self, folder):
        """Process 0 has the service, without which JAX aborts the others."""
        deadline = time.monotonic() + _READ_WHY
        while self._hosts.index == 0 and time.monotonic() < deadline:
            if len(self.table.below(folder)) == len(self.names):
                break
            time.sleep(0.05)
        # They end.
        time.sleep(0.2 if self._hosts.index == 0 else 0.0)

    def _hear(self):
        while self._code is None:
            note = self.table.wait_for(_ENDED)
            if note is None:
                time.sleep(_INTERVAL)
            elif json.loads(note)[0] != self._hosts.index:
                self._note = note
                # In the same error, most likely.
                time.sleep(_OWN_END)
                self.table.try_set(f"{_SEEN}/{self._hosts.index}", "")
                self._leave_as(note)
            else:
                return

    def _hear_stop(self):
        while self._code is None and self.asked is None:
            number = self.table.wait_for(_ASKED)
            if number is None:
                time.sleep(_INTERVAL)
            else:
                self.asked = int(number)

    def _leave_as(self, note):
        index, code, line = json.loads(note)
        self._leave(code, f"{self.names[index]}: {line}")

    def _count(self):
        """Waits until a process gives no sign of life."""
        while self._code is None:
            living = self.table.living(len(self.names))
            if living is not None and len(living) < len(self.names):
                lost = [n for i, n in enumerate(self.names) if i not in living]
                time.sleep(_OWN_END)
                if self._code is None:
                    self._lost(f"{', '.join(lost)}: gives no sign of life")
            time.sleep(_INTERVAL)

    def _see_moves(self):
        while self._code is None:
            time.sleep(_INTERVAL)
            last, taken = self.last, self._taken
            if last is None:
                continue
            usual = statistics.median(taken) if taken else 0.0
            limit = max(_STUCK_SECONDS, _STUCK_TIMES * usual)
            if time.monotonic() - last > limit:
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
                self._lost(f"{self._mine}: no step for {limit:.0f} s")

    def _on_abort(self):
        """JAX aborts a process that hears no more of process 0."""
        libc = ctypes.CDLL(None)

        def aborted(number):
            if self._code is not None:
                os._exit(self._code)
            try:
                socket.create_connection(self._hosts.address, 5.0).close()
            except OSError:
                self._lost(f"{self.names[0]}: is gone")
            # A defect, which aborts as it would have.
            libc.signal(number, None)

        kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
        # Kept, as long as it may be called.
        self._handler = kind(aborted)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(signal.SIGABRT, ctypes.cast(self._handler, ctypes.c_void_p))

    def _lost(self, what):
        if self._note is not None:
            self._leave_as(self._note)
        more = f"; {self.messages} may say why" if self.messages else ""
        self._leave(
            WORKER_LOST_CODE, f"error: {what}; run again, what is saved is kept{more}"
        )

    def _leave(self, code, line):
        self._code = code
        endings.write_line(f"{endings.command()}: {line}")
        endings.leave(code)
