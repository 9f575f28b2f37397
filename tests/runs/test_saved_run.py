"""The selected checkpoint of a run: what is recorded, copied, opened and refused."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from decoupled.analyses.models import open_models
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.runs import saved_run
from decoupled.runs.saved_run import (
    Scores,
    keep_checkpoint,
    open_model,
    read_folder,
    read_scores,
    selected_checkpoint,
    write_scores,
)
from decoupled.training.checkpoints import latest_complete
from tests.analyses.tiny_runs import write_finetuned_run
from tests.exports.models import write_checkpoint
from tests.refusals import refusal


@pytest.fixture
def run(vocabulary, tmp_path):
    """A fine-tuned run at step 7."""
    return write_finetuned_run(tmp_path / "run", vocabulary)


def keep_older(run):
    """Makes a checkpoint of step 7, named 3, the best one; returns its prefix."""
    for file in pathlib.Path(run).glob("model.ckpt-7*"):
        shutil.copy(file, file.with_name(file.name.replace("-7", "-3")))
    keep_checkpoint(f"{run}/model.ckpt-3", f"{run}/best")
    return f"{run}/best/model.ckpt-3"


def test_a_folder_or_a_prefix_of_a_run(run, vocabulary):
    for path in (run, f"{run}/", f"{run}/model.ckpt-7"):
        opened = open_model(path)
        assert (opened.folder, opened.weights.path) == (run, f"{run}/model.ckpt-7")
        assert opened.description.task["name"] == "xnli"
        assert opened.vocabulary.fingerprint == vocabulary.fingerprint


def test_the_best_checkpoint_counts_for_everyone(run):
    best = keep_older(run)
    for path in (run, f"{run}/best", best):
        opened = open_model(path)
        assert (opened.folder, opened.weights.path) == (run, best)
    assert open_model(f"{run}/model.ckpt-7").weights.path == f"{run}/model.ckpt-7"
    assert open_model(run, verify=False).weights.path == best
    assert [model.weights.path for model in open_models([run])] == [best]


def test_a_checkpoint_of_another_run_is_not_read_with_these_settings(
    run, vocabulary, tmp_path
):
    other = write_finetuned_run(tmp_path / "other", vocabulary, activation="relu")
    for prefix in (f"{other}/model.ckpt-7", keep_older(other)):
        with pytest.raises(UserError, match="is of another run, whose model differs"):
            open_model(run, prefix)
    copy = shutil.copytree(run, tmp_path / "copy")
    assert open_model(run, f"{copy}/model.ckpt-7").config == open_model(run).config


def test_a_folder_names_its_selected_checkpoint(run, tmp_path):
    best = keep_older(run)
    copy = str(shutil.copytree(run, tmp_path / "copy"))
    for verify in (True, False):
        assert open_model(run, "best", verify=verify).weights.path == best
        opened = open_model(run, copy, verify=verify)
        assert opened.weights.path == f"{copy}/best/model.ckpt-3"


@pytest.mark.parametrize(
    "task, is_same",
    [
        ({"name": "xnli", "labels": ["yes", "no"]}, False),
        ({"name": "xnli", "kind": "tagging", "labels": ["no", "yes"]}, False),
        ({"name": "ours", "kind": "classification", "labels": ["no", "yes"]}, True),
        (None, True),
    ],
)
def test_a_checkpoint_of_another_task_does_not_get_these_labels(
    run, tmp_path, task, is_same
):
    other = str(shutil.copytree(run, tmp_path / "other"))
    change_config(other, lambda described: described.update(task=task))
    for verify in (True, False):
        if is_same:
            open_model(run, f"{other}/model.ckpt-7", verify=verify)
            continue
        with pytest.raises(UserError, match="is of another run, whose task differs"):
            open_model(run, f"{other}/model.ckpt-7", verify=verify)


def test_a_run_may_be_called_best(vocabulary, tmp_path):
    folder = write_finetuned_run(tmp_path / "best", vocabulary)
    for path in (folder, f"{folder}/model.ckpt-7"):
        assert open_model(path).folder == folder


def test_a_run_that_is_called_best_is_not_of_the_run_around_it(vocabulary, tmp_path):
    folder = write_finetuned_run(tmp_path / "run", vocabulary)
    inner = write_finetuned_run(tmp_path / "run" / "best", vocabulary)
    assert open_model(folder).weights.path == f"{folder}/model.ckpt-7"
    assert open_model(inner).weights.path == f"{inner}/model.ckpt-7"
    with pytest.raises(UserError, match="best: holds another run, where the selected"):
        keep_checkpoint(f"{folder}/model.ckpt-7", inner)


def test_a_file_of_a_checkpoint_is_no_prefix(run):
    name = f"{run}/model.ckpt-7"
    message = refusal(lambda p: open_model(run, p, verify=False), f"{name}.index")
    assert message.endswith(f"is a file of a checkpoint; give {name}")


def test_what_is_no_run_is_called_so(tmp_path):
    problem = (
        f"{tmp_path}: no config.json; is it a folder that pretrain or finetune wrote?"
    )
    assert refusal(open_model, str(tmp_path)) == problem
    for missing in (f"{tmp_path}/model.ckpt-1", f"{tmp_path}/no_such_run"):
        problem = f"{missing}: no such folder, and no checkpoint of that name"
        assert refusal(open_model, missing).startswith(problem)


def test_a_run_without_checkpoints_is_refused(run):
    for path in [
        *pathlib.Path(run).glob("model.ckpt*"),
        pathlib.Path(run, "checkpoint"),
    ]:
        path.unlink()
    assert refusal(open_model, run).startswith(f"{run}: no complete checkpoint")


def test_the_runs_of_a_folder_are_named_before_one_is_chosen(run, tmp_path):
    folder = tmp_path / "several"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("*ckpt*", "checkpoint"))
    rate = folder / "learning_rate_0.001"
    for seed in (0, 1):
        shutil.copytree(run, rate / f"seed_{seed}")
    problem = (
        f"{folder}: its runs are not complete, so that no best one is chosen; run "
        f"finetune again to go on, or give one of them, as {rate}/seed_0"
    )
    for verify in (True, False):
        assert refusal(lambda p, v=verify: open_model(p, verify=v), f"{folder}/") == (
            problem
        )
    assert open_model(f"{rate}/seed_0").folder == f"{rate}/seed_0"
    keep_checkpoint(f"{rate}/seed_1/model.ckpt-7", f"{folder}/best")
    assert open_model(str(folder)).weights.path == f"{folder}/best/model.ckpt-7"


def change_config(run, change):
    path = pathlib.Path(run) / "config.json"
    described = json.loads(path.read_text())
    change(described)
    path.write_text(json.dumps(described))


def test_the_vocabulary_must_be_the_models_own(run, vocabulary):
    change_config(run, lambda d: d["vocabulary"].update(fingerprint="ab" * 32))
    problem = (
        f"{run}/sentencepiece.model: is not the vocabulary that the model was trained "
        f"with (fingerprint {vocabulary.fingerprint}, config.json says {'ab' * 32})"
    )
    assert refusal(read_folder, run) == refusal(open_model, run) == problem


def test_every_piece_must_have_its_row(run):
    change_config(run, lambda d: d["model"].update(vocab_size=40))
    assert refusal(read_folder, run) == (
        f"{run}/sentencepiece.model: 48 pieces, the model has embeddings for 40; it is "
        "another vocabulary"
    )


def save(folder, step):
    """A checkpoint with nothing but its step; returns its prefix."""
    return write_checkpoint(f"{folder}/model.ckpt", {}, step)


def test_scores_come_back_with_their_best(tmp_path):
    assert read_scores(str(tmp_path)) == Scores({}, {}, False)
    assert read_scores(str(tmp_path)).best is None
    by_step = {20: {"f1": 50.0}, 10: {"f1": 60.0}, 30: {"f1": 60.0}}
    headline = {step: values["f1"] for step, values in by_step.items()}
    write_scores(str(tmp_path), Scores(by_step, headline, True))
    scores = read_scores(str(tmp_path))
    assert scores == Scores(by_step, headline, True)
    # Of equally good steps the first.
    assert (scores.best_step, scores.best) == (10, 60.0)


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "dev.json").write_text('{"evaluations": [{"global_step": 1}]}')
    with pytest.raises(UserError, match=r"dev\.json: not scores by step"):
        read_scores(str(tmp_path))


def test_the_newest_checkpoint_counts_until_one_is_kept(tmp_path):
    first, best = save(tmp_path, 10), tmp_path / "best"
    save(tmp_path, 20)
    assert selected_checkpoint(str(tmp_path)).step == 20
    keep_checkpoint(first, str(best))
    choice = selected_checkpoint(str(tmp_path))
    assert choice == (str(best), f"{best}/model.ckpt-10", 10)
    # The run's own saver goes on from its newest one.
    assert latest_complete(str(tmp_path)) == f"{tmp_path}/model.ckpt-20"


def test_a_best_checkpoint_that_is_gone_is_not_replaced_by_the_newest(tmp_path):
    for step in (10, 20):
        save(tmp_path, step)
    headline = {10: 60.0, 20: 50.0}
    by_step = {step: {"f1": score} for step, score in headline.items()}
    write_scores(str(tmp_path), Scores(by_step, headline, True))
    message = refusal(selected_checkpoint, str(tmp_path))
    assert message.startswith(
        f"{tmp_path}/best: is gone, which had the checkpoint of st"
    )
    # The best one may be the newest; a run that was killed goes on.
    write_scores(str(tmp_path), Scores(by_step, {10: 50.0, 20: 60.0}, True))
    assert selected_checkpoint(str(tmp_path)).step == 20
    write_scores(str(tmp_path), Scores(by_step, headline, False))
    assert selected_checkpoint(str(tmp_path)).step == 20


def test_every_caller_is_told_that_the_best_checkpoint_is_gone(run):
    keep_older(run)
    headline = {3: 60.0, 7: 50.0}
    by_step = {step: {"accuracy": score} for step, score in headline.items()}
    write_scores(run, Scores(by_step, headline, True))
    shutil.rmtree(f"{run}/best")
    message = refusal(open_model, run)
    assert message.startswith(f"{run}/best: is gone, which had the checkpoint of step")
    assert refusal(lambda path: open_model(path, verify=False), run) == message


def test_no_file_is_removed_through_a_link(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "weights").write_text("kept")
    (tmp_path / "best").symlink_to(other)
    with pytest.raises(UserError, match="best: is a link, and files of another folder"):
        keep_checkpoint(save(tmp_path, 10), str(tmp_path / "best"))
    (tmp_path / "best").unlink()
    keep_checkpoint(save(tmp_path, 10), str(tmp_path / "best"))
    (tmp_path / "best" / "below").symlink_to(other)
    keep_checkpoint(save(tmp_path, 20), str(tmp_path / "best"))
    assert [path.name for path in other.iterdir()] == ["weights"]


def test_only_the_last_one_is_kept(tmp_path):
    for step in (10, 20):
        keep_checkpoint(save(tmp_path, step), str(tmp_path / "best"))
    keep_checkpoint(save(tmp_path, 20), str(tmp_path / "best"))
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == [
        "checkpoint",
        "model.ckpt-20.data-00000-of-00001",
        "model.ckpt-20.index",
    ]
    assert selected_checkpoint(str(tmp_path)).step == 20


def test_slots_are_left_out_and_weights_are_equal(tmp_path):
    values = {
        "bert/a": np.array([[1.5, -2.0]], np.float32),
        "output_bias": np.array([0.25], np.float32),
        "bert/a/adam_m": np.ones([1, 2], np.float32),
        "bert/a/adam_v": np.ones([1, 2], np.float32),
        "bert/a_slot_vr": np.array([3.0], np.float32),
    }
    prefix = write_checkpoint(f"{tmp_path}/model.ckpt", values, 20)
    keep_checkpoint(prefix, str(tmp_path / "best"))
    kept = tf.train.load_checkpoint(f"{tmp_path}/best/model.ckpt-20")
    names = set(kept.get_variable_to_shape_map())
    assert names == {"bert/a", "output_bias", "global_step"}
    for name in ("bert/a", "output_bias"):
        np.testing.assert_array_equal(kept.get_tensor(name), values[name])
    assert kept.get_tensor("global_step") == 20


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    prefix = save(tmp_path, 10)
    (tmp_path / "best/model.ckpt-10.index").mkdir(parents=True)
    message = refusal(keep_checkpoint, prefix, str(tmp_path / "best"))
    assert "best/model.ckpt-10: cannot be saved" in message


@pytest.mark.parametrize("killed_at", ["copy", "list"])
def test_a_kill_leaves_the_one_before_in_use(tmp_path, monkeypatch, killed_at):
    keep_checkpoint(save(tmp_path, 10), str(tmp_path / "best"))
    second = save(tmp_path, 20)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if killed_at == "copy":
            patch.setattr(saved_run, "copy_without_slots", killed)
        else:
            patch.setattr("decoupled.core.files.write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            keep_checkpoint(second, str(tmp_path / "best"))
    assert selected_checkpoint(str(tmp_path)).step == 10

    keep_checkpoint(second, str(tmp_path / "best"))
    assert selected_checkpoint(str(tmp_path)).step == 20
    assert len(list((tmp_path / "best").iterdir())) == 3


def test_without_checkpoints_there_is_nothing_to_choose(tmp_path):
    with pytest.raises(UserError, match="no complete checkpoint"):
        selected_checkpoint(str(tmp_path))
