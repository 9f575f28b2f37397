"""The tasks by name: each can be made, with what it needs."""

import pytest

from decoupled.configs import FinetuningConfig, QuestionAnsweringConfig
from decoupled.core.errors import UserError
from decoupled.tasks.presets import TASKS, make_task
from decoupled.tasks.task import FinetuningTask
from decoupled.xtreme import official

SETTINGS = FinetuningConfig()
QUESTIONS = QuestionAnsweringConfig(16, 32, 30, 20)


# The file with the labels of each.
OWN = {
    "catalogs": "labels.txt",
    "sib200": "train-en.tsv",
}


def test_all_tasks_of_xtreme_that_are_trained_and_those_of_our_own():
    retrieval = official.GROUPS["retrieval"]
    assert set(TASKS) == set(official.TASKS) - set(retrieval) | set(OWN)


@pytest.mark.parametrize("name", sorted(set(TASKS) - set(OWN)))
def test_every_task_can_be_made(name, tmp_path):
    task = make_task(name, str(tmp_path), SETTINGS, QUESTIONS)
    assert isinstance(task, FinetuningTask)
    assert task.name == name
    assert task.prediction_suffix == official.TASKS[name].suffix
    assert set(official.TASKS[name].headline) == set(task.headline) <= set(task.metrics)
    assert task.languages("test") == []


def test_kinds_are_the_groups_of_xtreme():
    kinds = {"classification": "classification", "tagging": "tagging"}
    for group, kind in {**kinds, "qa": "question answering"}.items():
        assert {TASKS[name].kind for name in official.GROUPS[group]} == {kind}


def test_class_weights_are_for_classification(tmp_path):
    weighted = FinetuningConfig(class_weights="balanced")
    make_task("pawsx", str(tmp_path), weighted, None)
    with pytest.raises(UserError, match="class_weights: 'balanced' is for classif"):
        make_task("udpos", str(tmp_path), weighted, None)


@pytest.mark.parametrize("name", sorted(OWN))
def test_the_labels_of_our_own_tasks_are_missing(name, tmp_path):
    with pytest.raises(UserError, match=f"{name}/{OWN[name]}: (cannot read|missing)"):
        make_task(name, str(tmp_path), SETTINGS, None)


@pytest.mark.parametrize("name", ["xnli", "panx"])
def test_settings_are_those_that_runs_have_recorded(name):
    """With others a run does not resume."""
    task = make_task(name, "", SETTINGS, None)
    labels = list(TASKS[name].labels)
    assert task.settings() == {
        "max_sequence_length": 128, "labels": labels, "version": 1
    }  # fmt: skip
