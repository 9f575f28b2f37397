"""The command that converts models: its directions, flags and mistakes."""

import pytest

from decoupled.commands import convert
from decoupled.exports.interop import surgery
from tests.command_line import decoupled, mistake
from tests.exports.models import (
    model_config,
    pretrained_weights,
    write_checkpoint,
)
from tests.pretrained import make_pretrained

FOLDERS = "--model_dir=a", "--new_model_dir=b"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            [],
            ": error: choose a subcommand: from_tf, from_hf, to_hf, vocabulary, ",
        ),
        (["sideways"], ": error: unknown subcommand 'sideways'; Known: from_tf, "),
        (["average"], ": error: average is gone (CHANGELOG.md); "),
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
        (
            ["vocabulary", "--vocabulary=c", "--corpus_dir=d", *FOLDERS],
            " vocabulary: error: --corpus_dir: is for trimming, not with --vocabulary",
        ),
        (
            ["embeddings", "--change=untie", "--keep=input", *FOLDERS],
            " embeddings: error: --keep: is for --change=tie only",
        ),
        (
            ["embeddings", "--change=fold", "--input_embedding_size=8", *FOLDERS],
            " embeddings: error: --input_embedding_size: is for --change=factorise",
        ),
        (
            ["embeddings", "--change=factorise", *FOLDERS],
            " embeddings: error: --input_embedding_size: give the new E_in",
        ),
        (
            ["embeddings", "--change=split", *FOLDERS],
            " embeddings: error: flag --change=split: value should be one of <untie|",
        ),
    ],
)
def test_mistakes_in_flags_are_one_line(arguments, message):
    problem = mistake("convert", *arguments)
    assert problem.startswith(f"decoupled convert{message}")


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


def test_every_change_of_embeddings_has_its_function():
    assert all(callable(getattr(surgery, change)) for change in convert.CHANGES)


def test_a_model_that_is_untied_fills_masks_and_is_factorised(tmp_path):
    run = make_pretrained(tmp_path / "made", coupled=True, output_embedding_size=8)
    for change, size, before, after in (
        ("untie", [], run, "untied"),
        ("factorise", ["--input_embedding_size=4"], tmp_path / "untied", "narrow"),
    ):
        result = decoupled(
            "convert", "embeddings", f"--change={change}", *size,
            f"--model_dir={before}", f"--new_model_dir={tmp_path / after}",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr[-2000:]
        filled = decoupled("fill_mask", f"--model_dir={tmp_path / after}", "a [MASK] b")
        assert filled.returncode == 0, filled.stderr[-2000:]
    assert "directions have" in result.stdout
    again = (f"--model_dir={tmp_path}/untied", f"--new_model_dir={tmp_path}/again")
    message = mistake("convert", "embeddings", "--change=untie", *again)
    assert message.endswith("untied: its embeddings are already untied")
    assert not (tmp_path / "again").exists()
