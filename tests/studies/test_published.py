"""The paper's numbers are those that the files of its models tell."""

import pathlib
import re

import pytest

from decoupled.launch import gin_files
from decoupled.studies import published
from decoupled.xtreme import official

FOLDER = pathlib.Path(gin_files.packaged_folder())
ENGLISH = [row for row in published.SCORES if row.startswith("english_")]
# As the files call the tasks.
NAMES = {
    "xnli": "XNLI", "panx": "NER", "pawsx": "PAWS-X", "xquad": "XQuAD", "mlqa": "MLQA",
    "tydiqa": "TyDiQA", "mnli": "MNLI", "squad": "SQuAD", "average": "average",
}  # fmt: skip


def text_of(name):
    return (FOLDER / name).read_text(encoding="utf-8").replace("\n# ", " ")


@pytest.mark.parametrize("row", [row for row in published.SCORES if row not in ENGLISH])
def test_scores_are_those_of_the_model_file(row):
    text = text_of(f"models/{row}.gin")
    for task in published.SCORES[row]:
        message = re.search(rf"{NAMES[task]} ([\d./]+\d)", text)[1]
        assert published.printed(row, task) == message, task


def test_scores_of_english_rows_are_those_of_their_sweep():
    text = text_of("sweeps/table13.gin")
    [numbers] = re.findall(r"The paper.s MNLI: (.+) with additional", text)
    message = sorted(re.findall(r"\d\d\.\d", numbers))
    assert message == sorted(published.printed(row, "mnli") for row in ENGLISH)


@pytest.mark.parametrize("model", published.TEST_SCORES)
def test_averages_of_tables_7_and_16(model):
    scores = {
        name: sum(numbers) / len(numbers)
        for name, numbers in published.TEST_SCORES[model].items()
    }
    groups = {name: scores[name] for name in official.GROUPS if name in scores}
    tasks = {name: {"avg_metric": scores.get(name)} for name in official.TASKS}
    means = official.without_retrieval(tasks | groups)
    if model == "RemBERT":
        # Those of XLM-R are not the means of its tasks: 69.0 and 69.6 in tagging.
        for group in groups:
            members = [scores[task] for task in official.GROUPS[group]]
            means[group] = sum(members) / len(members)
    for name, value in means.items():
        # Rounded twice.
        assert scores[name] == pytest.approx(value, abs=0.06), name


def test_numbers_on_other_sets_are_marked():
    assert published.printed("english_e_out_3072", "xquad") == "78.4/86.2 (squad)"
    assert published.printed("english_coupled", "xnli") == "79.8 (mnli)"
    assert published.printed("coupled", "xquad") == "46.2/63.2"
    assert published.printed("english_coupled", "panx") == ""
