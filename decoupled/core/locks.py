"""A lock on the folder that a command writes to for a long time.

A second command in the same folder would overwrite the files of the first. It is
refused, and the message names the process that holds the lock. The lock is flock's,
through `filelock`, which ends with its process, so that a run that was killed can be
restarted at once; the file .lock that it leaves behind does no harm. Remote folders
have no such lock; a message says so.
"""

import contextlib
import datetime
import errno
import json
import os
import socket
import sys
from collections.abc import Iterator

from decoupled.core import console, endings, files, gfile, hosts
from decoupled.core.errors import UserError

LOCK = ".lock"
# A folder that cannot be written to needs no lock; the write itself reports the error.
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_LONGEST = 60


@contextlib.contextmanager
def hold(folder: str, reading: bool = False) -> Iterator[None]:
    """Keeps other commands out of a folder during the block; does nothing if `reading`.

    The folder is made if it is missing, and removed again if it is empty at the end.
    """
    if reading:
        yield
        return
    if gfile.is_remote(folder):
        _say_unlocked(folder, "it is remote")
        yield
        return
    # The folder and its parents that do not exist, the lowest first.
    missing_folders, lock = [], None

    @hosts.by_first
    def begin():
        nonlocal lock
        path = os.path.abspath(folder)
        while not os.path.lexists(path):
            missing_folders.append(path)
            path = os.path.dirname(path)
        if missing_folders:
            files.make_folder(folder)
        lock = _acquire(folder)

    process = os.getpid()
    begin()

    def release():
        # A fork of this process does not hold the lock.
        if os.getpid() == process:
            if lock is not None:
                _release(lock)
            with contextlib.suppress(OSError):
                for path in missing_folders:
                    os.rmdir(path)

    with endings.cleaned_up(release):
        yield


def _acquire(folder):
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
    # On a full disk the lock still works, but the file does not name its holder.
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as handle:
        handle.write(json.dumps(_description()))
    return lock


def _release(lock):
    # Removed before the release: filelock does not acquire a file without a name.
    with contextlib.suppress(OSError):
        os.remove(lock.lock_file)
    lock.release()


def _description():
    spec = sys.modules["__main__"].__spec__
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "command": spec.name if spec else os.path.basename(sys.argv[0]),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": now.strftime("%Y-%m-%d %H:%M:%S UTC"),
    }


def _holder(path):
    try:
        record = files.read_json(path)
        texts = {name: str(record[name])[:_LONGEST] for name in _description()}
    except (UserError, KeyError, TypeError):
        # The other process has not yet described itself.
        return "another process"
    return (
        f"{texts['command']} (process {texts['process']} on {texts['host']}, since "
        f"{texts['since']})"
    )


def _say_unlocked(folder, reason):
    console.say(
        f"{folder}: cannot be locked ({reason}); make sure that no other command "
        "writes here"
    )
