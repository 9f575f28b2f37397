"""The command that converts models: its directions, flags and mistakes."""

import pytest

from tests.command_line import decoupled, mistake
from tests.exports.models import (
    model_config,
    pretrained_weights,
    write_checkpoint,
)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            [],
            ": error: choose a subcommand: from_tf, from_hf, to_hf, vocabulary, ",
        ),
        (["sideways"], ": error: unknown subcommand 'sideways'; Known: from_tf, "),
        (["to_fh"], ": error: unknown subcommand 'to_fh'; did you mean to_hf"),
        (["to_hf", "--model_dir=a"], " to_hf: error: --hf_dir must be given; --help"),
        (
            ["from_hf", "--model_dir=a", "--hf_dir="],
            " from_hf: error: --hf_dir must be given; ",
        ),
        (
            ["to_hf", "--model_dir=a", "--hf_dir=b", "--vocabulary=c"],
            " to_hf: error: Unknown command line flag 'vocabulary'",
        ),
        (
            ["from_hf", "--model_dir=a", "--hf_dir=b", "--encoder_only"],
            " from_hf: error: Unknown command line flag 'encoder_only'",
        ),
    ],
)
def test_mistakes_in_flags_are_one_line(arguments, message):
    told = mistake("convert", *arguments)
    assert told.startswith(f"decoupled convert{message}")


def test_an_original_checkpoint_with_the_sizes_of_gin(tmp_path, vocabulary):
    config = model_config()
    checkpoint = write_checkpoint(
        str(tmp_path / "rembert.ckpt"), pretrained_weights(config), 5
    )
    params = [f"--gin_param=ModelConfig.{n} = {v!r}" for n, v in vars(config).items()]
    arguments = (
        "from_tf",
        f"--checkpoint={checkpoint}",
        f"--vocabulary={vocabulary.path}",
        f"--model_dir={tmp_path}/ours",
    )
    result = decoupled("convert", *arguments, *params)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "original TensorFlow checkpoint, " in result.stdout
    assert (tmp_path / "ours" / "model.ckpt-5.index").exists()
    # The sizes by default are those of a model of the paper.
    other = [*arguments[:-1], f"--model_dir={tmp_path}/other"]
    assert "/sentencepiece.model: 48 pieces" in mistake("convert", *other)
