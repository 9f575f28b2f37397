"""The command that converts models: its directions, flags and mistakes."""

import os
import re
import subprocess
import sys

import pytest

from decoupled import convert
from tests.exports.models import (
    model_config,
    pretrained_weights,
    train_sentencepiece,
    write_checkpoint,
)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "decoupled.convert", *map(str, arguments)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_first_word_is_the_direction():
    arguments = ["convert", "to_hf", "--model_dir=x"]
    assert convert.take_direction(arguments) == "to_hf"
    assert arguments == ["convert", "--model_dir=x"]
    assert convert.take_direction(["convert", "--help"]) is None
    assert convert.take_direction(["convert"]) is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the first word must be one of from_tf, from_hf, to_hf, which way to"),
        (["sideways"], "the first word must be one of .*, not 'sideways'"),
        (["to_hf", "--model_dir=a"], "--hf_dir must be given; --help lists the flags"),
        (["from_hf", "--model_dir=a", "--hf_dir="], "--hf_dir must be given; "),
        (
            ["to_hf", "--model_dir=a", "--hf_dir=b", "--vocabulary=c"],
            "--vocabulary: has no meaning for to_hf",
        ),
        (
            ["from_hf", "--model_dir=a", "--hf_dir=b", "--encoder_only"],
            "--encoder_only: has no meaning for from_hf",
        ),
    ],
)
def test_mistakes_in_flags_are_one_line(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert re.fullmatch(f"decoupled.convert: error: {message}.*\n", result.stderr)


def test_an_original_checkpoint_with_the_sizes_of_gin(tmp_path):
    vocabulary = tmp_path / "sentencepiece.model"
    train_sentencepiece(str(vocabulary))
    config = model_config()
    checkpoint = write_checkpoint(
        str(tmp_path / "rembert.ckpt"), pretrained_weights(config), 5
    )
    params = [f"--gin_param=ModelConfig.{n} = {v!r}" for n, v in vars(config).items()]
    arguments = (
        "from_tf",
        f"--checkpoint={checkpoint}",
        f"--vocabulary={vocabulary}",
        f"--model_dir={tmp_path}/ours",
    )
    result = run(*arguments, *params)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "original TensorFlow checkpoint, " in result.stdout
    assert (tmp_path / "ours" / "model.ckpt-5.index").exists()
    result = run(*arguments)
    assert result.returncode == 2
    assert "gin: ModelConfig needs vocab_size" in result.stderr
