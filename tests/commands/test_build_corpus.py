"""The command that builds a corpus folder."""

import os

from decoupled.corpora.corpus import Corpus
from decoupled.corpora.sources import SOURCES
from tests.command_line import decoupled, mistake


def test_the_command(tmp_path):
    """The default settings; then a mistake: one line, code 2."""
    lines = (f"Sentence one of {i}.\nSentence two of {i}.\n" for i in range(100))
    (tmp_path / "en.txt").write_text("\n".join(lines))
    folder = tmp_path / "corpus"
    command = ("build_corpus", f"--output_dir={folder}")
    done = decoupled(*command, f"--input=en={tmp_path}/en.txt")
    assert done.returncode == 0, done.stderr
    assert Corpus(str(folder)).manifest["inputs"]["settings"]["eval_share"] == 0.01
    assert {"command.1", "config.1.gin"} <= set(os.listdir(folder))
    assert mistake(*command, "--source=catalogs:no_such") == (
        "decoupled build_corpus: error: catalogs:no_such: no such package is "
        "installed; install it with pip"
    )


def test_the_help_names_every_kind_of_file():
    message = " ".join(decoupled("build_corpus", "--help").stdout.split())
    assert len(SOURCES) == 4
    for source in SOURCES:
        assert source.name in message
