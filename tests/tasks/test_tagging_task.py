"""UD-POS and PAN-X from files to scores and predictions."""

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.tagging_files import TaggedSentence
from decoupled.xtreme.files import LanguageFile, read_labels, read_predictions
from tests.tasks.tagged_words import small_vocabulary
from tests.xtreme.xtreme_samples import language_file

PANX = {
    "train-en": "Kofi\tB-PER\nAnnan\tI-PER\nleft\tO\nGhana\tB-LOC\n\nUN\tB-ORG\n",
    "dev-en": "Ghana\tB-LOC\n",
    "test-ar": "كوفي\tB-PER\nعنان\tI-PER\nغادر\tO\nغانا\tB-LOC\n\nغانا\tB-LOC\n",
    "test-th": "โคฟี\nอันนัน\nไป\nกานา\n\nกานา\n",
    "test-zh": "科\tB-PER\n菲\tI-PER\n\u200b\tO\n离\tO\n开\tO\n",
    "test-ja": "コフィ\tB-PER\nがガーナ\tO\n",
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return small_vocabulary(tmp_path_factory.mktemp("vocabulary") / "pieces.model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xtreme")
    for name, text in PANX.items():
        language_file(folder / f"panx/{name}.tsv", text, "panx")
    return str(folder)


def right_outputs(features):
    """What a network without a fault would give."""
    return {"best_labels": features["label_ids"]}


def test_a_row_needs_room():
    with pytest.raises(UserError, match="max_sequence_length: 2 leaves no room"):
        task_of(TASKS["panx"], "", 2)


@pytest.mark.parametrize("length", [3, 4, 16])
@pytest.mark.parametrize("language", ["ar", "zh", "ja"])
def test_from_files_to_scores_and_predictions(
    folder, vocabulary, tmp_path, language, length
):
    """Whatever the length: right outputs are worth 100, also to the command `score`."""
    task = task_of(TASKS["panx"], folder, length)
    examples = task.read("test", language)
    features = task.features(vocabulary, examples)
    assert set(task.graph_features) <= set(features)
    answers = task.answers(examples, features, right_outputs(features))
    scores = task.score(language, examples, answers)
    assert scores == dict.fromkeys(task.metrics, 100)
    assert tuple(scores) == task.metrics

    path = str(tmp_path / f"test-{language}.tsv")
    task.write(path, examples, answers)
    [labels_path] = task.paths("test", language)
    labels = read_labels(LanguageFile(labels_path, "panx", language))
    predictions = read_predictions(
        LanguageFile(path, "panx", language), labels, labels_path
    )
    assert predictions == labels == answers


def test_the_submission_format(folder, vocabulary, tmp_path):
    task = task_of(TASKS["panx"], folder, 16)
    examples = task.read("test", "ar")
    path = tmp_path / "test-ar.tsv"
    answers = [["B-PER", "I-PER", "O", "B-LOC"], ["O"]]
    task.write(str(path), examples, answers)
    assert path.read_text() == "B-PER\nI-PER\nO\nB-LOC\n\nO\n\n"


def test_files_without_tags_are_tagged_but_not_scored(folder, vocabulary):
    task = task_of(TASKS["panx"], folder, 16)
    examples = task.read("test", "th")
    features = task.features(vocabulary, examples)
    everywhere = np.full_like(features["label_ids"], task.labels.index("I-LOC"))
    answers = task.answers(examples, features, {"best_labels": everywhere})
    assert answers == [["I-LOC"] * 4, ["I-LOC"]]
    assert task.score("th", examples, answers) is None


def test_most_frequent_tags():
    training = [
        TaggedSentence(["the", "cat", "run"], ["DET", "NOUN", "VERB"]),
        TaggedSentence(["the", "run"], ["DET", "NOUN"]),
        TaggedSentence(["run", "dogs", "a"], ["NOUN", "NOUN", "X"]),
    ]
    examples = [TaggedSentence(["run", "the", "Cat"], None), TaggedSentence(["a"], [])]
    task = task_of(TASKS["udpos"], "", 16)
    task.training = training
    answers = task.trivial_answers(examples)
    # "Cat" is new: the most frequent of all.
    assert answers == [["NOUN", "DET", "NOUN"], ["X"]]


def test_real_sentences(data_dir, vocabulary):
    """All tags of UD English come back, and seqeval finds the scores of guesses.

    Some sentences fit, and others are divided.
    """
    task = task_of(TASKS["udpos"], f"{data_dir}/xtreme", 24)
    examples = {split: task.read(split, "en") for split in ("train", "dev", "test")}
    for sentences in examples.values():
        features = task.features(vocabulary, sentences)
        answers = task.answers(sentences, features, right_outputs(features))
        assert answers == [sentence.tags for sentence in sentences]
    guesses = task.trivial_answers(examples["test"])
    scores = task.score("en", examples["test"], guesses)
    assert tuple(scores) == task.metrics
    assert scores["accuracy"] == pytest.approx(80.39, abs=0.01)
    assert scores["f1"] == pytest.approx(78.30, abs=0.01)
