"""What tests of builds share: the files of a folder, and a kill."""

import contextlib
import pathlib

import pytest


def tree(folder):
    """Name -> content of each file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(pathlib.Path(folder).rglob("*"))
        if path.is_file()
    }


@contextlib.contextmanager
def killed_at(module, name):
    """The block ends where it would call this function, as if it were killed there."""

    def killed(*_, **__):
        raise SystemError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, killed)
        with pytest.raises(SystemError, match="killed"):
            yield
