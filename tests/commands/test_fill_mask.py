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
    weights = pretrained_weights(config)
    folder = write_model_dir(tmp_path / "run", vocabulary, config, weights)
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
        (["--export_dir=b"], r"--export_dir is gone \(CHANGELOG.md\); give --m"),
        (["--model_dir=a"], "give a text with a mask"),
        (["--model_dir=a", "x [MASK]", "--top_k=0"], "flag --top_k=0: 0 is not"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    problem = mistake("fill_mask", *arguments)
    assert re.match(f"decoupled fill_mask: error: {message}", problem)
