"""A folder that appears whole or not at all, and never in place of another's files.

Writers fill a temporary folder beside the target, which is renamed when it is complete.
Only folders of our own making are ever removed: the temporary ones, and an earlier
export that the user lets go.
"""

import contextlib
import os
from collections.abc import Iterator

from decoupled.core import files, gfile
from decoupled.core.errors import UserError

_FULL = "No space left on device"


def check_target(folder: str) -> None:
    """Refuses to write where something is.

    Raises:
      UserError: `folder` exists and is not an empty folder.
    """
    if files.exists(folder) and not is_empty_folder(folder):
        raise UserError(f"{folder}: exists; choose a new folder")


def is_empty_folder(path: str) -> bool:
    """True for a folder, and no link to one, that holds nothing."""
    # A link is not replaced: the rename would end in an error.
    if "://" not in path and os.path.islink(path.rstrip("/")):
        return False
    return gfile.isdir(path) and not gfile.listdir(path)


@contextlib.contextmanager
def new_folder(folder: str, replaces: bool = False) -> Iterator[str]:
    """Yields a temporary name for a folder; on a clean exit it becomes `folder`.

    On an error nothing is left. A rename replaces an empty folder only, so that what
    another process puts there in the meantime stays.

    Args:
      folder: to be written.
      replaces: the caller has made sure that what is there now may be removed, which
        happens when the new folder is complete.

    Raises:
      UserError: `folder` exists and is not an empty folder, or it cannot be written,
        because the disk is full for example.
    """
    target, retired = folder.rstrip("/"), None
    if not replaces:
        check_target(target)
    files.make_folder(os.path.dirname(target) or ".")
    _remove_leftovers(target)
    try:
        with files.atomic_path(target) as temporary:
            yield temporary
            if replaces and files.exists(target):
                retired = files.temporary_name(target)
                gfile.rename(target, retired)
            check_target(target)
    except gfile.OpError as error:
        if retired:
            gfile.rename(retired, target)
        raise UserError(f"{folder}: cannot write ({_cause(error)})") from error
    if retired:
        gfile.rmtree(retired)


def _remove_leftovers(target):
    """Removes what a killed process left that wrote the same folder."""
    parent, name = os.path.split(target)
    for entry in gfile.listdir(parent or "."):
        path = os.path.join(parent, entry.rstrip("/"))
        ours = entry.startswith(f"{name}.tmp-") and files.is_temporary(path)
        if ours and gfile.isdir(path):
            gfile.rmtree(path)


def _cause(error):
    """The reason alone: TensorFlow puts names of operations and files around it."""
    return _FULL if _FULL in str(error) else files.reason(error)
