"""A lock on the folder that a command writes to for a long time.

A second command in the same folder would write over the files of the first. It is
refused, and told who is at work there. The lock is flock's, through `filelock`: it goes
with the process that holds it, however that ends, so that a run that was killed can be
started again at once. The file .lock lies in the folder as long as the lock is held; a
process that was killed leaves it behind, which does no harm.

Remote folders (`gs://`) have no such lock: a line says so.
"""

import contextlib
import datetime
import errno
import json
import os
import socket
import sys
from collections.abc import Iterator

from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError

LOCK = ".lock"
# A folder that cannot be written to needs no lock; what writes there says why not.
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_SHOWN = 60


@contextlib.contextmanager
def hold(folder: str, reading: bool = False) -> Iterator[None]:
    """Keeps other commands out of a folder while the block runs.

    Args:
      folder: made where it is missing; removed again if nothing is in it at the end.
      reading: the command evaluates what is there, which it may do beside another;
        nothing is locked.

    Raises:
      UserError: another process holds the folder (its command, host, process id and
        start are named), or the folder cannot be made.
    """
    if reading:
        yield
        return
    if gfile.is_remote(folder):
        _say_unlocked(folder, "it is remote")
        yield
        return
    missing = _missing_folders(folder)
    if missing:
        files.make_folder(folder)
    process = os.getpid()
    lock = _acquire(folder)
    try:
        yield
    finally:
        # A copy of this process has no part in the lock.
        if os.getpid() == process:
            if lock is not None:
                _release(lock)
            _remove_empty(missing)


def _acquire(folder):
    """The lock, held; None where the folder cannot have one."""
    import filelock

    path = os.path.join(folder, LOCK)
    lock = filelock.FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise UserError(
            f"{folder}: {_holder(path)} writes here; wait until it ends, stop it, or "
            "use another folder"
        ) from error
    except OSError as error:
        if error.errno not in _READ_ONLY:
            _say_unlocked(folder, files.reason(error))
        return None
    # On a full disk the lock holds all the same, without a name.
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as handle:
        handle.write(json.dumps(_own_description()))
    return lock


def _release(lock):
    # Removed before it is released: filelock takes no file that has lost its name.
    with contextlib.suppress(OSError):
        os.remove(lock.lock_file)
    lock.release()


def _own_description():
    spec = sys.modules["__main__"].__spec__
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "command": spec.name if spec else os.path.basename(sys.argv[0]),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": now.strftime("%Y-%m-%d %H:%M:%S UTC"),
    }


def _holder(path):
    """The process that holds the lock, as a message names it."""
    try:
        found = files.read_json(path)
        shown = {name: str(found[name])[:_SHOWN] for name in _own_description()}
    except (UserError, KeyError, TypeError):
        # It has only just begun.
        return "another process"
    return (
        f"{shown['command']} (process {shown['process']} on {shown['host']}, since "
        f"{shown['since']})"
    )


def _say_unlocked(folder, reason):
    console.say(
        f"{folder}: cannot be locked ({reason}); make sure that no other command "
        "writes here"
    )


def _missing_folders(folder):
    """The folder and those above it that are not there, the lowest first."""
    missing = []
    path = os.path.abspath(folder)
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _remove_empty(folders):
    with contextlib.suppress(OSError):
        for folder in folders:
            os.rmdir(folder)
