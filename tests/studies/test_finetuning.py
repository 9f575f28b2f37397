"""Means and spreads over seeds by hand; table, CSV and picture."""

import types

import pytest

from decoupled.studies import finetuning
from decoupled.studies.finetuning import plot_results


def run(english, swahili):
    """The results of one seed: dev in two languages, test with and without labels."""
    return {
        "dev": {
            "en": {"f1": english, "trivial_f1": 10.0, "examples": 4},
            "sw": {"f1": swahili, "trivial_f1": 20.0, "examples": 3},
        },
        "test": {"sw": {"f1": 50.0, "examples": 5}, "th": {"examples": 6}},
    }


def test_several_runs_become_mean_and_sample_standard_deviation():
    combined = finetuning.combine([run(70.0, 60.0), run(74.0, 60.0)])
    english = combined["dev"]["en"]
    # Deviations from the mean, 72, are 2 and 2: sqrt((4 + 4) / (2 - 1)).
    assert english["f1_spread"] == pytest.approx(8**0.5)
    assert english["f1"] == 72.0
    assert (english["trivial_f1"], english["examples"]) == (10.0, 4)
    assert combined["dev"]["sw"]["f1_spread"] == 0.0
    assert combined["test"]["th"] == {"examples": 6}


def test_a_task_shows_its_score_and_accuracy():
    shown = finetuning.shown_metrics
    assert shown(["f1", "recall", "accuracy"], ["f1"]) == ["f1", "accuracy"]
    assert shown(["accuracy"], ["accuracy"]) == ["accuracy"]


def test_the_table_has_a_row_per_language_and_means(capsys):
    results = finetuning.combine([run(70.0, 60.0), run(74.0, 61.0)])
    finetuning.print_table("a task", "panx", results, ["f1"], ["en"])
    lines = capsys.readouterr().out.splitlines()
    rows = {line.strip().split("   ")[0]: line.split() for line in lines}
    assert rows["en"] == "en 72.00 ± 2.83 10.00 4 - - -".split()
    assert rows["sw"] == "sw 60.50 ± 0.71 20.00 3 50.00 ± 0.00 - 5".split()
    assert rows["th"] == "th - - - - - 6".split()
    assert rows["mean"] == "mean 66.25 15.00 - 50.00 - -".split()
    assert rows["mean but en"][3:] == "60.50 20.00 - 50.00 - -".split()


def warning(kind, metric, score, trivial, examples, split="dev"):
    """What is said of a score, with the trivial answer's, on a file of so many rows."""
    task = types.SimpleNamespace(name="topics", kind=kind, headline=(metric,))
    values = {metric: score, f"trivial_{metric}": trivial, "examples": examples}
    results = {"dev": {"en": {"examples": 9}}, "test": {"en": {"examples": 9}}}
    results[split]["en"] = values
    return finetuning.not_above_trivial(results, task, "en", (2e-6, 2e-5, 1e-5))


def test_training_that_found_nothing_better_says_so_with_what_to_try():
    said = warning("classification", "accuracy", 24.24, 25.25, 99)
    assert said.startswith(
        "topics: accuracy 24.24 on en dev is not clearly above the 25.25 of the most "
        "frequent label: training has found nothing better. "
    )
    assert "FinetuningConfig.learning_rates = (0.0002,)" in said
    assert "\n" not in said
    said = warning("classification", "accuracy", 24.24, 25.25, 99, split="test")
    assert "24.24 on en test" in said


@pytest.mark.parametrize(
    "kind, metric, trivial, examples, highest, answer",
    [
        # 2 sqrt(25 * 75 / 300) = 5.
        ("classification", "accuracy", 25.0, 300, 30.0, "the most frequent label"),
        ("classification", "macro_f1", 6.0, 300, 6.0, "the most frequent label"),
        # Half of the way to 100, on few examples.
        ("classification", "accuracy", 50.0, 2, 75.0, "the most frequent label"),
        ("regression", "pearson", 0.0, 400, 10.0, "the mean of all numbers"),
        ("tagging", "entity_f1", 40.0, 300, 40.0, "each word's most frequent tag"),
        ("question answering", "f1", 9.0, 30, 9.0, "the words around those of the q"),
    ],
)
def test_every_kind_has_its_trivial_answer(
    kind, metric, trivial, examples, highest, answer
):
    said = warning(kind, metric, highest, trivial, examples)
    assert f"not clearly above the {trivial:.2f} of {answer}" in said
    assert warning(kind, metric, highest + 0.01, trivial, examples) == ""


def test_without_labels_nothing_is_said_of_trivial_answers():
    task = types.SimpleNamespace(name="t", kind="tagging", headline=("f1",))
    results = {"dev": {}, "test": {"en": {"examples": 4}}}
    assert finetuning.not_above_trivial(results, task, "en", (2e-5,)) == ""


def test_languages_outside_xtreme_are_marked_and_in_no_mean(capsys):
    """Swahili is a language of PAN-X and none of XTREME's UD-POS."""
    assert finetuning.outside_languages("panx", run(70.0, 60.0)) == []
    results = run(70.0, 60.0)
    results["test"]["de"] = {"f1": 40.0, "examples": 2}
    assert finetuning.outside_languages("udpos", results) == ["sw"]
    finetuning.print_table("a task", "udpos", results, ["f1"], ["en"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "mean 70.00 10.00 - 40.00 - -".split() in lines
    assert lines.index("sw (outside XTREME) 60.00 20.00 3 50.00 - 5".split()) > (
        lines.index("mean but en - - - 40.00 - -".split())
    )


def drawn(stem, **changes):
    task = types.SimpleNamespace(
        name="panx", headline=["f1"], training_languages=["en"]
    )
    return plot_results(run(70.0, 60.0) | changes, task, "English", str(stem))


def test_the_picture_shows_test_files_or_else_dev_files(tmp_path):
    pytest.importorskip("matplotlib")
    png, svg = drawn(tmp_path / "tested")
    with open(png, "rb") as handle:
        assert handle.read(4) == b"\x89PNG"
    with open(svg, encoding="utf-8") as handle:
        text = handle.read()
    # Thai has no labels.
    assert "test score" in text and ">sw<" in text and ">th<" not in text
    _, svg = drawn(tmp_path / "untested", test={"sw": {"examples": 5}})
    with open(svg, encoding="utf-8") as handle:
        text = handle.read()
    assert "dev score" in text and ">en<" in text and "trivial" in text


def test_without_labels_there_is_no_picture(tmp_path):
    pytest.importorskip("matplotlib")
    assert drawn(tmp_path / "none", dev={}, test={"sw": {"examples": 5}}) == []
    assert list(tmp_path.iterdir()) == []
