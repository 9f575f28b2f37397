"""The paper's numbers are those that the files of its models tell."""

import pathlib
import re

import pytest

from decoupled.launch import gin_files
from decoupled.reports import published

FOLDER = pathlib.Path(gin_files.packaged_folder()) / "models"
# As the files call the tasks.
NAMES = {
    "xnli": "XNLI", "panx": "NER", "pawsx": "PAWS-X", "xquad": "XQuAD", "mlqa": "MLQA",
    "tydiqa": "TyDiQA", "mnli": "MNLI", "squad": "SQuAD", "average": "average",
}  # fmt: skip


@pytest.mark.parametrize("row", published.SCORES)
def test_scores_are_those_of_the_model_file(row):
    text = (FOLDER / f"{row}.gin").read_text(encoding="utf-8").replace("\n# ", " ")
    for task in published.SCORES[row]:
        told = re.search(rf"{NAMES[task]} ([\d./]+\d)", text)[1]
        assert published.printed(row, task) == told, task


def test_numbers_on_other_sets_are_marked():
    assert published.printed("english_e_out_3072", "xquad") == "78.4/86.2 (squad)"
    assert published.printed("english_coupled", "xnli") == "79.8 (mnli)"
    assert published.printed("coupled", "xquad") == "46.2/63.2"
    assert published.printed("english_coupled", "panx") == ""
