"""Answers to several files: each is loaded ahead, and nothing is left behind."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.runs import evaluation
from decoupled.runs.evaluation import _ahead, answer_languages


def test_results_come_in_order_each_loaded_before_it_is_asked_for():
    started = {name: threading.Event() for name in "abc"}

    def load(name):
        started[name].set()
        return name.upper()

    results = _ahead(load, [("a",), ("b",), ("c",)])
    assert next(results) == "A"
    assert started["b"].wait(timeout=30)
    assert list(results) == ["B", "C"]


def test_a_mistake_in_a_file_is_raised_where_its_turn_is():
    def load(name):
        if name == "b":
            raise UserError("b.tsv:1: empty")
        return name

    results = _ahead(load, [("a",), ("b",), ("c",)])
    assert next(results) == "a"
    with pytest.raises(UserError, match="b.tsv:1: empty"):
        next(results)


@pytest.mark.parametrize("all_answers", [True, False])
def test_the_batches_of_a_tpu_of_several_hosts_are_gone_afterwards(
    tmp_path, monkeypatch, all_answers
):
    path = tmp_path / "batches" / "evaluation"
    features = {"example_index": np.arange(3), "input_mask": np.ones((3, 4), np.int32)}
    data = SimpleNamespace(
        examples=lambda split, language: [f"{language} {n}" for n in range(3)],
        features=lambda *_: features,
        for_graph=lambda features: features,
        task=SimpleNamespace(answers=lambda examples, *_: examples),
    )
    run = SimpleNamespace(
        tpu="of several hosts",
        feeds_itself=False,
        recorded_batches=str(path),
        batch_size=2,
    )

    def write(sets, batch_size, lengths, record_to):
        files.make_folder(str(path.parent))
        files.write_text(record_to, "batches")

    def predict(graph, run, input_fn, parts, lengths):
        for part in parts:
            assert path.exists()
            yield part.name, None

    monkeypatch.setattr(evaluation, "evaluation_input_fn", write)
    monkeypatch.setattr(evaluation, "predict_parts", predict)
    answers = answer_languages(None, run, data, [("test", "de"), ("test", "sw")])
    if all_answers:
        assert [one.language for one in answers] == ["de", "sw"]
    else:
        assert next(answers).language == "de"
        answers.close()
    assert list(tmp_path.iterdir()) == []
