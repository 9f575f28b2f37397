"""config.json: what a folder's model is, and that it never becomes another one."""

import dataclasses
import json
import os

import pytest

from decoupled import files, model_dir
from decoupled.errors import UserError
from decoupled.model_dir import ModelDir
from tests.helpers import tiny_model

DESCRIPTION = ModelDir(
    command="pretrain",
    model=tiny_model(),
    vocabulary_fingerprint="ab" * 32,
    task=None,
    data={"records": "cd" * 32, "masking": {"sequence_length": 12}, "seed": 3},
)


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "given.model"
    path.write_bytes(b"\x00pieces\xff")
    return str(path)


@pytest.fixture
def folder(tmp_path, vocabulary):
    """A folder that DESCRIPTION has claimed."""
    path = str(tmp_path / "runs" / "one")
    model_dir.claim(path, DESCRIPTION, vocabulary)
    return path


def refusal(function, *arguments):
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_claimed_is_read_back(folder):
    assert model_dir.read(folder) == DESCRIPTION
    assert sorted(os.listdir(folder)) == ["config.json", "sentencepiece.model"]
    copied = files.read_bytes(model_dir.vocabulary_path(folder))
    assert copied == b"\x00pieces\xff"


def test_config_json_is_plain_and_complete(folder):
    saved = files.read_json(os.path.join(folder, "config.json"))

    assert list(saved) == ["format", "command", "model", "vocabulary", "task", "data"]
    assert saved["format"] == "decoupled-model-1"
    assert saved["vocabulary"] == {"fingerprint": "ab" * 32, "vocab_size": 48}
    assert saved["model"]["input_embedding_size"] == 8
    assert saved["model"]["mlm_transform"] == "dense_activation_norm"
    assert len(saved["model"]) == 18


def test_the_same_model_may_come_again_and_nothing_is_written(folder, vocabulary):
    before = {
        name: os.stat(os.path.join(folder, name)).st_mtime_ns
        for name in os.listdir(folder)
    }
    with open(vocabulary, "wb") as handle:
        handle.write(b"others")

    model_dir.claim(folder, DESCRIPTION, vocabulary)

    after = {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in before}
    assert after == before


def test_another_model_is_refused_with_every_setting_that_differs(folder, vocabulary):
    model = dataclasses.replace(DESCRIPTION.model, hidden_size=32, head_size=8)
    data = {**DESCRIPTION.data, "masking": {"sequence_length": 16}, "seed": 4}
    other = DESCRIPTION._replace(model=model, data=data, command="finetune")

    message = refusal(model_dir.claim, folder, other, vocabulary)

    assert message == (
        f"{folder}: holds another model: command is 'pretrain', not 'finetune'; "
        "data.masking.sequence_length is 12, not 16; data.seed is 3, not 4; "
        "model.head_size is 4, not 8; model.hidden_size is 16, not 32; use its "
        "settings to go on, or another --model_dir"
    )
    assert model_dir.read(folder) == DESCRIPTION


def test_another_vocabulary_or_task_is_named_too(folder, vocabulary):
    task = {"name": "catalogs", "labels": ["a", "b"]}
    other = DESCRIPTION._replace(vocabulary_fingerprint="ef" * 32, task=task)

    message = refusal(model_dir.claim, folder, other, vocabulary)

    assert f"vocabulary.fingerprint is '{'ab' * 32}', not '{'ef' * 32}'" in message
    assert "task is None, not {'name': 'catalogs', 'labels': ['a', 'b']}" in message


def test_a_task_is_read_back(tmp_path, vocabulary):
    task = {"name": "catalogs", "labels": ["eins", "zwölf", "三"]}
    described = DESCRIPTION._replace(command="finetune", task=task)
    model_dir.claim(str(tmp_path / "run"), described, vocabulary)

    assert model_dir.read(str(tmp_path / "run")) == described


def test_checkpoints_of_unknown_origin_are_not_taken_over(tmp_path, vocabulary):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").write_text("")

    message = refusal(model_dir.claim, str(tmp_path / "run"), DESCRIPTION, vocabulary)

    assert message == (
        f"{tmp_path}/run: holds checkpoints but no config.json; use an empty folder"
    )
    assert os.listdir(tmp_path / "run") == ["checkpoint"]


def test_other_files_in_a_new_folder_are_left_alone(tmp_path, vocabulary):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")

    model_dir.claim(str(tmp_path / "run"), DESCRIPTION, vocabulary)

    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path, vocabulary):
    below_a_file = f"{vocabulary}/run"

    message = refusal(model_dir.claim, below_a_file, DESCRIPTION, vocabulary)

    assert message.startswith(f"{below_a_file}: cannot write here (")


def test_a_vocabulary_that_is_missing_leaves_no_config(tmp_path):
    folder = str(tmp_path / "run")

    message = refusal(model_dir.claim, folder, DESCRIPTION, str(tmp_path / "none"))

    assert message.startswith(f"{tmp_path}/none: cannot read (")
    assert os.listdir(folder) == []


def test_a_folder_that_is_no_run_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        assert refusal(model_dir.read, str(path)) == (
            f"{path}: no config.json; is it a folder that pretrain or finetune wrote?"
        )


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": "bert-config"}', "3"])
def test_another_json_is_not_taken_for_a_description(tmp_path, content):
    (tmp_path / "config.json").write_text(content)

    message = refusal(model_dir.read, str(tmp_path))

    assert message == (
        f"{tmp_path}/config.json: not the description of a model "
        '("format": "decoupled-model-1")'
    )


def test_a_damaged_config_json_is_named_with_its_place(folder, vocabulary):
    with open(os.path.join(folder, "config.json"), "w") as handle:
        handle.write('{"format": "decoupled-model-1",\n "command"')

    for call in (
        lambda: model_dir.read(folder),
        lambda: model_dir.claim(folder, DESCRIPTION, vocabulary),
    ):
        message = refusal(call)
        assert message.startswith(f"{folder}/config.json: not JSON at line 2, column ")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda saved: saved.pop("data"), "data"),
        (lambda saved: saved.pop("vocabulary"), "vocabulary"),
        (lambda saved: saved["model"].pop("coupled"), "coupled"),
        (lambda saved: saved["model"].update(width=3), "width"),
        (lambda saved: saved.update(model=None), "ModelConfig"),
    ],
)
def test_a_config_json_of_another_version_is_named(folder, change, told):
    path = os.path.join(folder, "config.json")
    saved = files.read_json(path)
    change(saved)
    with open(path, "w") as handle:
        json.dump(saved, handle)

    message = refusal(model_dir.read, folder)

    assert message.startswith(f"{path}: does not fit this version (")
    assert told in message


def test_values_that_cannot_be_are_refused_as_in_a_gin_file(folder):
    path = os.path.join(folder, "config.json")
    saved = files.read_json(path)
    saved["model"]["num_layers"] = -1
    with open(path, "w") as handle:
        json.dump(saved, handle)

    assert refusal(model_dir.read, folder) == (
        f"{path}: ModelConfig.num_layers: -1 is not a finite number above 0"
    )


def test_a_folder_of_before_the_projection_was_a_setting_goes_on(folder, vocabulary):
    path = os.path.join(folder, "config.json")
    saved = files.read_json(path)
    del saved["model"]["project_equal_widths"]
    files.write_json(path, saved)

    assert model_dir.read(folder) == DESCRIPTION
    model_dir.claim(folder, DESCRIPTION, vocabulary)
