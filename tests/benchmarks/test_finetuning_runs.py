"""The table of whole runs from numbers typed in, and quick runs of its workers."""

import json
import pathlib
import re

import numpy as np
import pytest

from benchmarks import finetuning_runs, peers, results
from benchmarks.__main__ import main
from benchmarks.finetuning_runs import OURS, SOURCES, first_examples
from benchmarks.interleave import Chunk, MeasuredWorker, Skip, interleave
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON

CASE = {"batch": 10}
START_AFTER = {OURS: 10.0, "transformers, grouped": 4.0}


def runs():
    return comparison(
        "xnli: float32",
        [
            measured(OURS, [[1.0, 3.0], [2.0, 2.0]], CASE),
            measured("transformers, grouped", [[2.0, 2.0], [6.0, 6.0]], CASE),
        ],
    )


def starts():
    workers = [
        MeasuredWorker(name, {}, {}, [Chunk([99.0], s - 1), Chunk([99.0], s)] * 2, 1)
        for name, s in START_AFTER.items()
    ]
    return comparison("xnli: float32, start", workers)


def test_times_are_means_over_all_steps():
    (table,) = finetuning_runs.tables([runs()])
    assert table.rows == [
        ["xnli: float32", OURS, "200.0 s", "", "", "", "", "2.50 GB"],
        [
            "xnli: float32", "transformers, grouped", "400.0 s", "2.00x", "", "", "",
            "2.50 GB",
        ],
    ]  # fmt: skip


def test_a_run_is_its_start_and_60_steps():
    (table,) = finetuning_runs.tables([runs(), starts()])
    ours, theirs = (row[4:7] for row in table.rows)
    assert ours == ["9.50 s (9.00-10.0)", "130 s", ""]
    assert theirs == ["3.50 s (3.00-4.00)", "244 s", "1.88x"]


def test_real_examples_are_needed(tmp_path, monkeypatch):
    monkeypatch.delenv(peers.DATA_DIR, raising=False)
    with pytest.raises(Skip, match="set DECOUPLED_DATA_DIR"):
        finetuning_runs.make_case(SOURCES[0], False, tmp_path / "none")
    monkeypatch.setenv(peers.DATA_DIR, str(tmp_path))
    with pytest.raises(Skip, match="xnli/train-en.tsv: does not exist"):
        finetuning_runs.make_case(SOURCES[0], False, tmp_path / "none")


def test_the_peer_gets_the_same_tokens_and_labels():
    features = {
        "input_word_ids": np.array([[5, 6, 7, 0]], np.int32),
        "input_mask": np.array([[1, 1, 1, 0]], np.int32),
        "input_type_ids": np.zeros([1, 4], np.int32),
        "word_starts": np.array([[0, 1, 0, 0]], np.int32),
        "label_ids": np.array([[0, 3, 0, 0]], np.int32),
    }
    found = finetuning_runs.peer_features(features)
    assert found["input_ids"].tolist() == [[5, 6, 7, 0]]
    assert found["lengths"].tolist() == [3]
    assert found["labels"].tolist() == [[-100, 3, -100, -100]]
    spans = {"start_positions": np.array([1]), "end_positions": np.array([2])}
    found = finetuning_runs.peer_features({**features, **spans})
    assert (found["start_positions"], found["end_positions"]) == ([1], [2])
    assert "labels" not in found


def test_a_training_set_is_the_first_examples_of_its_file():
    lines = "a\tb\tneutral\nc\td\tneutral\n"
    assert first_examples(lines, "classification", 1) == "a\tb\tneutral\n"
    assert first_examples("a\x85b\tc\nd\te\n", "classification", 1) == "a\x85b\tc\n"
    tagged = "a\tNOUN\nb\tVERB\n\nc\tNOUN\n"
    assert first_examples(tagged, "tagging", 1) == "a\tNOUN\nb\tVERB\n"
    assert first_examples(tagged, "tagging", 5) == tagged
    questions = [[{"id": "1"}], [{"id": "2"}, {"id": "3"}], [{"id": "4"}]]
    paragraphs = [{"context": "c", "qas": qas} for qas in questions]
    text = json.dumps({"data": [{"paragraphs": paragraphs}]})
    (article,) = json.loads(first_examples(text, "question answering", 2))["data"]
    found = [paragraph["qas"] for paragraph in article["paragraphs"]]
    assert found == [[{"id": "1"}], [{"id": "2"}], []]


@pytest.mark.slow
@pytest.mark.parametrize("real", SOURCES, ids=lambda real: real.task)
def test_our_run_stops_when_enough_was_seen(real, tmp_path):
    case = finetuning_runs.make_case(real, True, tmp_path / real.task)
    ours = finetuning_runs.our_worker(case | {"dtype": "float32"}, True, 4)
    (worker,) = interleave([ours], 2, 2, "quick")
    # A step of warm-up and two of each round.
    assert [chunk.loss for chunk in worker.rounds] == [3.0, 5.0]
    assert 0 < worker.facts["start"]
    assert not list((tmp_path / real.task).glob("float32*/model.ckpt*"))


def test_the_vocabulary_has_the_words_of_all_tasks(tmp_path, data_dir, monkeypatch):
    """Those of one give fewer than 8,000 pieces."""
    monkeypatch.setenv(peers.DATA_DIR, data_dir)
    texts = []

    def train(given, path, settings):
        texts.extend(given)
        assert settings.vocab_size == 8_000
        raise Skip("enough")

    monkeypatch.setattr(finetuning_runs, "train_vocabulary", train)
    with pytest.raises(Skip, match="enough"):
        finetuning_runs.make_case(SOURCES[1], False, tmp_path / "udpos")
    seen = set(re.findall("[a-z]{8,}", "\n".join(texts)))
    for path in ("xnli/train-en.tsv", "udpos/train-en.tsv", "xquad/xquad.en.json"):
        source = pathlib.Path(data_dir, "xtreme", path).read_text(encoding="utf-8")
        words = set(re.findall("[a-z]{8,}", source))
        assert len(words & seen) > 0.9 * len(words), path


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_a_quick_run_against_transformers(tmp_path, capsys):
    main(["finetuning_runs", "--quick", "--only=xnli: bfloat16",
          f"--results_dir={tmp_path}"])  # fmt: skip
    whole, start = results.read(tmp_path / "finetuning_runs.json")
    names = [OURS, "transformers, dynamic", "transformers, grouped"]
    assert [worker.name for worker in start.workers] == names
    assert [worker.name for worker in whole.workers] == names
    for worker in whole.workers[1:]:
        # 3 steps of 4 rows of at most 48 tokens.
        assert worker.rounds[0].loss < 3 * 4 * 48
    assert "Fine-tuning on real examples" in capsys.readouterr().out
