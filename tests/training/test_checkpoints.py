"""What a run starts from: its own newest whole checkpoint, a given one, or the seed."""

import os
import re
import shutil

import numpy as np
import pytest

from decoupled.core import files
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.exports.interop.conversion import write_converted_folder
from decoupled.model.variables import (
    MASKED_LM,
    NO_HEAD,
    TRUNCATED_NORMAL,
    Dim,
    Head,
    Variable,
    declare,
    shapes,
)
from decoupled.tasks.classification import Classification
from decoupled.training import checkpoints
from decoupled.training.checkpoint_files import CheckpointFile, CheckpointWriter
from decoupled.training.checkpoints import (
    check_resumable,
    checkpoint_step,
    find_checkpoint,
    latest_complete,
    plan_initialization,
    remove_unfinished,
    write_list,
)
from tests.helpers import MASKING, masked_lm_features, schedule, tiny_model
from tests.model.graphs import initial_weights
from tests.pretrained import write_weights
from tests.refusals import refusal
from tests.training.runs import (
    BODY,
    SMALL,
    assert_equal_values,
    checkpoint_values,
    constant_batches,
    graph_config,
    run_spec,
    said,
    train_run,
    with_training,
)


def write_checkpoints(folder, steps, **values):
    """Checkpoints model.ckpt-STEP in the folder; `kernel` says which is which."""
    os.makedirs(folder, exist_ok=True)
    prefixes = [f"{folder}/model.ckpt-{step}" for step in steps]
    for step, prefix in zip(steps, prefixes, strict=True):
        with CheckpointWriter(prefix) as writer:
            writer.add("global_step", np.int64(step))
            writer.add("kernel", np.full([200], step, np.float32))
            for name, value in values.items():
                writer.add(name, np.float32(value))
    write_list(str(folder), prefixes)
    return str(folder)


def data_file(folder, step):
    return f"{folder}/model.ckpt-{step}.data-00000-of-00001"


def truncate(folder, step):
    """The data file as a full disk leaves it."""
    path = data_file(folder, step)
    os.truncate(path, os.path.getsize(path) // 2)


def change_byte(folder, step):
    with open(data_file(folder, step), "r+b") as handle:
        handle.seek(100)
        byte = handle.read(1)
        handle.seek(100)
        handle.write(bytes([byte[0] ^ 0xFF]))


def delete_index(folder, step):
    os.remove(f"{folder}/model.ckpt-{step}.index")


def delete_data(folder, step):
    os.remove(data_file(folder, step))


def truncate_index(folder, step):
    os.truncate(f"{folder}/model.ckpt-{step}.index", 40)


DAMAGES = [truncate, change_byte, delete_index, delete_data, truncate_index]


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert latest_complete(str(tmp_path)) is None
    assert latest_complete(str(tmp_path / "missing")) is None
    assert checkpoint_step(None) == 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    tmp_path, damage, capsys
):
    folder = write_checkpoints(tmp_path, [5, 10, 15])
    damage(folder, 15)

    assert latest_complete(folder) == f"{folder}/model.ckpt-10"

    message = capsys.readouterr().out
    assert re.fullmatch(
        rf"{folder}/model.ckpt-15: (cannot be read: .+|no such checkpoint .+); "
        rf"{folder}/model.ckpt-10 is used instead\n",
        message,
    ), message

    # The Estimator reads this file.
    assert tf.train.latest_checkpoint(folder) == f"{folder}/model.ckpt-10"
    state = tf.train.get_checkpoint_state(folder)
    expected = [f"{folder}/model.ckpt-5", f"{folder}/model.ckpt-10"]
    assert list(state.all_model_checkpoint_paths) == expected
    assert latest_complete(folder) == f"{folder}/model.ckpt-10"
    assert capsys.readouterr().out == ""


def test_two_damaged_checkpoints_are_both_passed_over(tmp_path, capsys):
    folder = write_checkpoints(tmp_path, [5, 10, 15])
    truncate(folder, 15)
    delete_index(folder, 10)

    assert latest_complete(folder) == f"{folder}/model.ckpt-5"

    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{folder}/model.ckpt-15: cannot be read: ")
    assert second.startswith(f"{folder}/model.ckpt-10: no such checkpoint ")
    for line in (first, second):
        assert line.endswith(f"; {folder}/model.ckpt-5 is used instead")


def test_a_damaged_checkpoint_of_a_folder_that_is_read_only(
    tmp_path, capsys, monkeypatch
):
    """Who fine-tunes from a run may have no right to write there."""

    def write_text(path, text):
        raise PermissionError(13, "Permission denied", path)

    folder = write_checkpoints(tmp_path, [5, 10])
    truncate(folder, 10)
    monkeypatch.setattr(files, "write_text", write_text)

    for _ in range(2):
        assert find_checkpoint(folder) == f"{folder}/model.ckpt-5"

    # Once in a process.
    assert capsys.readouterr().out.count("is used instead") == 1


def test_what_a_training_saves_while_its_folder_is_read_stays_listed(
    tmp_path, monkeypatch
):
    """A checkpoint that the clock saved is gone with the next one."""
    folder = write_checkpoints(tmp_path, [5, 10, 15])
    find_problem = checkpoints._problem

    def save_meanwhile(prefix):
        if prefix.endswith("-15"):
            write_checkpoints(tmp_path, [20])
            write_list(folder, [f"{folder}/model.ckpt-{step}" for step in (5, 10, 20)])
            delete_index(folder, 15)
            delete_data(folder, 15)
        return find_problem(prefix)

    monkeypatch.setattr(checkpoints, "_problem", save_meanwhile)
    assert latest_complete(folder) == f"{folder}/model.ckpt-10"
    assert tf.train.latest_checkpoint(folder) == f"{folder}/model.ckpt-20"
    assert latest_complete(folder) == f"{folder}/model.ckpt-20"


def test_a_damaged_older_checkpoint_changes_nothing(tmp_path):
    folder = write_checkpoints(tmp_path, [5, 10, 15])
    truncate(folder, 10)
    before = (tmp_path / "checkpoint").read_bytes()

    assert latest_complete(folder) == f"{folder}/model.ckpt-15"
    assert (tmp_path / "checkpoint").read_bytes() == before


def test_after_the_repair_a_folder_can_still_be_moved(tmp_path, monkeypatch):
    for number, given in enumerate([str(tmp_path / "run"), "run"]):
        folder = write_checkpoints(tmp_path / "run", [5, 10])
        truncate(folder, 10)
        monkeypatch.chdir(tmp_path)
        assert latest_complete(given) == f"{given}/model.ckpt-5"
        moved = tmp_path / f"moved-{number}"
        shutil.move(folder, moved)

        assert latest_complete(str(moved)) == f"{moved}/model.ckpt-5"


def test_only_damaged_checkpoints_end_in_one_line(tmp_path):
    folder = write_checkpoints(tmp_path, [5, 10])
    truncate(folder, 5)
    delete_index(folder, 10)

    assert refusal(latest_complete, folder) == (
        f"{folder}: none of its 2 checkpoints is complete (no such checkpoint (its "
        ".index file is missing)); restore a copy or use a new folder"
    )


@pytest.mark.parametrize("content", ["", "model_checkpoint_path: ", "\x00\x01 damaged"])
def test_a_damaged_list_of_checkpoints_is_not_taken_for_a_new_folder(tmp_path, content):
    folder = write_checkpoints(tmp_path, [5])
    (tmp_path / "checkpoint").write_text(content)

    assert "checkpoint: cannot be read; write" in refusal(latest_complete, folder)


def listing(folder, *names):
    lines = [f'all_model_checkpoint_paths: "{name}"' for name in names]
    text = "\n".join([f'model_checkpoint_path: "{names[-1]}"', *lines, ""])
    (folder / "checkpoint").write_text(text)


@pytest.mark.parametrize(
    "name",
    [
        "../other/model.ckpt-9",
        "{other}/model.ckpt-9",
        "{folder}/../other/model.ckpt-9",
        "below/model.ckpt-9",
        "model.ckpt-*",
        "{other}/model.ckpt-[59]",
        "..",
        "/",
        "gs://bucket/model.ckpt-9",
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_list_that_names_files_outside_its_folder_is_refused(
    tmp_path, name, is_first
):
    """The Saver would delete those of the other folder, once they are old."""
    folder, other = tmp_path / "run", tmp_path / "other"
    write_checkpoints(folder, [5])
    for place in (other, folder / "below"):
        write_checkpoints(place, [9])
    name = name.format(folder=folder, other=other)
    listing(folder, *([name, "model.ckpt-5"] if is_first else ["model.ckpt-5", name]))
    before = sorted(tmp_path.rglob("*"))
    for call in (
        lambda: latest_complete(str(folder)),
        lambda: find_checkpoint(str(folder)),
        lambda: train_run(graph_config(), run_spec(folder)),
    ):
        message = refusal(call)
        assert message.startswith(f"{folder}/checkpoint: names ")
        assert "which is no checkpoint in this folder; write" in message
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_moved_is_opened_by_the_names_of_its_former_place(tmp_path):
    folder = write_checkpoints(tmp_path / "run", [5, 10])
    former = [f"{tmp_path}/former/model.ckpt-{step}" for step in (5, 10)]
    listing(tmp_path / "run", *former)
    assert latest_complete(folder) == f"{folder}/model.ckpt-10"
    # For the Estimator and for the Saver, which read the list themselves.
    state = tf.train.get_checkpoint_state(folder)
    steps = [f"{folder}/model.ckpt-5", f"{folder}/model.ckpt-10"]
    assert list(state.all_model_checkpoint_paths) == steps
    assert 'model_checkpoint_path: "model.ckpt-10"' in files.read_text(
        f"{folder}/checkpoint"
    )


def test_a_list_written_by_hand_as_the_message_says(tmp_path):
    folder = write_checkpoints(tmp_path, [5, 10])
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-5"\n')
    assert latest_complete(folder) == f"{folder}/model.ckpt-5"


def test_a_list_whose_newest_was_set_back_ends_there(tmp_path):
    """TPUEstimator restores what model_checkpoint_path names."""
    folder = write_checkpoints(tmp_path, [5, 10, 15])
    listed = tmp_path / "checkpoint"
    text = listed.read_text()
    for step in (5, 10, 15):
        first, *others = text.splitlines(keepends=True)
        listed.write_text("".join([first.replace("ckpt-15", f"ckpt-{step}"), *others]))
        assert latest_complete(folder) == f"{folder}/model.ckpt-{step}"
        assert tf.train.latest_checkpoint(folder) == f"{folder}/model.ckpt-{step}"
    listed.write_text(text.replace('paths: "model.ckpt-10"', 'paths: "model.ckpt-5"'))
    assert latest_complete(folder) == f"{folder}/model.ckpt-15"


def test_checkpoints_whose_list_was_removed_are_not_begun_anew(tmp_path, capsys):
    folder = write_checkpoints(tmp_path, [5, 10, 100])
    truncate(tmp_path, 100)
    (tmp_path / "checkpoint").unlink()
    assert latest_complete(folder) == f"{folder}/model.ckpt-10"
    out = capsys.readouterr().out
    assert f"{folder}/model.ckpt-10 is the newest one there" in out
    assert tf.train.latest_checkpoint(folder) == f"{folder}/model.ckpt-10"
    assert latest_complete(folder) == f"{folder}/model.ckpt-10"
    assert capsys.readouterr().out == ""


def test_a_first_checkpoint_that_was_cut_off_is_no_checkpoint(tmp_path, capsys):
    """A power failure, before it was listed."""
    folder = write_checkpoints(tmp_path, [5])
    (tmp_path / "checkpoint").unlink()
    truncate_index(tmp_path, 5)
    assert latest_complete(folder) is None
    assert "nothing is used instead" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["br[1]", "a*", "why?", "back\\slash"])
def test_a_folder_whose_checkpoints_tensorflow_cannot_read_is_named(tmp_path, name):
    """TensorFlow reads the name as a pattern, which does not match itself."""
    folder = tmp_path / "good"
    write_checkpoints(folder, [5])
    folder = folder.rename(tmp_path / name)
    sign = next(sign for sign in "[*?\\" if sign in name)
    message = f"TensorFlow takes {sign} in the name of a folder for a pattern"
    readers = (
        latest_complete,
        find_checkpoint,
        lambda path: CheckpointFile(f"{path}/m"),
    )
    for read in readers:
        refused = refusal(read, str(folder))
        assert f"{folder}" in refused
        assert f": {message}, and would not find" in refused
    # Nothing is written that nobody could read.
    with pytest.raises(UserError, match=re.escape(message)):
        write_converted_folder(str(tmp_path / f"new{name}"), None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_a_given_checkpoint_that_is_none_is_named(tmp_path):
    folder = write_checkpoints(tmp_path / "run", [5])
    empty = tmp_path / "empty"
    empty.mkdir()
    truncate(folder, 5)
    for path, problem in [
        (empty, "no complete checkpoint (model.ckpt-N.index)"),
        (tmp_path / "missing", "no such folder, and no checkpoint of that name (its"),
        (f"{folder}/model.ckpt-6", "no such folder, and no checkpoint of that name"),
        (f"{folder}/model.ckpt-5", "cannot be read: "),
        # As a shell completes names.
        (f"{folder}/model.ckpt-5.index", f"is a file of a checkpoint; give {folder}"),
        (data_file(folder, 5), f"is a file of a checkpoint; give {folder}/model.ckpt"),
    ]:
        message = refusal(find_checkpoint, str(path))
        assert message.startswith(f"{path}: {problem}")


@pytest.fixture
def read_whole(monkeypatch):
    """The prefixes that are read, in order."""
    prefixes, read = [], checkpoints._read_all

    def noted(prefix):
        prefixes.append(prefix)
        read(prefix)

    monkeypatch.setattr(checkpoints, "_read_all", noted)
    return prefixes


def test_a_checkpoint_is_read_whole_once(tmp_path, read_whole):
    folder = write_checkpoints(tmp_path, [1, 2])
    newest = f"{folder}/model.ckpt-2"
    prefixes = {
        latest_complete(folder),
        find_checkpoint(folder),
        find_checkpoint(newest),
    }
    assert prefixes == {newest}
    assert read_whole == [newest]
    older = f"{folder}/model.ckpt-1"
    assert find_checkpoint(older) == older
    assert read_whole == [newest, older]


@pytest.mark.parametrize("damage", [truncate, change_byte])
def test_a_checkpoint_that_changed_is_read_again(tmp_path, read_whole, damage):
    folder = write_checkpoints(tmp_path, [1, 2])
    newest = f"{folder}/model.ckpt-2"
    assert latest_complete(folder) == newest
    damage(folder, 2)
    assert latest_complete(folder) == f"{folder}/model.ckpt-1"
    with pytest.raises(UserError, match="model.ckpt-2: cannot be read"):
        find_checkpoint(newest)
    # Repaired, and so of another time.
    write_checkpoints(tmp_path, [2])
    assert find_checkpoint(newest) == newest
    assert read_whole.count(newest) == 4


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The checkpoint of a pre-trained model of two layers."""
    return write_weights(tmp_path_factory.mktemp("made"), tiny_model(num_layers=2))


def declared(head=MASKED_LM, **changes):
    """The variables of `pretrained`, or of a model that differs."""
    return declare(tiny_model(num_layers=2, **changes), head)


def vector(name, size, group="encoder layers"):
    return {name: Variable(name, (Dim("hidden", size),), TRUNCATED_NORMAL, group)}


def test_everything_but_slots_and_step_is_taken_over(pretrained):
    values = checkpoint_values(None, pretrained)

    report = plan_initialization(pretrained, declared())

    assert len(values) == 136
    assert len(report.restored) == 45
    assert not [name for name in report.restored if "adam" in name]
    assert "global_step" not in report.restored
    assert (report.fresh, report.dropped) == ([], [])
    assert report.lines("CKPT") == ["initialised 45 variables from CKPT"]


def test_slots_of_an_optimizer_that_is_gone_are_not_taken_over(tmp_path):
    slots = {"kernel_slot_vr": 1.0, "kernel_slot_vc": 1.0, "kernel_slot_v": 1.0}
    folder = write_checkpoints(tmp_path, [5], **slots)
    prefix = f"{folder}/model.ckpt-5"

    report = plan_initialization(prefix, vector("kernel", 200))

    assert (report.restored, report.fresh, report.dropped) == (["kernel"], [], [])
    message = refusal(check_resumable, prefix, ["kernel", "kernel/adam_m"])
    assert message.startswith(f"{prefix}: was trained with Adafactor, which this ver")
    assert "or give it as --init_checkpoint" in message and "\n" not in message


def test_a_shape_that_differs_is_named_with_both(pretrained):
    message = refusal(plan_initialization, pretrained, declared(vocab_size=50))

    assert message == (
        f"{pretrained}: variable bert/embeddings/word_embeddings has shape [48, 8], "
        "the model needs [50, 8]; use the gin file that the checkpoint was trained "
        "with"
    )


def test_a_head_for_other_labels_is_drawn_from_the_seed(tmp_path):
    three, five = (declare(tiny_model(), Head(pooler=True, labels=n)) for n in (3, 5))
    weights = {
        name: np.zeros(variable.shape, np.float32) for name, variable in three.items()
    }
    prefix = str(tmp_path / "model.ckpt-0")
    with CheckpointWriter(prefix) as writer:
        for name, value in weights.items():
            writer.add(name, value)

    assert plan_initialization(prefix, three).fresh == []
    layer = ["output_bias", "output_weights"]
    assert plan_initialization(prefix, five).fresh == layer
    assert plan_initialization(prefix, three, layer).fresh == layer


def test_a_missing_variable_is_named_unless_it_is_a_task_head(pretrained):
    assert plan_initialization(
        pretrained, declared(Head(pooler=True, labels=3))
    ).fresh == [
        "bert/pooler/dense/bias",
        "bert/pooler/dense/kernel",
        "output_bias",
        "output_weights",
    ]

    name = "bert/encoder/layer_2/output/dense/bias"
    more = declared() | vector(name, 16)
    message = refusal(plan_initialization, pretrained, more)
    assert message.startswith(f"{pretrained}: has no variable {name};")


def test_an_output_embedding_of_another_size_starts_anew(pretrained):
    report = plan_initialization(pretrained, declared(output_embedding_size=7))

    changed = [
        "cls/predictions/output_embedding",
        "cls/predictions/transform/LayerNorm/beta",
        "cls/predictions/transform/LayerNorm/gamma",
        "cls/predictions/transform/dense/bias",
        "cls/predictions/transform/dense/kernel",
    ]
    assert report.fresh == report.dropped == changed
    assert len(report.restored) == 45 - 5
    assert "cls/predictions/output_bias" in report.restored


def test_a_model_without_output_embedding_gets_one(tmp_path):
    folder = write_checkpoints(tmp_path, [5])
    model = declared()
    head = {name: v for name, v in model.items() if name.startswith("cls/")}

    model_variables = vector("kernel", 200) | head
    report = plan_initialization(f"{folder}/model.ckpt-5", model_variables)

    assert (report.restored, report.dropped) == (["kernel"], [])
    assert report.fresh == sorted(head)


def classifier(model):
    """A graph of three labels and features for it."""
    features = masked_lm_features()
    names = ("input_word_ids", "input_mask", "input_type_ids")
    labelled = {name: features[name] for name in names}
    labelled["label_ids"] = np.arange(8, dtype=np.int32) % 3
    task = Classification("three", ["a", "b", "c"], MASKING.sequence_length, 0.1)
    # Of frozen weights there are no slots: the embeddings' are looked at.
    frozen = tuple(name for name in shapes(model, NO_HEAD) if "/layer_" in name)
    config = graph_config(
        task=task, model=model, schedule=schedule(1, 1), frozen=frozen
    )
    return config, labelled


def without_slots(values):
    return {name: x for name, x in values.items() if "/adam_" not in name}


def test_fine_tuning_keeps_the_encoder_and_leaves_the_head_behind(pretrained, tmp_path):
    config, features = classifier(tiny_model(num_layers=2))
    spec = run_spec(tmp_path)._replace(init_checkpoint=pretrained)

    # The first update of a warm-up has rate 0: the checkpoint shows initial weights.
    variables = train_run(config, spec, constant_batches(features))

    source = checkpoint_values(None, pretrained)
    taken = sorted(name for name in without_slots(source) if name.startswith("bert/"))
    for name in taken:
        np.testing.assert_array_equal(variables[name], source[name])
    heads = {name for name in without_slots(variables)} - {*taken, "global_step"}
    assert heads == {
        "bert/pooler/dense/bias",
        "bert/pooler/dense/kernel",
        "output_bias",
        "output_weights",
    }
    # Drawn from the seed, with the model's deviation of 0.1.
    assert 0.07 < variables["bert/pooler/dense/kernel"].std() < 0.13
    assert variables["global_step"] == 1
    assert not np.array_equal(
        variables["bert/embeddings/word_embeddings/adam_m"],
        source["bert/embeddings/word_embeddings/adam_m"],
    )
    lines = "\n".join(said(spec))
    assert f"initialised 39 variables from {pretrained}" in lines
    assert (
        "drawn from the seed: bert/pooler/dense/bias, bert/pooler/dense/kernel, "
        "output_bias, output_weights"
    ) in lines
    assert "not used: cls/predictions/output_bias, cls/predictions/output_emb" in lines


@pytest.fixture(scope="module")
def shallower(pretrained, tmp_path_factory):
    """What a run of one layer and one step from `pretrained` saves, and what it says.

    The rate of its update is 0.
    """
    spec = run_spec(tmp_path_factory.mktemp("shallower"))
    spec = spec._replace(init_checkpoint=pretrained)
    config = graph_config(schedule=schedule(1, 1), frozen=BODY)
    return train_run(config, spec), said(spec)


def test_only_the_first_layers_can_be_kept(pretrained, shallower):
    variables, lines = shallower
    source = checkpoint_values(None, pretrained)
    for name in without_slots(variables):
        if name.startswith("bert/encoder/layer_0/"):
            np.testing.assert_array_equal(variables[name], source[name])
    assert not [name for name in variables if "layer_1" in name]
    assert any("not used: bert/encoder/layer_1/*" in line for line in lines)


def test_slots_start_from_zero_after_an_initial_checkpoint(shallower):
    variables, _ = shallower

    # One step from zero: m is (1 - beta1) times the gradient, v (1 - beta2) times its
    # square, whatever the pre-training had collected.
    name = "cls/predictions/output_bias"
    gradient = variables[f"{name}/adam_m"] / 0.1
    assert np.abs(gradient).max() > 1e-3
    np.testing.assert_allclose(
        variables[f"{name}/adam_v"], 1e-3 * gradient**2, rtol=1e-3
    )
    assert variables["global_step"] == 1


@pytest.fixture(scope="module")
def from_seed(tmp_path_factory):
    """Folder of a run of one step from initial weights of seed 9, and what it says.

    The rate of its update is 0.
    """
    spec = run_spec(tmp_path_factory.mktemp("from_seed"))
    config = graph_config(schedule=schedule(1, 1), frozen=BODY)
    train_run(with_training(config, seed=9), spec)
    return spec.model_dir, said(spec)


def test_the_folders_own_checkpoint_comes_before_the_initial_one(
    pretrained, from_seed, tmp_path
):
    folder = shutil.copytree(from_seed[0], tmp_path / "copy")
    config = graph_config(schedule=schedule(1, 1), frozen=BODY)
    first = checkpoint_values(folder)
    spec = run_spec(folder)._replace(init_checkpoint=pretrained)

    again = train_run(config, spec)
    longer = config._replace(schedule=schedule(2, 1))
    resumed = train_run(longer, spec)

    assert_equal_values(again, first)
    assert said(spec) == [
        f"{folder}: complete at step 1; nothing to train",
        f"resuming from {folder}/model.ckpt-1 at step 1, 8 examples seen",
        *said(spec)[2:],
    ]
    assert not any("initialised" in line for line in said(spec))
    for name in BODY:
        np.testing.assert_array_equal(resumed[name], first[name], err_msg=name)


def test_without_a_checkpoint_the_seed_decides(from_seed):
    folder, lines = from_seed
    variables = checkpoint_values(folder)

    assert lines[0] == "starting from initial weights"

    name = "bert/embeddings/word_embeddings"

    def table(build, tensors):
        return [build.embedding(name)]

    expected, other = (
        initial_weights(tiny_model(), table, initializer_seed=seed) for seed in (9, 10)
    )
    np.testing.assert_array_equal(variables[name], expected[name])
    assert not np.array_equal(variables[name], other[name])


def test_what_a_kill_left_half_saved_is_removed_at_the_next_start(tmp_path):
    """Also where nothing is left to train."""
    write_checkpoints(tmp_path, [1])
    for name in ("model.ckpt-3_temp", "model.ckpt-4_temp_0123abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-00000-of-00001.index").write_bytes(b"half")
    (tmp_path / "model.ckpt-notes_template.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "weights").write_text("kept")
    (tmp_path / "model.ckpt-5_temp").symlink_to(elsewhere)

    train_run(graph_config(schedule=schedule(1, 0)), run_spec(tmp_path))

    left = sorted(name for name in os.listdir(tmp_path) if "_temp" in name)
    assert left == ["model.ckpt-notes_template.txt"]
    assert (elsewhere / "weights").read_text() == "kept"


def test_data_without_an_index_is_removed_at_the_next_start(tmp_path):
    """A kill while an old checkpoint is removed, or while a new one is saved."""
    write_checkpoints(tmp_path, [1, 2])
    delete_index(str(tmp_path), 1)
    kept = [
        *(path.name for path in tmp_path.iterdir()),
        # Not of this run's names, or whole, or unknown.
        "model.ckpt-3.data",
        "model.ckpt-3.data-00000-of-00001.copy",
        "my.ckpt-3.data-00000-of-00001",
        "model.ckpt-last.data-00000-of-00001",
        "model.ckpt-7.index",
        "model.ckpt-7.data-00000-of-00001",
    ]
    orphans = [
        "model.ckpt-3.data-00000-of-00002",
        "model.ckpt-3.data-00001-of-00002",
        "model.ckpt-12.data-00000-of-00001",
    ]
    for name in (*kept[-6:], *orphans):
        (tmp_path / name).write_text("data")
    remove_unfinished(str(tmp_path))
    # Checkpoint 1 is listed: its index may come back from a copy.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    remove_unfinished(str(tmp_path / "none"))


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(tmp_path):
    config = graph_config(
        model=tiny_model(**SMALL),
        schedule=schedule(6, 0),
        frozen=BODY,
        save_checkpoints_steps=2,
    )
    spec = run_spec(tmp_path)
    straight = train_run(config, spec)
    largest = max(tmp_path.glob("model.ckpt-6.data-*"), key=os.path.getsize)
    os.truncate(largest, largest.stat().st_size // 2)

    again = train_run(config, spec)

    resumed = f"resuming from {tmp_path}/model.ckpt-4 at step 4, 32 examples seen"
    assert resumed in said(spec)
    assert_equal_values(again, straight)
