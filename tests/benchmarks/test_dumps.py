"""Which dump is read where none is named."""

import pytest

from benchmarks import command, dumps
from decoupled.core.errors import UserError


def test_the_data_folder_comes_first(monkeypatch):
    monkeypatch.setenv("DECOUPLED_DATA_DIR", "/data")
    assert dumps.default_dump() == f"/data/{dumps.BUNDLED}"


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment of peers whose interpreter does nothing."""
    monkeypatch.delenv("DECOUPLED_DATA_DIR", raising=False)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch(mode=0o755)
    monkeypatch.setenv(command.PEERS["corpus"][0], str(python))
    return tmp_path


def test_else_the_one_that_gensim_brings(environment):
    name = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    folder = environment / "lib/python3.11/site-packages/gensim/test/test_data"
    folder.mkdir(parents=True)
    (folder / name).touch()
    assert dumps.default_dump() == str(folder / name)


def test_none_at_all_says_what_to_do(environment):
    with pytest.raises(UserError, match="give --dump=FILE"):
        dumps.default_dump()
