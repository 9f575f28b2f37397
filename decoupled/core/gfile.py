"""Files and folders, local or remote (`gs://`), under the names of `tf.io.gfile`.

Local paths use the standard library, because importing TensorFlow takes seconds and 300
MB. It is imported for the first path with "://".

`gfile.OpError` is OSError, and tf.errors.OpError too if TensorFlow was imported. It may
be a tuple, and `except` refuses tuples in tuples: catch it alone.
"""

import errno
import glob as local_glob
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from typing import IO, Any

from decoupled.core import hosts

_REMOTE = "://"
# Local files and folders that got their final name in this process.
_written_paths: set[str] = set()
# The errors of fsync for a folder that cannot be synced, other than a disk failure.
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)


def is_remote(path: str) -> bool:
    """True for a path that TensorFlow's file systems read and write."""
    return _REMOTE in path


def exists(path: str) -> bool:
    """True where `path` is a file or a folder."""
    return _remote().exists(path) if _REMOTE in path else os.path.exists(path)


def isdir(path: str) -> bool:
    """True where `path` is a folder."""
    return _remote().isdir(path) if _REMOTE in path else os.path.isdir(path)


def listdir(path: str) -> list[str]:
    """Names in a folder; remote folders' names may end in "/"."""
    return _remote().listdir(path) if _REMOTE in path else os.listdir(path)


def glob(beginning: str, pattern: str) -> list[str]:
    """Paths that begin with `beginning`, taken literally, and go on as `pattern`."""
    if _REMOTE in beginning or _REMOTE in pattern:
        literal = re.sub(r"[*?\[\\]", r"\\\g<0>", beginning)
        return sorted(_remote().glob(literal + pattern))
    return sorted(local_glob.glob(local_glob.escape(beginning) + pattern))


def walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """(folder, its folders, its files) for a folder and all below."""
    return _remote().walk(path) if _REMOTE in path else os.walk(path)


def size(path: str) -> int:
    """Bytes of a file."""
    return _remote().stat(path).length if _REMOTE in path else os.path.getsize(path)


def changed_ns(path: str) -> int:
    """The time of the last write in nanoseconds; whole seconds for remote files."""
    if _REMOTE in path:
        return _remote().stat(path).mtime_nsec
    return os.stat(path).st_mtime_ns


def GFile(path: str, mode: str = "r") -> IO:
    """An open file; text is UTF-8, and line breaks are not translated."""
    if _REMOTE in path:
        return _remote().GFile(path, mode)
    if "r" in mode:
        handle = open(path, "rb")
    else:
        handle = io.BufferedWriter(_NamedFile(path, mode.replace("b", "")))
    if "b" in mode:
        return handle
    return io.TextIOWrapper(handle, encoding="utf-8", newline="\n")


class _NamedFile(io.FileIO):
    """A file to write, whose errors name it: Python's own name no file."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = self.name
            raise


@hosts.by_first
def makedirs(path: str) -> None:
    """Creates a folder and its missing parents."""
    if _REMOTE in path:
        _remote().makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


@hosts.by_first
def remove(path: str) -> None:
    """Removes a file."""
    if _REMOTE in path:
        _remote().remove(path)
    else:
        os.remove(path)
        _written_paths.discard(os.path.abspath(path))


@hosts.by_first
def rmtree(path: str) -> None:
    """Removes a folder and all that is in it; of a link, only the link."""
    if _REMOTE in path:
        _remote().rmtree(path)
    elif os.path.islink(path.rstrip("/")):
        remove(path.rstrip("/"))
    else:
        shutil.rmtree(path)
        _written_paths.difference_update(_written_in(path))


@hosts.by_first
def rename(source: str, target: str, overwrite: bool = False) -> None:
    """Renames a file or a folder; `overwrite` replaces an existing file.

    The content of a local source is on disk before the new name is, and the new name is
    on disk on return. So after a power failure no empty file has the new name.
    """
    if _REMOTE in source:
        _remote().rename(source, target, overwrite)
    elif not overwrite and os.path.lexists(target):
        raise FileExistsError(f"{target}: already exists")
    else:
        sync(source)
        os.replace(source, target)
        sync_names(os.path.dirname(target) or ".")
        _note_rename(os.path.abspath(source), os.path.abspath(target))


def _note_rename(source, target):
    _written_paths.discard(source)
    if os.path.isdir(target):
        paths = _written_in(source)
        _written_paths.difference_update(paths)
        _written_paths.update(target + path.removeprefix(source) for path in paths)
    _written_paths.add(target)


def _written_in(path):
    folder = os.path.abspath(path)
    return {p for p in _written_paths if p == folder or p.startswith(f"{folder}/")}


def forget_written() -> None:
    """Begins the list of `lost_files` anew."""
    _written_paths.clear()


def lost_files() -> list[str]:
    """Local files that this process wrote and that no longer exist."""
    return sorted(path for path in _written_paths if not os.path.lexists(path))


def sync(path: str) -> None:
    """Returns when a file, or a folder and everything below it, is on disk."""
    # An object store shows an object only when it is completely stored.
    if _REMOTE in path or not hosts.writes():
        return
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            _sync_entry(os.path.join(folder, name))
        _sync_entry(folder)
    if not os.path.isdir(path):
        _sync_entry(path)


def sync_names(folder: str) -> None:
    """Returns when the names of the entries of a local folder are on disk."""
    if _REMOTE not in folder and hosts.writes():
        _sync_entry(folder)


def _sync_entry(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems of networks and of virtual machines can sync only files.
        if error.errno not in _NO_SYNC or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def __getattr__(name: str) -> Any:
    """OpError and NotFoundError, each including TensorFlow's corresponding error."""
    kinds = {"OpError": OSError, "NotFoundError": FileNotFoundError}
    if name not in kinds:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # While TensorFlow is being imported, it has no errors yet.
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    return kinds[name] if errors is None else (kinds[name], getattr(errors, name))


def _remote():
    from decoupled.core.release import tf

    return tf.io.gfile
