"""config.json: what a folder's model is, and that it never becomes another one."""

import dataclasses
import json
import os
import pathlib
from typing import NamedTuple

import pytest

from decoupled.core import files
from decoupled.data.vocabulary import vocabulary_path
from decoupled.runs import run_folder
from decoupled.runs.run_folder import ModelDir
from tests.helpers import tiny_model
from tests.refusals import refusal

DESCRIPTION = ModelDir(
    command="pretrain",
    model=tiny_model(),
    vocabulary_fingerprint="ab" * 32,
    task=None,
    data={"records": "cd" * 32, "masking": {"sequence_length": 12}, "seed": 3},
)


class Vocabulary(NamedTuple):
    """What `claim` reads of a vocabulary."""

    content: bytes
    file_name: str = "sentencepiece.model"
    path: str = "given.model"


OTHERS_VOCABULARY = Vocabulary(b"others", "wordpiece.json")


@pytest.fixture
def vocabulary():
    return Vocabulary(b"\x00pieces\xff")


@pytest.fixture
def folder(tmp_path, vocabulary):
    """A folder that DESCRIPTION has claimed."""
    path = str(tmp_path / "runs" / "one")
    run_folder.claim(path, DESCRIPTION, vocabulary)
    return path


@pytest.fixture
def trained(folder):
    """The same folder with a checkpoint."""
    pathlib.Path(folder, "model.ckpt-3.index").write_bytes(b"")
    return folder


def test_what_is_claimed_is_read_back(folder):
    assert run_folder.read(folder) == DESCRIPTION
    assert sorted(os.listdir(folder)) == ["config.json", "sentencepiece.model"]
    copied = files.read_bytes(vocabulary_path(folder))
    assert copied == b"\x00pieces\xff"


def test_config_json_is_plain_and_complete(folder):
    saved = files.read_json(os.path.join(folder, "config.json"))

    assert list(saved) == ["format", "command", "model", "vocabulary", "task", "data"]
    assert saved["format"] == "decoupled-model-1"
    assert saved["vocabulary"] == {
        "kind": "SentencePiece",
        "fingerprint": "ab" * 32,
        "vocab_size": 48,
    }
    assert saved["model"]["input_embedding_size"] == 8
    assert saved["model"]["mlm_transform"] == "dense_activation_norm"
    assert len(saved["model"]) == 20


def test_the_same_model_may_come_again_and_nothing_is_written(folder, vocabulary):
    before = {
        name: os.stat(os.path.join(folder, name)).st_mtime_ns
        for name in os.listdir(folder)
    }

    run_folder.claim(folder, DESCRIPTION, OTHERS_VOCABULARY)

    after = {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in before}
    assert after == before


def test_another_model_is_refused_with_every_setting_that_differs(trained, vocabulary):
    model = dataclasses.replace(DESCRIPTION.model, hidden_size=32, head_size=8)
    data = {**DESCRIPTION.data, "masking": {"sequence_length": 16}, "seed": 4}
    other = DESCRIPTION._replace(model=model, data=data)

    message = refusal(run_folder.claim, trained, other, vocabulary)

    assert message == (
        f"{trained}: holds another model: data.masking.sequence_length is 12, not 16; "
        "data.seed is 3, not 4; model.head_size is 4, not 8; model.hidden_size is 16, "
        "not 32; use its settings and files to go on, or another --model_dir"
    )
    # Of another command, everything differs.
    other = other._replace(command="finetune")
    message = refusal(run_folder.claim, trained, other, vocabulary)
    assert "holds another model: command is 'pretrain', not 'finetune'; use" in message
    assert run_folder.read(trained) == DESCRIPTION


@pytest.mark.parametrize("reading", [False, True])
def test_a_conversion_is_what_a_run_begins_from(tmp_path, vocabulary, reading):
    """No settings make it go on."""
    converted = str(tmp_path)
    conversion = DESCRIPTION._replace(command="convert")
    run_folder.claim(converted, conversion, vocabulary)
    (tmp_path / "model.ckpt-0.index").write_bytes(b"")
    message = refusal(run_folder.claim, converted, DESCRIPTION, vocabulary, reading)
    assert message == (
        f"{converted}: is a conversion, not a run that can go on; give it as "
        "--init_checkpoint, and another --model_dir"
    )


def test_another_vocabulary_or_task_is_named_too(trained, vocabulary):
    task = {"name": "catalogs", "labels": ["a", "b"]}
    other = DESCRIPTION._replace(vocabulary_fingerprint="ef" * 32, task=task)

    message = refusal(run_folder.claim, trained, other, vocabulary)

    assert f"{vocabulary.path} is not what the run began with" in message
    assert "task is None, not {'name': 'catalogs', 'labels': ['a', 'b']}" in message


@pytest.mark.parametrize(
    "saved",
    [
        "checkpoint",
        "model.ckpt-12.index",
        "eval.json",
        "best/checkpoint",
        "learning_rate_0.1/seed_0/model.ckpt-3.index",
        "learning_rate_0.1/seed_0/dev.json",
    ],
)
def test_a_folder_in_which_something_was_saved_stays_its_models(
    folder, vocabulary, saved
):
    path = pathlib.Path(folder, saved)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    other = DESCRIPTION._replace(data={"seed": 4})

    assert "holds another model" in refusal(run_folder.claim, folder, other, vocabulary)


@pytest.mark.parametrize(
    "left", ["events.out.tfevents.1", "command.1", "model.ckpt-3_temp/part.index"]
)
def test_a_folder_in_which_nothing_was_saved_binds_nobody(
    folder, tmp_path, capsys, left
):
    pathlib.Path(folder, left).parent.mkdir(exist_ok=True)
    pathlib.Path(folder, left).write_text("")
    other = DESCRIPTION._replace(vocabulary_fingerprint="ef" * 32, data={"seed": 4})

    run_folder.claim(folder, other, OTHERS_VOCABULARY)

    assert run_folder.read(folder) == other
    assert files.read_bytes(vocabulary_path(folder)) == b"others"
    assert capsys.readouterr().out == (
        f"{folder}/config.json: describes another model, which has saved nothing; it "
        "is replaced\n"
    )


OURS = "events.out.tfevents.1700000000.host-1.my.net.000000000000"
OTHERS = "events.out.tfevents.1700000000.host-1.77.0.v2"


def test_event_files_of_the_replaced_run_are_moved(folder, vocabulary, capsys):
    """TensorBoard and this project's plots would show two runs as one."""
    below = pathlib.Path(folder, "learning_rate_0.1", "seed_0")
    below.mkdir(parents=True)
    (below / OURS).write_text("of a seed")
    pathlib.Path(folder, OURS).write_text("first")
    pathlib.Path(folder, OTHERS).write_text("of somebody else")

    for seed, number, content in ((4, 1, "first"), (5, 2, "second")):
        other = DESCRIPTION._replace(data={"seed": seed})
        run_folder.claim(folder, other, vocabulary)

        aside = pathlib.Path(folder, f"replaced.{number}")
        printed = capsys.readouterr().out
        assert f"it is replaced; its event files are in {aside}\n" in printed
        assert not pathlib.Path(folder, OURS).exists()
        assert pathlib.Path(folder, OTHERS).read_text() == "of somebody else"
        assert (aside / OURS).read_text() == content
        pathlib.Path(folder, OURS).write_text("second")
    moved = pathlib.Path(folder, "replaced.1/learning_rate_0.1/seed_0", OURS)
    assert moved.read_text() == "of a seed"
    assert not (below / OURS).exists()


def test_who_only_reads_replaces_no_description(folder, vocabulary):
    """A run that is about to save its first checkpoint may be at work there."""
    other = DESCRIPTION._replace(data={"seed": 4})

    message = refusal(run_folder.claim, folder, other, vocabulary, True)

    assert message.startswith(f"{folder}: holds another model: data.masking is {{")
    assert run_folder.read(folder) == DESCRIPTION


def test_a_kill_while_it_is_replaced_leaves_no_others_vocabulary(
    folder, vocabulary, tmp_path, monkeypatch
):
    def killed(*_):
        raise KeyboardInterrupt

    other = DESCRIPTION._replace(vocabulary_fingerprint="ef" * 32)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            run_folder.claim(folder, other, OTHERS_VOCABULARY)

    run_folder.claim(folder, DESCRIPTION, vocabulary)

    assert run_folder.read(folder) == DESCRIPTION
    copied = files.read_bytes(vocabulary_path(folder))
    assert copied == b"\x00pieces\xff"


def test_a_config_json_of_something_else_is_never_replaced(folder, vocabulary):
    """As that of a folder of transformers."""
    path = pathlib.Path(folder, "config.json")
    path.write_text('{"model_type": "rembert"}')

    message = refusal(run_folder.claim, folder, DESCRIPTION, vocabulary)

    assert message.startswith(f"{path}: not the description of a model")
    assert path.read_text() == '{"model_type": "rembert"}'


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_run_with_settings_that_are_gone_agrees_if_they_had_no_effect(
    tmp_path, vocabulary, smoothing
):
    folder = str(tmp_path / "run")
    tuned = DESCRIPTION._replace(command="finetune")
    gone = {"group_by_length": True, "pack_sequences": True}
    gone["label_smoothing"] = smoothing
    before = tuned._replace(data={**tuned.data, **gone})
    run_folder.claim(folder, before, vocabulary)
    pathlib.Path(folder, "model.ckpt-3.index").write_bytes(b"")
    if smoothing:
        message = refusal(run_folder.claim, folder, tuned, vocabulary)
        assert "data.label_smoothing is 0.1, which only the version that beg" in message
    else:
        run_folder.claim(folder, tuned, vocabulary)


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_a_run_that_recorded_its_optimizer_agrees_if_it_is_that_of_now(
    tmp_path, vocabulary, name
):
    folder, now = str(tmp_path / "run"), {"beta1": 0.9}
    tuned = DESCRIPTION._replace(command="finetune", data={"optimizer": now})
    before = tuned._replace(data={"optimizer": {"name": name, **now}})
    run_folder.claim(folder, before, vocabulary)
    pathlib.Path(folder, "model.ckpt-3.index").write_bytes(b"")
    # Evaluation takes the settings of the run.
    run_folder.claim(folder, before, vocabulary, reading=True)
    if name == "adamw":
        run_folder.claim(folder, tuned, vocabulary)
    else:
        message = refusal(run_folder.claim, folder, tuned, vocabulary)
        assert (
            f"data.optimizer.name is '{name}', which only the version that" in message
        )


def test_a_file_that_has_changed_is_named_instead_of_its_hash(trained, vocabulary):
    other = DESCRIPTION._replace(data={**DESCRIPTION.data, "records": "12" * 32})

    message = refusal(
        run_folder.claim, trained, other, vocabulary, False, {"data.records": "TEXT"}
    )

    assert message == (
        f"{trained}: holds another model: TEXT is not what the run began with; use "
        "its settings and files to go on, or another --model_dir"
    )


def noted(folder, capsys, step, **settings):
    run_folder.note_settings(str(folder), settings, step, 20)
    return capsys.readouterr().out


def test_a_setting_that_changes_at_a_resume_is_said_once(tmp_path, capsys):
    first = {"OptimizerConfig.weight_decay": 0.01, "ScheduleConfig.train_steps": 20}
    second = first | {"OptimizerConfig.weight_decay": 0.1}
    line = "OptimizerConfig.weight_decay was 0.01 until step 10, is 0.1 from here\n"
    assert noted(tmp_path, capsys, 0, **first) == ""
    assert noted(tmp_path, capsys, 5, **first) == ""
    assert noted(tmp_path, capsys, 10, **second) == line
    # Killed before it saved: nothing was trained with the second settings.
    assert noted(tmp_path, capsys, 10, **second) == line
    assert noted(tmp_path, capsys, 10, **first) == ""
    assert noted(tmp_path, capsys, 10, **second) == line
    assert noted(tmp_path, capsys, 15, **second) == ""
    assert noted(tmp_path, capsys, 20, **first) == (
        "OptimizerConfig.weight_decay was 0.1 until step 20, the last; 0.01 has no "
        "effect on training\n"
    )
    assert files.read_json(f"{tmp_path}/settings.json") == [
        {"from_step": 0, "settings": first},
        {"from_step": 10, "settings": second},
    ]


def test_nothing_is_said_of_a_setting_that_is_gone(tmp_path, capsys):
    assert noted(tmp_path, capsys, 0, rate=1, lookup="gather") == ""
    assert noted(tmp_path, capsys, 5, rate=1) == ""


def test_nothing_is_said_of_an_optimizer_that_is_that_of_now(tmp_path, capsys):
    noted(tmp_path, capsys, 0, **{"rate": 1, "OptimizerConfig.name": "adamw"})
    assert noted(tmp_path, capsys, 5, rate=1) == ""


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothing_that_ends_is_said_once(tmp_path, capsys, smoothing):
    """Of a run of an earlier version; 0 changed nothing."""
    name = "TrainingConfig.label_smoothing"
    noted(tmp_path, capsys, 0, **{"rate": 1, name: smoothing})
    line = f"{name} was 0.1 until step 5, is 0.0 from here\n"
    assert noted(tmp_path, capsys, 5, rate=1) == (line if smoothing else "")
    assert noted(tmp_path, capsys, 6, rate=1) == ""


def test_settings_of_a_run_that_saved_nothing_are_replaced(tmp_path, capsys):
    assert noted(tmp_path, capsys, 0, rate=1) == ""
    assert noted(tmp_path, capsys, 0, rate=2) == ""
    [entry] = files.read_json(f"{tmp_path}/settings.json")
    assert entry == {"from_step": 0, "settings": {"rate": 2}}


@pytest.mark.parametrize("content", ["3", "[3]", '[{"from_step": "a"}]', '{"a": 1}'])
def test_damaged_settings_are_named(tmp_path, content):
    (tmp_path / "settings.json").write_text(content)
    message = refusal(run_folder.note_settings, str(tmp_path), {}, 3, 9)
    assert message.startswith(f"{tmp_path}/settings.json: not settings by step (")


def test_a_run_from_before_its_settings_were_recorded_goes_on(tmp_path, vocabulary):
    earlier = DESCRIPTION._replace(command="finetune")
    settings = {"init_checkpoint_sha256": "ab", "optimizer": {"beta2": 0.9}}
    now = earlier._replace(data={**earlier.data, **settings})
    for name, claimed in (("earlier", earlier), ("now", now)):
        run_folder.claim(str(tmp_path / name), claimed, vocabulary)
        (tmp_path / name / "model.ckpt-3.index").write_bytes(b"")
    run_folder.claim(str(tmp_path / "earlier"), now, vocabulary)

    changed = now._replace(data={**now.data, "optimizer": {"beta2": 0.99}})
    message = refusal(run_folder.claim, str(tmp_path / "now"), changed, vocabulary)
    assert "data.optimizer.beta2 is 0.9, not 0.99;" in message


@pytest.mark.parametrize(
    "task",
    [
        {"name": "catalogs", "labels": ["eins", "zwölf", "三"]},
        # A converted model may have any name that is no path.
        {"name": "Sentiment (SST-2), 2.0"},
    ],
)
def test_a_task_is_read_back(tmp_path, vocabulary, task):
    described = DESCRIPTION._replace(command="finetune", task=task)
    run_folder.claim(str(tmp_path / "run"), described, vocabulary)

    assert run_folder.read(str(tmp_path / "run")) == described


def test_checkpoints_of_unknown_origin_are_not_taken_over(tmp_path, vocabulary):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").write_text("")

    message = refusal(run_folder.claim, str(tmp_path / "run"), DESCRIPTION, vocabulary)

    assert message == (
        f"{tmp_path}/run: holds checkpoints but no config.json; use an empty folder"
    )
    assert os.listdir(tmp_path / "run") == ["checkpoint"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path, vocabulary):
    (tmp_path / "file").touch()
    below_a_file = f"{tmp_path}/file/run"

    message = refusal(run_folder.claim, below_a_file, DESCRIPTION, vocabulary)

    assert message.startswith(f"{below_a_file}: cannot write here (")


@pytest.mark.parametrize("name", ["run[1]", "run*", "what?", "a\\b"])
def test_a_name_that_tensorflow_takes_for_a_pattern_is_refused(
    tmp_path, vocabulary, name
):
    """It would train to the end there and then find no checkpoint."""
    folder = str(tmp_path / name / "below")

    message = refusal(run_folder.claim, folder, DESCRIPTION, vocabulary)

    assert message.startswith(f"{folder}: TensorFlow takes ")
    assert not (tmp_path / name).exists()


def test_a_folder_that_is_no_run_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        assert refusal(run_folder.read, str(path)) == (
            f"{path}: no config.json; is it a folder that pretrain or finetune wrote?"
        )


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": "bert-config"}', "3"])
def test_another_json_is_not_taken_for_a_description(tmp_path, content):
    (tmp_path / "config.json").write_text(content)

    message = refusal(run_folder.read, str(tmp_path))

    assert message == (
        f"{tmp_path}/config.json: not the description of a model "
        '("format": "decoupled-model-1")'
    )


def test_a_damaged_config_json_is_named_with_its_place(folder, vocabulary):
    with open(os.path.join(folder, "config.json"), "w") as handle:
        handle.write('{"format": "decoupled-model-1",\n "command"')

    for call in (
        lambda: run_folder.read(folder),
        lambda: run_folder.claim(folder, DESCRIPTION, vocabulary),
    ):
        message = refusal(call)
        assert message.startswith(f"{folder}/config.json: not JSON at line 2, column ")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda saved: saved.pop("data"), "data"),
        (lambda saved: saved.pop("vocabulary"), "vocabulary"),
        (lambda saved: saved["model"].pop("coupled"), "coupled"),
        (lambda saved: saved["model"].update(width=3), "width"),
        (lambda saved: saved.update(model=None), "None is not of type dict"),
        (lambda saved: saved.update(model=[]), "[] is not of type dict"),
        (lambda saved: saved.update(command=3), "3 is not of type str"),
        (lambda saved: saved["vocabulary"].update(fingerprint=None), "type str"),
        (lambda saved: saved.update(vocabulary="x"), "indices"),
        (lambda saved: saved.update(data=[1]), "[1] is not of type dict"),
        (lambda saved: saved["data"].update(x=[float("nan")]), "Out of range float"),
        (lambda saved: saved["data"].update(x=float("inf")), "Out of range float"),
        (lambda saved: saved.update(task={"x": float("nan")}), "Out of range float"),
        (lambda saved: saved["data"].update(rates=[1]), "[1] is not of type dict"),
        (lambda saved: saved["data"].update(rates={"*": "1"}), "rates: '1' is not a"),
        (lambda saved: saved.update(task="xnli"), "'str' object"),
        (lambda saved: saved.update(task={"name": 3}), "3 is not of type str"),
        (
            lambda saved: saved.update(task={"name": "../../x"}),
            "'../../x' is not the name of a task",
        ),
        (lambda saved: saved.update(task={"name": ".."}), "is not the name of a task"),
        (lambda saved: saved.update(task={"name": "a/b"}), "is not the name of a task"),
        (lambda saved: saved.update(task={"kind": {}}), "{} is not of type str"),
        (lambda saved: saved.update(task={"labels": "ab"}), "'ab' is not of type list"),
        (lambda saved: saved.update(task={"labels": [0]}), "0 is not of type str"),
        (lambda saved: saved.update(command=["x" * 10**6]), "..."),
    ],
)
def test_a_config_json_of_another_version_is_named(folder, change, problem):
    path = os.path.join(folder, "config.json")
    saved = files.read_json(path)
    change(saved)
    with open(path, "w") as handle:
        json.dump(saved, handle)

    message = refusal(run_folder.read, folder)

    assert message.startswith(f"{path}: does not fit this version (")
    assert problem in message


@pytest.mark.parametrize(
    "name, value, problem",
    [
        ("vocab_size", 2**31, "which no model can have"),
        ("num_layers", 10**6, "which no model can have"),
        ("max_positions", 1e9, "is not of type int"),
        ("num_layers", -1, "-1 is not a finite number above 0"),
    ],
)
def test_sizes_that_no_model_has_are_refused(folder, name, value, problem):
    path = os.path.join(folder, "config.json")
    saved = files.read_json(path)
    saved["model"][name] = value
    files.write_json(path, saved)

    message = refusal(run_folder.read, folder)

    assert message.startswith(f"{path}: ") and name in message and problem in message


def test_a_config_json_that_is_nested_too_deeply_is_refused(folder, vocabulary):
    path = os.path.join(folder, "config.json")
    text = json.dumps(files.read_json(path))
    for depth in (30, 900, 100_000):
        deep = '{"a":' * depth + "1" + "}" * depth
        files.write_text(path, text.replace('"seed": 3', f'"seed": {deep}'))
        for call, arguments in (
            (run_folder.read, ()),
            (run_folder.claim, (DESCRIPTION, vocabulary)),
        ):
            message = refusal(call, folder, *arguments)
            assert message.startswith(path) and "nested too deeply" in message
            assert len(message) < 500


@pytest.mark.parametrize("rank", [0, 3])
def test_a_model_with_a_setting_that_is_gone_goes_on_if_it_was_off(
    folder, vocabulary, rank
):
    path = os.path.join(folder, "config.json")
    saved = files.read_json(path)
    saved["model"]["output_embedding_rank"] = rank
    files.write_json(path, saved)
    pathlib.Path(folder, "model.ckpt-3.index").write_bytes(b"")
    if rank == 0:
        assert run_folder.read(folder) == DESCRIPTION
        run_folder.claim(folder, DESCRIPTION, vocabulary)
        return
    for call, arguments in (
        (run_folder.read, ()),
        (run_folder.claim, (DESCRIPTION, vocabulary)),
    ):
        message = refusal(call, folder, *arguments)
        assert message.startswith(f"{path}: ModelConfig.output_embedding_rank was rem")
        assert "this model has 3; only the version that trained it can" in message


@pytest.mark.parametrize(
    "name",
    ["project_equal_widths", "project_equal_output_widths", "initial_values"],
)
def test_a_folder_of_before_there_was_a_setting_goes_on(folder, vocabulary, name):
    path = os.path.join(folder, "config.json")
    saved = files.read_json(path)
    del saved["model"][name]
    files.write_json(path, saved)

    assert run_folder.read(folder) == DESCRIPTION
    run_folder.claim(folder, DESCRIPTION, vocabulary)


def test_other_files_in_a_new_folder_are_left_alone(tmp_path, vocabulary):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")

    run_folder.claim(str(tmp_path / "run"), DESCRIPTION, vocabulary)

    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
