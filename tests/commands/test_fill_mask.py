"""The command that fills masks: its texts, flags and mistakes."""

import re

import pytest

from tests.command_line import decoupled, mistake
from tests.exports.models import (
    model_config,
    pretrained_weights,
    write_model_dir,
)


def test_a_table_for_each_mask(tmp_path, vocabulary):
    config = model_config()
    folder = write_model_dir(
        str(tmp_path / "run"),
        vocabulary.content,
        vocabulary.fingerprint,
        config,
        pretrained_weights(config),
    )
    result = decoupled(
        "fill_mask",
        "Select the [MASK].",
        "--model_dir",
        folder,
        "--top_k=3",
        "[MASK] [MASK]",
    )
    assert result.returncode == 0, result.stderr[-2000:]
    titles = re.findall(r"^(\S.*MASK.*|mask \d) *$", result.stdout, re.MULTILINE)
    assert [title.strip() for title in titles] == [
        "Select the [MASK].",
        "mask 1",
        "[MASK] [MASK]",
        "mask 1",
        "mask 2",
    ]
    rows = re.findall(r"^  (\S+) +(0\.\d+|1) *$", result.stdout, re.MULTILINE)
    assert len(rows) == 9
    pieces = {vocabulary.id_to_piece(index) for index in range(vocabulary.size)}
    assert {piece for piece, _ in rows} <= pieces


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["a [MASK]"], "give --model_dir or --export_dir, one of them"),
        (["--model_dir=a", "--export_dir=b"], "give --model_dir or --export_dir"),
        (["--model_dir=a"], "give a text with a mask"),
        (["--model_dir=a", "x [MASK]", "--top_k=0"], "--top_k: 0 is less than 1"),
        (["--export_dir=a", "x", "--checkpoint=b"], "--checkpoint: belongs to"),
        (["--nothing", "x [MASK]"], "Unknown command line flag 'nothing'"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    told = mistake("fill_mask", *arguments)
    assert re.match(f"decoupled fill_mask: error: {message}", told)


def test_a_saved_model_is_called_a_program_before_it_is_loaded(tmp_path):
    result = decoupled("fill_mask", "a [MASK]", f"--export_dir={tmp_path}")
    assert result.stdout == (
        f"{tmp_path}: a SavedModel runs as a program; load it only from a source that "
        "you trust\n"
    )
    assert result.stderr.endswith("holds no SavedModel\n")


def test_the_help_says_what_a_saved_model_is():
    assert (
        "It runs as a program: only from a source"
        in decoupled("fill_mask", "--help").stdout
    )
