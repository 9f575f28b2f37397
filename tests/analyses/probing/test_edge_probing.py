"""Probing from files to tables."""

import os

import numpy as np
import pytest

from decoupled.analyses.models import open_models
from decoupled.analyses.probing import edge_probing
from decoupled.analyses.probing.probe import ProbeResult
from decoupled.analyses.probing.task_files import (
    Example,
    Target,
    find_tasks,
    write_examples,
)
from decoupled.core.errors import UserError
from tests.analyses.probing.test_probe import SETTINGS
from tests.analyses.tiny_runs import show, write_run

COLOURS, THINGS = ("blue", "green", "hidden", "last"), ("page", "image", "password")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Colours and things are told apart; so is which of two words is which."""
    folder = tmp_path_factory.mktemp("edges")
    pairs = [(colour, thing) for colour in COLOURS for thing in THINGS]
    kinds = [
        Example(
            ["Select", "the", *pair],
            [Target((2, 3), None, ("colour",)), Target((3, 4), None, ("thing",))],
        )
        for pair in pairs
    ]
    relations = [
        Example(
            ["the", *pair],
            [Target((1, 2), (2, 3), ("before",)), Target((2, 3), (1, 2), ("after",))],
        )
        for pair in pairs
    ]
    unlabelled = Example(["the", "page"], [Target((1, 2), None, ())])
    for name, examples, further in (
        ("kinds", kinds, [unlabelled]),
        ("relations", relations, []),
    ):
        os.makedirs(folder / name)
        write_examples(str(folder / name / "train.jsonl"), examples[::2] + further)
        write_examples(str(folder / name / "dev.jsonl"), examples[1::2])
    write_examples(str(folder / "kinds" / "test.jsonl"), kinds[1:4])
    return find_tasks(str(folder), None)


@pytest.fixture(scope="module")
def models(vocabulary, tmp_path_factory):
    """One model, of one layer."""
    folder = tmp_path_factory.mktemp("runs") / "shallow"
    return open_models([write_run(folder, vocabulary, {"num_layers": 1})])


@pytest.fixture(scope="module")
def result(tasks, models):
    return edge_probing.measure(models, tasks, SETTINGS)


def test_scores_and_baselines(result):
    assert result["tasks"]["kinds"]["labels"] == 2
    assert result["tasks"]["kinds"]["dev"]["targets"] == 12
    probe, _ = result["models"][0]["probes"]
    assert (probe["task"], len(probe["mix"])) == ("kinds", 2)
    assert probe["test"]["targets"] == 6
    assert probe["lost"] == 0
    # All words of the task are in its training data. Even random embeddings tell them.
    assert probe["lookup_f1"] == 1
    assert probe["dev"]["f1"] > 0.9


def test_a_value_for_each_target_of_test(result):
    task, (probe, _) = result["tasks"]["kinds"], result["models"][0]["probes"]
    assert task["items"] == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
    assert task["baseline"] == 1
    [(name, hits)] = result["arrays"].items()
    assert (name, hits.dtype, hits.shape) == ("0/kinds", np.uint8, (6,))
    # A target has one label here: what is said alone and right is a hit.
    assert hits.mean() >= probe["test"]["recall"] > 0.5


def untrained(data, settings, name):
    """`train_probe` without training: right in every second sentence."""
    hits = np.array([sentence % 2 == 1 for sentence, _ in data["test"].places])
    return ProbeResult({}, hits, [], 0)


def test_items_are_those_that_all_models_have(
    tasks, models, result, vocabulary, tmp_path, monkeypatch
):
    """A model of few positions loses the ends of sentences."""
    monkeypatch.setattr(edge_probing, "train_probe", untrained)
    positions = len(vocabulary.encode("Select the blue")) + 2
    short = write_run(tmp_path / "short", vocabulary, {"max_positions": positions})
    others = open_models([short])
    kinds = {"kinds": tasks["kinds"]}
    both = edge_probing.measure([*models, *others], kinds, SETTINGS)
    items = both["tasks"]["kinds"]["items"]
    # The things of all sentences, and longer words for colours, are cut away.
    fitting = [
        [number, 0]
        for number, colour in enumerate(["blue", "blue", "green"])
        if len(vocabulary.encode(f"Select the {colour}")) + 2 <= positions
    ]
    assert items == fitting
    assert 0 < len(items) < len(result["tasks"]["kinds"]["items"])
    assert [hits.tolist() for hits in both["arrays"].values()] == (
        [[sentence % 2 for sentence, _ in items]] * 2
    )


def test_two_spans_without_test_data(result):
    _, probe = result["models"][0]["probes"]
    assert probe["task"] == "relations"
    assert "test" not in probe and list(result["arrays"]) == ["0/kinds"]
    # Which word comes first is told by the words.
    assert probe["dev"]["f1"] > 0.5


def test_what_is_shown(result, tmp_path, capsys):
    shown, drawn = show(edge_probing, result, tmp_path / "out", capsys)
    for text in ("with a mix of all layers", "a lookup of words"):
        assert text in shown
    assert {"kinds", "relations", "shallow", "share of the layer in the mix, %"} <= set(
        drawn
    )


def test_files_of_a_task_must_agree(tasks, models):
    mixed = {"kinds": {**tasks["kinds"], "dev": tasks["relations"]["dev"]}}
    with pytest.raises(UserError, match="dev.jsonl: .* same number of spans"):
        edge_probing.measure(models, mixed, SETTINGS)


def test_targets_without_labels(models, tmp_path):
    """Where all of them have none; the training data of `tasks` has one of them."""
    path = str(tmp_path / "train.jsonl")
    write_examples(path, [Example(["page"], [Target((0, 1), None, ())])])
    tasks = {"empty": {"train": path, "dev": path}}
    with pytest.raises(UserError, match="train.jsonl: its targets have no labels"):
        edge_probing.measure(models, tasks, SETTINGS)
