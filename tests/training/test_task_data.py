"""A task's features: built in parts, kept on disk, never served for other inputs."""

from types import SimpleNamespace

import numpy as np
import pytest

from decoupled.training import task_data
from decoupled.training.task_data import TaskData


class Numbers:
    """A task of numbers in a file; a number n becomes n windows."""

    name = "numbers"
    graph_features = ("input_word_ids",)

    def __init__(self, window=4):
        self.window = window
        self.asked = []

    def languages(self, data_dir, split):
        return ["sw"] if split == "test" else ["en", "sw"]

    def path(self, data_dir, split, language):
        return f"{data_dir}/{split}-{language}.txt"

    def read(self, data_dir, split, language):
        with open(self.path(data_dir, split, language), encoding="utf-8") as handle:
            return [int(word) for word in handle.read().split()]

    def settings(self):
        return {"window": self.window}

    def features(self, vocabulary, examples):
        self.asked.append(list(examples))
        owners = np.repeat(np.arange(len(examples), dtype=np.int32), examples)
        ids = np.full([len(owners), self.window], vocabulary.size, np.int32)
        return {"input_word_ids": ids, "example_index": owners, "extra": owners * 2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(task_data, "_CHUNK", 2)
    (tmp_path / "dev-en.txt").write_text("1 2 1 3 1")
    return tmp_path


def make(folder, task=None, fingerprint="abc"):
    vocabulary = SimpleNamespace(fingerprint=fingerprint, size=9)
    return TaskData(task or Numbers(), str(folder), vocabulary, f"{folder}/cache")


def features(data):
    return data.features("dev", "en", data.examples("dev", "en"))


def test_rows_of_all_parts_belong_to_their_examples(folder):
    data = make(folder)
    found = features(data)
    assert data.task.asked == [[1, 2], [1, 3], [1]]
    assert found["example_index"].tolist() == [0, 1, 1, 2, 3, 3, 3, 4]
    assert found["example_index"].dtype == np.int32
    assert found["input_word_ids"].shape == (8, 4)
    assert set(data.for_graph(found)) == {"input_word_ids"}


def test_features_are_made_once(folder):
    first = features(make(folder))
    again = make(folder)
    second = features(again)
    assert again.task.asked == []
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array)


@pytest.mark.parametrize("changed", ["vocabulary", "length", "file"])
def test_other_inputs_have_other_features(folder, changed):
    features(make(folder))
    if changed == "file":
        (folder / "dev-en.txt").write_text("1 2 1 3 2")
    data = make(
        folder,
        Numbers(window=5 if changed == "length" else 4),
        "other" if changed == "vocabulary" else "abc",
    )
    features(data)
    assert len(data.task.asked) == 3


def test_checkpoints_can_be_compared_where_there_is_english_dev(folder):
    data = make(folder)
    assert data.has_english_dev()
    data.task.languages = lambda data_dir, split: ["sw"]
    assert not data.has_english_dev()
