"""What tests of builds share: the files of a folder, changes of them, and a kill."""

import contextlib
import json
import pathlib

import pytest


def tree(folder):
    """Name -> content of each file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(pathlib.Path(folder).rglob("*"))
        if path.is_file()
    }


def edit_json(path, change):
    """Changes the content of a JSON file by a function."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@contextlib.contextmanager
def killed_at(module, name):
    """The block ends where it would call this function, as if it were killed there."""

    def kill(*_, **__):
        raise SystemError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, kill)
        with pytest.raises(SystemError, match="killed"):
            yield
