"""The command that builds records: flags to a folder, errors in one line."""

import subprocess
import sys

import pytest

from decoupled.data import records
from tests.data.small_corpus import make_corpus, make_vocabulary


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with `corpus/` and `vocabulary.model`."""
    folder = tmp_path_factory.mktemp("source")
    make_corpus(folder / "corpus")
    make_vocabulary(folder / "vocabulary.model")
    return folder


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "decoupled", "build_records", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_command_line(source, tmp_path):
    flags = [f"--corpus_dir={source / 'corpus'}", f"--output_dir={tmp_path / 'r'}"]
    done = run(*flags, f"--vocabulary={source / 'vocabulary.model'}")
    assert done.returncode == 0, done.stderr
    assert records.read_manifest(str(tmp_path / "r")).language("train", "en").tokens
    failed = run(*flags, f"--vocabulary={tmp_path / 'none.model'}")
    assert failed.returncode == 2
    assert failed.stderr.startswith("decoupled build_records: error: ")
    assert failed.stderr.count("\n") == 1 and "none.model" in failed.stderr
