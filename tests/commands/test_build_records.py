"""The command that builds records: flags to a folder, errors in one line."""

import pytest

from decoupled.data import records
from tests.command_line import decoupled, mistake
from tests.data.small_corpus import make_corpus, make_vocabulary


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with `corpus/` and `vocabulary.model`."""
    folder = tmp_path_factory.mktemp("source")
    make_corpus(folder / "corpus")
    make_vocabulary(folder / "vocabulary.model")
    return folder


def test_command_line(source, tmp_path):
    flags = [f"--corpus_dir={source / 'corpus'}", f"--output_dir={tmp_path / 'r'}"]
    done = decoupled(
        "build_records", *flags, f"--vocabulary={source / 'vocabulary.model'}"
    )
    assert done.returncode == 0, done.stderr
    assert records.read_manifest(str(tmp_path / "r")).language("train", "en").tokens
    told = mistake("build_records", *flags, f"--vocabulary={tmp_path}/none.model")
    assert told.startswith("decoupled build_records: error: ") and "none.model" in told
