"""Right answers item by item, from folders as fine-tuning writes them."""

import json

import pytest

from decoupled.core.errors import UserError
from decoupled.studies.items import read_items
from tests.analyses.test_layer_drop import write_folder

SENTENCES = "the\tDET\nsea\tNOUN\n\nGo\tVERB\n"
# Predictions for a sentence of one word.
DET, VERB = "DET\n\n", "VERB\n\n"


@pytest.fixture
def data_dir(tmp_path):
    """Tagged: two sentences in English, and three of one word in two languages."""
    folder = tmp_path / "data/udpos"
    folder.mkdir(parents=True)
    (folder / "test-en.tsv").write_text(SENTENCES)
    for language in ("de", "fr"):
        words = "a\tDET\n\nb\tVERB\n\nc\tDET\n"
        (folder / f"test-{language}.tsv").write_text(words)
    return str(tmp_path / "data")


def write_run(folder, task, answers, accuracies, **more):
    """A run with its answers by language, which are right in so many percent."""
    scores = {
        language: {"accuracy": value, "trivial_accuracy": 40.0}
        for language, value in accuracies.items()
    }
    results = {"task": task, "learning_rate": 1e-3, "test": scores, **more}
    path = write_folder(folder, results, task)
    described = json.loads((folder / "config.json").read_text())
    described["task"]["kind"] = "tagging"
    described["data"] = {"features": {"max_sequence_length": 8}}
    (folder / "config.json").write_text(json.dumps(described))
    written = folder / "predictions" / task
    written.mkdir(parents=True)
    for language, text in answers.items():
        (written / f"test-{language}.tsv").write_text(text)
    return path


def test_right_words_and_words_of_each_sentence(data_dir, tmp_path):
    answers = {"en": "DET\nVERB\n\nVERB\n\n"}
    folder = write_run(tmp_path / "run", "udpos", answers, {"en": 200 / 3})
    [(language, tested)] = read_items(folder, data_dir).items()
    assert (language, tested.baseline) == ("en", 40.0)
    assert tested.sums.got.tolist() == [1, 1]
    assert tested.sums.of.tolist() == [2, 1]


def test_right_or_not_of_each_sentence_in_each_language(data_dir, tmp_path):
    answers = {
        "de": DET * 3,
        "fr": VERB * 3,
    }
    # Slovak is none of XTREME's languages: it counts in no mean.
    scores = {"de": 200 / 3, "fr": 100 / 3, "sk": 50.0}
    result = read_items(write_run(tmp_path / "run", "udpos", answers, scores), data_dir)
    assert {name: each.sums.got.tolist() for name, each in result.items()} == {
        "de": [1, 0, 1],
        "fr": [0, 1, 0],
    }
    assert result["de"].sums.of.tolist() == [1, 1, 1]


def test_runs_of_a_model_are_averaged_within_the_item(data_dir, tmp_path):
    folder = tmp_path / "runs"
    runs = [
        {"learning_rate": 1e-3, "checkpoint": f"learning_rate_0.001/seed_{seed}/model"}
        for seed in (0, 1)
    ]
    answers = [DET * 3, VERB + DET * 2]
    # That of both is not compared with any answers.
    path = write_run(folder, "udpos", {}, {"de": 50.0}, runs=runs)
    for seed, (text, accuracy) in enumerate(
        zip(answers, (200 / 3, 100 / 3), strict=True)
    ):
        below = folder / "learning_rate_0.001" / f"seed_{seed}"
        write_run(below, "udpos", {"de": text}, {"de": accuracy})
    sums = read_items(path, data_dir)["de"].sums
    assert sums.got.tolist() == [0.5, 0, 1]
    assert sums.of.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "task, answers, accuracy, message",
    [
        ("udpos", DET * 3, 66.0, "says 66.0000 for test de, .*have 66.6667"),
        ("udpos", DET, 100.0, "test-de.tsv: 1 answers, but .* has 3"),
        ("udpos", None, None, "results.json: has no scores of test"),
        ("xquad", None, 1.0, "xquad is no task whose answers are counted"),
    ],
)
def test_answers_that_do_not_fit(data_dir, tmp_path, task, answers, accuracy, message):
    answers = {} if answers is None else {"de": answers}
    scores = {} if accuracy is None else {"de": accuracy}
    folder = write_run(tmp_path / "run", task, answers, scores)
    with pytest.raises(UserError, match=message):
        read_items(folder, data_dir)
