"""The command that builds a vocabulary: what it cannot do, told in one line."""

import subprocess
import sys

from tests.data.small_corpus import make_corpus


def test_the_command_ends_with_one_line_and_code_2(tmp_path):
    make_corpus(tmp_path / "corpus")
    failed = subprocess.run(
        [
            sys.executable,
            "-m",
            *("decoupled", "build_vocabulary"),
            f"--corpus_dir={tmp_path}/corpus",
            f"--output_dir={tmp_path}/v",
        ],
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 2
    # The settings of gin/runs/build_vocabulary.gin ask for 8,000 pieces.
    start = f"decoupled build_vocabulary: error: {tmp_path}/v/sentencepiece.model: "
    (error,) = failed.stderr.splitlines()
    assert error.startswith(start + "vocab_size 8000 is more than this text can give")
    assert not (tmp_path / "v").exists()
