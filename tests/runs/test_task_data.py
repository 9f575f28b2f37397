"""A task's features: built in parts, kept on disk, never served for other inputs."""

from types import SimpleNamespace

import numpy as np
import pytest

from decoupled.configs import OwnTaskConfig
from decoupled.core.errors import UserError
from decoupled.core.made_from import changes
from decoupled.data.vocabulary import Pairs
from decoupled.runs import task_data
from decoupled.runs.task_data import TaskData
from decoupled.tasks.description import describe_task
from decoupled.tasks.presets import TASKS, task_of
from tests.tasks.own_tasks import REVIEWS


class Numbers:
    """A task of numbers in a file; a number n becomes n windows."""

    name = "numbers"
    training_languages = ("en",)
    graph_features = ("input_word_ids",)

    def __init__(self, data_dir, window=4):
        self.data_dir, self.window = str(data_dir), window
        self.asked = []
        self.limit = None

    def languages(self, split):
        return ["sw"] if split == "test" else ["en", "sw"]

    def paths(self, split, language):
        return [f"{self.data_dir}/{split}-{language}.txt"]

    def indexes(self, split, language):
        return []

    def read(self, split, language):
        [path] = self.paths(split, language)
        try:
            with open(path, encoding="utf-8") as handle:
                return [int(word) for word in handle.read().split()]
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: no numbers") from error

    @property
    def answer_limit(self):
        return None if self.limit is None else f"{self.limit} units"

    def share_beyond_limit(self, vocabulary, examples):
        if self.limit is None or not examples:
            return None
        return sum(example > self.limit for example in examples) / len(examples)

    def settings(self):
        return {"window": self.window}

    def features(self, vocabulary, examples):
        self.asked.append(list(examples))
        owners = np.repeat(np.arange(len(examples), dtype=np.int32), examples)
        ids = np.full([len(owners), self.window], vocabulary.size, np.int32)
        return {"input_word_ids": ids, "example_index": owners, "extra": owners * 2}


def test_the_numbers_of_sentences_beside_a_file_are_part_of_it(tmp_path):
    place = tmp_path / "udpos/udpos_processed_maxlen128/de"
    place.mkdir(parents=True)
    (place / "test.bert").write_text("Ja\tINTJ\n")
    (place / "test.bert.idx").write_text("0\n")
    task = task_of(TASKS["udpos"], str(tmp_path), 64, None)
    data = TaskData(task, SimpleNamespace(pairs=Pairs(1, 1)), "")
    before = data.hashes([("test", "de")])
    assert len(before) == 2
    (place / "test.bert.idx").write_text("1\n")
    now = data.hashes([("test", "de")])
    assert len(changes({"files": before}, {"files": now})) == 1
    # Results of earlier versions do not name it.
    del before["udpos/udpos_processed_maxlen128/de/test.bert.idx"]
    assert changes({"files": before}, {"files": now}) == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(task_data, "_CHUNK", 2)
    (tmp_path / "dev-en.txt").write_text("1 2 1 3 1")
    return tmp_path


def make(folder, task=None, fingerprint="abc"):
    pairs = Pairs(separators=1, second_type=1)
    vocabulary = SimpleNamespace(fingerprint=fingerprint, size=9, pairs=pairs)
    return TaskData(task or Numbers(folder), vocabulary, f"{folder}/cache")


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


@pytest.mark.parametrize("changed", [None, "vocabulary", "length", "file"])
def test_features_are_made_once_and_again_for_other_inputs(folder, changed):
    first = features(make(folder))
    if changed == "file":
        (folder / "dev-en.txt").write_text("1 2 1 3 2")
    data = make(
        folder,
        Numbers(folder, window=5 if changed == "length" else 4),
        "other" if changed == "vocabulary" else "abc",
    )
    second = features(data)
    assert len(data.task.asked) == (3 if changed else 0)
    if changed is None:
        for name, array in first.items():
            np.testing.assert_array_equal(second[name], array)


def test_checkpoints_can_be_compared_where_there_is_english_dev(folder):
    data = make(folder)
    assert data.has_source_dev()
    data.task.languages = lambda split: ["sw"]
    assert not data.has_source_dev()


FILES = [("dev", "en"), ("dev", "sw"), ("test", "sw")]


def test_a_check_names_every_file_that_is_wrong_and_makes_no_features(folder):
    (folder / "dev-sw.txt").write_text("1 x")
    data = make(folder)
    with pytest.raises(UserError, match="2 mistakes: .*dev-sw.txt.*test-sw.txt"):
        data.check([1], FILES)
    (folder / "dev-sw.txt").write_text("1")
    with pytest.raises(UserError, match="^[^;]*test-sw.txt: no numbers$"):
        data.check([1], FILES)
    (folder / "test-sw.txt").write_text("")
    data.check([1], FILES)
    assert data.task.asked == [] and not (folder / "cache").exists()


def test_a_check_says_which_right_answers_are_too_long(folder, capsys):
    (folder / "dev-sw.txt").write_text("3 3 3")
    (folder / "test-sw.txt").write_text("")
    data = make(folder)
    data.check([1], FILES)
    assert capsys.readouterr().out == ""
    said = {
        3: "numbers: an answer has at most 3 units; no right answer is longer\n",
        2: (
            "numbers: an answer has at most 2 units; longer right answers are lost: "
            "dev en 20.00%, dev sw 100.00%; none in the other files (1)\n"
        ),
        0: (
            "numbers: an answer has at most 0 units; longer right answers are lost: "
            "train en 100.00%, dev en 100.00%, dev sw 100.00%\n"
        ),
    }
    for limit, line in said.items():
        data.task.limit = limit
        data.check([1], FILES)
        assert capsys.readouterr().out == line


def test_the_files_of_the_splits_that_were_asked_for_are_answered(folder):
    data = make(folder)
    assert data.files_to_answer() == FILES
    only_dev = TaskData(data.task, data.vocabulary, "", ["dev"])
    assert only_dev.files_to_answer() == [f for f in FILES if f[0] == "dev"]


def test_the_files_that_are_missing_are_named_as_the_user_names_them(tmp_path):
    (tmp_path / "train-en.tsv").write_text("text\tlabel\na\tx\nb\ty\n")
    description = describe_task(OwnTaskConfig(**REVIEWS))
    task = task_of(description, str(tmp_path), 64)
    data = TaskData(task, SimpleNamespace(pairs=Pairs(1, 1)), "")
    with pytest.raises(UserError) as caught:
        data.files_to_answer()
    assert str(caught.value) == (
        f"{tmp_path}: holds no dev or test file of reviews in any language, as "
        "dev-{language}.tsv, test-{language}.tsv"
    )
