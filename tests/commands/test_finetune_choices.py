"""Fine-tuning chooses checkpoints and learning rates on English dev, averages seeds.

On a task in XTREME's format whose files the test writes.
"""

import contextlib
import csv
import dataclasses
import json
import os
import re
import shutil
import statistics
import zlib
from unittest import mock

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from decoupled.analyses.models import layer_vectors
from decoupled.commands.finetune import run_finetuning
from decoupled.configs import FinetuningConfig, MeshConfig
from decoupled.configs.finetuning import FinetuneConfig
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.exports.interop.huggingface import to_huggingface
from decoupled.exports.served_task import check_exportable, read_task
from decoupled.runs.evaluation import AnsweredFile
from decoupled.runs.saved_run import keep_checkpoint, selected_checkpoint
from decoupled.tasks.classification import ClassificationTask, LabelAnswer
from decoupled.xtreme.scoring import score
from tests.analyses.sentences import open_model, retrieval
from tests.command_line import decoupled
from tests.helpers import adamw, tiny_training
from tests.pretrained import make_pretrained
from tests.training.runs import ONE_DEVICE

# They are drawn in tests/commands/test_finetune.py and tests/studies.
pytestmark = pytest.mark.usefixtures("empty_pictures")
FINETUNING = FinetuningConfig(num_epochs=2.0, max_sequence_length=12)
# 24 pairs, 2 epochs, batches of 8.
STEPS = 6
WORDS = {"en": "record word text kept".split(), "sw": "rekodi neno lugha hapa".split()}


def pairs(language, copies=1):
    """Every word beside each of three; the second word of a pair gives its label."""
    labels = ("entailment", "contradiction", "neutral")
    words = WORDS[language]
    lines = [
        f"{first}\t{second}\t{label}\n"
        for first in words
        for second, label in zip(words, labels, strict=False)
    ]
    return "".join(lines * copies)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices")
    make_pretrained(folder / "made", num_layers=1).rename(folder / "pretrained")
    task = folder / "data" / "xnli"
    task.mkdir(parents=True)
    (task / "train-en.tsv").write_text(pairs("en", copies=2))
    for split in ("dev", "test"):
        for language in WORDS:
            (task / f"{split}-{language}.tsv").write_text(pairs(language))
    return folder


def tune(
    folder,
    out,
    mode="train_and_evaluate",
    *,
    task="xnli",
    data="data",
    num_runs=1,
    splits=("dev", "test"),
    mesh=ONE_DEVICE,
    **changes,
):
    """`changes` are fields of FinetuningConfig, and some of TrainingConfig."""
    training = {
        name: changes.pop(name)
        for name in ("eval_every_steps", "keep_checkpoint_max", "seed")
        if name in changes
    }
    config = FinetuneConfig(
        dataclasses.replace(FINETUNING, **changes),
        mesh,
        # The pooler and the classifier alone are trained, in graphs of half the size.
        adamw(learning_rate=5e-3, rates={"bert/e*": 0}),
        tiny_training(**training),
    )
    run_finetuning(
        config, task, str(folder / data), str(folder / "pretrained"), str(out),
        mode, num_runs, str(folder / "features"), splits=splits,
    )  # fmt: skip


def read(path):
    return json.loads(path.read_text())


HEAD = "bert/pooler/dense/kernel"
GRID = dict(learning_rates=(1e-6, 5e-3), num_runs=2)


@contextlib.contextmanager
def assumed_answers():
    """Texts, seed and rate of a run decide its answers; no model computes them."""

    def answer(network, run, batch_size, data, names, checkpoint):
        name = re.search(r"(learning_rate_[^/]+/seed_\d+)?$", run.model_dir)[0]
        labels = data.task.labels
        for split, language in names:
            examples = data.examples(split, language)
            drawn = [zlib.crc32(f"{name} {e.texts}".encode()) for e in examples]
            answers = [LabelAnswer(labels[n % len(labels)], 0.5) for n in drawn]
            yield AnsweredFile(split, language, examples, answers)

    with mock.patch("decoupled.runs.finetuning_run.answer_languages", answer):
        yield


@pytest.fixture(scope="module")
def grid(folder):
    """Two rates, and two seeds of the better one."""
    with assumed_answers():
        tune(folder, folder / "grid", **GRID)
    return folder / "grid"


@pytest.fixture(autouse=True)
def answers_of_the_grid(request):
    """Evaluated again, it has the same answers."""
    is_grid = "grid" in request.fixturenames
    with assumed_answers() if is_grid else contextlib.nullcontext():
        yield


def test_the_rate_that_is_best_on_english_dev_is_repeated(grid):
    results = read(grid / "results.json")
    tried = {(run["learning_rate"], run["seed"]) for run in results["runs"]}
    assert len(results["runs"]) == len(tried) == 3
    first = {r["learning_rate"]: r["english_dev"] for r in results["runs"][:2]}
    assert results["learning_rate"] == max(first, key=first.get)
    assert tried - {(rate, 3) for rate in first} == {(results["learning_rate"], 4)}
    seeds = {
        run["seed"]: run["english_dev"]
        for run in results["runs"]
        if run["learning_rate"] == results["learning_rate"]
    }
    assert results["seed"] == max(seeds, key=seeds.get) and len({*seeds.values()}) == 2
    for run in results["runs"]:
        path = grid / f"learning_rate_{run['learning_rate']:g}" / f"seed_{run['seed']}"
        assert selected_checkpoint(str(path)).step == run["global_step"] == STEPS
        assert read(path / "dev.json")["complete"]


def test_every_seed_draws_a_head_of_its_own(grid):
    """The chosen rate is 1e-6, which leaves the weights as they were drawn."""
    assert read(grid / "results.json")["learning_rate"] == 1e-6
    of_rates = "1e-06/seed_3", "0.005/seed_3", "1e-06/seed_4"
    drawn, trained, other = (
        tf.train.load_checkpoint(f"{grid}/learning_rate_{run}").get_tensor(HEAD)
        for run in of_rates
    )
    assert np.abs(drawn - other).max() > 0.01
    assert np.corrcoef(drawn.ravel(), trained.ravel())[0, 1] > 0.5


def test_results_are_means_and_spreads_over_seeds(grid):
    results = read(grid / "results.json")
    rate = f"learning_rate_{results['learning_rate']:g}"
    seeds = [read(grid / rate / f"seed_{s}" / "results.json") for s in (3, 4)]
    for split in ("dev", "test"):
        for language in ("en", "sw"):
            values = [seed[split][language]["accuracy"] for seed in seeds]
            assert results[split][language] == {
                "accuracy": pytest.approx(statistics.fmean(values)),
                "accuracy_spread": pytest.approx(statistics.stdev(values)),
                "trivial_accuracy": pytest.approx(100 / 3),
                "examples": 12,
            }
    # What chose the run is what its evaluation finds again.
    for seed in seeds:
        [run] = [run for run in results["runs"] if run["seed"] == seed["seed"]
                 and run["learning_rate"] == seed["learning_rate"]]  # fmt: skip
        assert run["english_dev"] == seed["dev"]["en"]["accuracy"]


def test_every_run_of_the_chosen_rate_keeps_its_predictions(grid):
    results = read(grid / "results.json")
    rate = grid / f"learning_rate_{results['learning_rate']:g}"
    written = {
        seed: (rate / f"seed_{seed}/predictions/xnli/test-sw.tsv").read_text()
        for seed in (3, 4)
    }
    best = (grid / "predictions/xnli/test-sw.tsv").read_text()
    assert best == written[results["seed"]]


def test_the_best_checkpoint_is_what_is_exported(grid):
    results = read(grid / "results.json")
    trained = open_model(str(grid))
    assert read_task(trained).labels == ["contradiction", "entailment", "neutral"]
    expected = tf.train.load_checkpoint(str(grid / results["checkpoint"]))
    np.testing.assert_array_equal(
        trained.weights["output_weights"], expected.get_tensor("output_weights")
    )


def test_complete_runs_are_not_repeated(grid, folder, capsys):
    before = {path: path.stat().st_mtime_ns for path in grid.rglob("*ckpt*")}
    results = read(grid / "results.json")
    tune(folder, grid, **GRID)
    printed = capsys.readouterr().out
    assert printed.count(f"complete at step {STEPS}; nothing to train") == 3
    assert printed.count(f"of step {STEPS} already, reused") == 2
    assert {path: path.stat().st_mtime_ns for path in grid.rglob("*ckpt*")} == before
    assert read(grid / "results.json") == results


def test_a_run_is_not_said_to_have_the_first_seed_of_a_command(
    grid, folder, tmp_path, capsys
):
    copy = shutil.copytree(grid, tmp_path / "grid")
    rate = read(copy / "results.json")["learning_rate"]
    capsys.readouterr()
    tune(folder, copy, "train", learning_rates=(rate,), seed=4)
    printed = capsys.readouterr().out
    assert "seed_4: complete at step" in printed and "seed was" not in printed


def test_results_follow_the_files_and_the_best_run(grid, folder, tmp_path, capsys):
    copy = tmp_path / "grid"
    shutil.copytree(grid, copy)
    results, answers = read(copy / "results.json"), copy / "predictions/xnli/dev-en.tsv"
    right = answers.read_text()
    # As if another seed had been the best when answers were written.
    (copy / "results.json").write_text(json.dumps(results | {"seed": 5}))
    answers.write_text("neutral\n")
    capsys.readouterr()
    tune(folder, copy, **GRID)
    assert capsys.readouterr().out.count(f"of step {STEPS} already, reused") == 1
    assert (read(copy / "results.json"), answers.read_text()) == (results, right)

    shutil.copytree(folder / "data", folder / "fewer")
    (folder / "fewer/xnli/test-sw.tsv").unlink()
    tune(folder, copy, data="fewer", **GRID)
    assert "reused" not in capsys.readouterr().out
    assert list(read(copy / "results.json")["test"]) == ["en"]


def copy_of(folder, grid, tmp_path):
    """A copy of the runs and of their data, and a function that goes on in them."""
    shutil.copytree(grid, tmp_path / "grid")
    shutil.copytree(folder / "data", tmp_path / "data")

    def go_on(mode="train_and_evaluate"):
        tune(folder, tmp_path / "grid", mode, data=tmp_path / "data", **GRID)

    return tmp_path / "grid", tmp_path / "data" / "xnli", go_on


def answers(folder):
    """Name -> content of the predictions in a folder."""
    return {path.name: path.read_text() for path in folder.glob("predictions/xnli/*")}


def test_answers_results_and_best_are_of_the_same_run(grid, folder, tmp_path, capsys):
    copy = shutil.copytree(grid, tmp_path / "grid")
    [other] = copy.glob("learning_rate_0.005/seed_*")
    results = read(copy / "results.json")
    best = copy / f"learning_rate_{results['learning_rate']}/seed_{results['seed']}"
    assert answers(best) == answers(copy) != answers(other)

    def is_of(run):
        checkpoint = read(copy / "chosen.json")["checkpoint"]
        return (copy / checkpoint).is_relative_to(run)

    # Predictions of another run, after which results.json is that of the best again.
    tune(folder, copy, "predict", learning_rates=(5e-3,))
    assert len(answers(copy)) == 4 and answers(copy) != answers(best)
    assert is_of(other)
    capsys.readouterr()
    tune(folder, copy, **GRID)
    assert "best: is now a copy of learning_rate_1e-06" in capsys.readouterr().out
    assert answers(copy) == answers(best) and is_of(best)
    # An evaluation of another run, and of some of the files.
    tune(folder, copy, "eval", splits=("dev",), learning_rates=(5e-3,))
    assert answers(copy) == answers(other)
    assert answers(copy).keys() == {"dev-en.tsv", "dev-sw.tsv"}
    assert is_of(other)
    made_from = read(copy / "results.json")["made_from"]
    assert made_from["checkpoint"] == read(copy / "chosen.json")["checkpoint_sha256"]


@pytest.mark.parametrize("damage", ["killed", "gone", "torn", "of another run"])
def test_best_is_copied_again_if_it_is_not_whole_or_another(
    grid, folder, tmp_path, capsys, damage
):
    copy, best = shutil.copytree(grid, tmp_path / "grid"), tmp_path / "grid/best"
    chosen = read(copy / "chosen.json")
    expected = tf.train.load_checkpoint(str(copy / chosen["checkpoint"]))

    def copy_and_kill(*arguments):
        keep_checkpoint(*arguments)
        raise KeyboardInterrupt

    if damage == "killed":
        with (
            mock.patch("decoupled.runs.finetuning.keep_checkpoint", copy_and_kill),
            pytest.raises(KeyboardInterrupt),
        ):
            tune(folder, copy, "predict", learning_rates=(5e-3,))
    elif damage == "gone":
        shutil.rmtree(best)
    elif damage == "torn":
        [data] = best.glob("*.data-*")
        data.write_bytes(data.read_bytes()[:-1])
    else:
        [other] = copy.glob("learning_rate_0.005/seed_*/model.ckpt-*.index")
        keep_checkpoint(str(other.with_suffix("")), str(best))
    capsys.readouterr()
    tune(folder, copy, **GRID)
    weights = open_model(str(copy)).weights["output_weights"]
    np.testing.assert_array_equal(weights, expected.get_tensor("output_weights"))
    assert read(copy / "chosen.json") == chosen
    line = f"{best}: is now a copy of {chosen['checkpoint']}\n"
    assert line in capsys.readouterr().out


def test_a_best_of_an_earlier_version_is_kept(grid, folder, tmp_path, capsys):
    copy = shutil.copytree(grid, tmp_path / "grid")
    chosen = read(copy / "chosen.json")
    del chosen["copy_sha256"]
    (copy / "chosen.json").write_text(json.dumps(chosen))
    tune(folder, copy, **GRID)
    assert "is now a copy" not in capsys.readouterr().out


@pytest.mark.parametrize("killed", [False, True])
def test_answers_to_other_files_are_written_again(
    grid, folder, tmp_path, monkeypatch, killed
):
    copy, data, go_on = copy_of(folder, grid, tmp_path)
    before, test = answers(copy), data / "test-sw.tsv"
    text, write = test.read_text(), ClassificationTask.write

    def write_or_kill(task, path, *arguments):
        if killed and path.endswith("/test-sw.tsv"):
            raise KeyboardInterrupt
        write(task, path, *arguments)

    test.write_text("neno\thapa\tneutral\n")
    with monkeypatch.context() as patch:
        patch.setattr(ClassificationTask, "write", write_or_kill)
        with pytest.raises(KeyboardInterrupt) if killed else contextlib.nullcontext():
            go_on("predict")
    assert answers(copy) != before
    test.write_text(text)
    go_on()
    assert answers(copy) == before


def test_answers_of_unknown_files_are_reused(grid, folder, tmp_path, capsys):
    """Of an earlier version."""
    copy, _, go_on = copy_of(folder, grid, tmp_path)
    for path in copy.rglob("predictions.json"):
        known = {name: read(path)[name] for name in ("checkpoint", "settings")}
        del known["settings"]["MeshConfig.slice_dtype"]
        path.write_text(json.dumps(known))
    capsys.readouterr()
    go_on()
    assert capsys.readouterr().out.count(f"of step {STEPS} already, reused") == 2


def test_a_changed_test_file_is_evaluated_again(grid, folder, tmp_path, capsys):
    copy, data, go_on = copy_of(folder, grid, tmp_path)
    before = read(copy / "results.json")["test"]
    # The same size and the same time of the last change.
    path = data / "test-sw.tsv"
    stamp, lines = path.stat().st_mtime_ns, path.read_text().splitlines(keepends=True)
    path.write_text("".join(reversed(lines)))
    os.utime(path, ns=(stamp, stamp))
    answers = (copy / "predictions/xnli/test-sw.tsv").read_text().splitlines()
    capsys.readouterr()
    go_on()
    printed = capsys.readouterr().out
    assert printed.count("evaluated again: xnli/test-sw.tsv has changed\n") == 2
    assert "reused" not in printed and "best and the newest" not in printed
    reversed_answers = (copy / "predictions/xnli/test-sw.tsv").read_text().splitlines()
    assert reversed_answers == answers[::-1]
    assert read(copy / "results.json")["test"] == before
    go_on()
    assert capsys.readouterr().out.count("reused") == 2


def test_a_changed_dev_file_compares_the_runs_again(grid, folder, tmp_path, capsys):
    copy, data, go_on = copy_of(folder, grid, tmp_path)
    before = read(copy / "results.json")
    path = data / "dev-en.tsv"
    # So that the score is another one, whatever the model says.
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    path.write_text("".join(f"{a}\t{b}\tneutral\n" for a, b, _ in rows))
    capsys.readouterr()
    go_on("eval")
    assert capsys.readouterr().out.count(
        "its checkpoint was selected before: xnli/dev-en.tsv has changed; "
        "--mode=train_and_evaluate compares again"
    ) == len(read(copy / "results.json")["seeds"])
    go_on()
    printed = capsys.readouterr().out
    results = read(copy / "results.json")
    # Another rate may be the best now; its second seed is trained anew.
    again = 2 + (results["learning_rate"] == before["learning_rate"])
    assert printed.count("dev.json: xnli/dev-en.tsv has changed; the best") == again
    for run in results["runs"]:
        place = f"learning_rate_{run['learning_rate']:g}/seed_{run['seed']}"
        dev = read(copy / place / "dev.json")
        assert dev["complete"] and run["english_dev"] == max(
            row["headline"] for row in dev["evaluations"]
        )
    first, earlier = results["runs"][1], before["runs"][1]
    assert first["learning_rate"] == earlier["learning_rate"]
    assert first["english_dev"] != earlier["english_dev"]
    go_on()
    assert "has changed" not in capsys.readouterr().out


def test_a_changed_training_file_is_refused_in_words(grid, folder, tmp_path):
    copy, data, go_on = copy_of(folder, grid, tmp_path)
    (data / "train-en.tsv").write_text(pairs("en", copies=3))
    with pytest.raises(UserError) as caught:
        go_on()
    assert str(caught.value) == (
        f"{copy}: holds another model: "
        f"{data}/train-en.tsv is not what the run began with; use its settings and "
        "files to go on, or another --model_dir"
    )


def test_answers_that_are_gone_are_written_again(grid, folder, tmp_path, capsys):
    copy, _, go_on = copy_of(folder, grid, tmp_path)
    answers = copy / "predictions/xnli/test-sw.tsv"
    text = answers.read_text()
    answers.unlink()
    go_on()
    assert answers.read_text() == text
    assert capsys.readouterr().out.count("reused") == 1


def test_results_without_scores_are_written_again(grid, folder, tmp_path, capsys):
    copy, _, go_on = copy_of(folder, grid, tmp_path)
    results = read(copy / "results.json")
    best = copy / results["checkpoint"]
    damaged = best.parent / "results.json"
    whole = read(damaged)
    damaged.write_text(json.dumps(whole | {"test": None}))
    capsys.readouterr()
    go_on()
    line = f"{damaged}: evaluated again: it lacks the scores of dev or test files\n"
    assert line in capsys.readouterr().out
    assert read(damaged) == whole and read(copy / "results.json") == results


def test_a_mistake_in_the_last_file_leaves_the_results_as_they_were(grid, folder):
    shutil.copytree(folder / "data", folder / "broken")
    (folder / "broken/xnli/test-sw.tsv").write_text("neno\tneutral\tneno\tneno\n")
    before = (grid / "results.json").read_text()
    with pytest.raises(UserError, match=r"test-sw\.tsv:1: 4 columns"):
        tune(folder, grid, "eval", data="broken", **GRID)
    assert (grid / "results.json").read_text() == before


def test_a_folder_of_several_runs_takes_another_seed_and_no_other_setting(grid, folder):
    """It keeps its layout, even for a single run."""
    with pytest.raises(UserError, match="data.num_epochs is 2.0, not 3.0"):
        tune(folder, grid, **GRID, num_epochs=3.0)
    tune(folder, grid, "predict", learning_rates=(1e-6,))
    assert not list(grid.glob("model.ckpt*"))


ANSWERING = "decoupled.runs.finetuning_run.answer_languages"


def answer_trivially(network, run, batch_size, data, names, checkpoint):
    for split, language in names:
        examples = data.examples(split, language)
        trivial = data.task.trivial_answers(examples)
        yield AnsweredFile(split, language, examples, trivial)


@pytest.fixture
def trivial_answers(monkeypatch):
    """All answers are the trivial ones; no model computes them."""
    monkeypatch.setattr(ANSWERING, answer_trivially)


def scores_in_turn(planned):
    """Replaces the accuracy of each evaluation in turn; then it is 50."""

    def scored(*_):
        return {"accuracy": planned.pop(0) if planned else 50.0}

    return mock.patch.object(ClassificationTask, "score", scored)


@pytest.fixture
def dev_scores(trivial_answers):
    """The scores of the next evaluations."""
    planned = []
    with scores_in_turn(planned):
        yield planned


SELECTING = dict(eval_every_steps=4, keep_checkpoint_max=1)


def kill(*_):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def two_compared(folder):
    """A run of two checkpoints that was killed after the copy of the first, before the
    record that would spare its evaluation. It was the better one on English dev."""
    run = folder / "two_compared"
    with mock.patch(ANSWERING, answer_trivially):
        with (
            mock.patch("decoupled.runs.finetuning_run.write_scores", kill),
            pytest.raises(KeyboardInterrupt),
        ):
            tune(folder, run, "train", **SELECTING)
        assert selected_checkpoint(str(run)).step == 4
        assert not (run / "dev.json").exists()
        with scores_in_turn([90.0, 80.0]):
            tune(folder, run, "train", **SELECTING)
    return run


@pytest.fixture
def selected(two_compared, tmp_path):
    """A copy of it."""
    return shutil.copytree(two_compared, tmp_path / "run")


def test_the_best_checkpoint_outlives_later_ones_and_a_kill(
    folder, selected, trivial_answers
):
    assert [path.name for path in selected.glob("model.ckpt*.index")] == [
        f"model.ckpt-{STEPS}.index"
    ]
    dev = read(selected / "dev.json")
    assert [(row["global_step"], row["headline"]) for row in dev["evaluations"]] == [
        (4, 90.0),
        (STEPS, 80.0),
    ]
    assert dev["best_step"] == 4
    assert selected_checkpoint(str(selected)).prefix == f"{selected}/best/model.ckpt-4"
    assert open_model(str(selected)).weights.global_step == 4

    for _ in range(2):
        tune(folder, selected, "eval", **SELECTING)
    # What TensorBoard shows: the curve ends at its last step, and each result is there
    # once, that of step 4.
    shown = EventAccumulator(str(selected / "eval"))
    shown.Reload()
    curve = [(e.step, e.value) for e in shown.Scalars("accuracy/dev/en")]
    assert curve == [(4, 90.0), (STEPS, 80.0)]
    assert [e.step for e in shown.Scalars("accuracy/dev/sw")] == [4]
    results = read(selected / "results.json")
    [score_of_test] = shown.Scalars("accuracy/test/en")
    assert score_of_test.step == 4
    assert score_of_test.value == pytest.approx(results["test"]["en"]["accuracy"])
    assert results["global_step"] == 4
    assert results["checkpoint"] == "best/model.ckpt-4"

    check_restores(str(selected))


def test_a_kill_after_a_change_of_dev_keeps_the_best_checkpoint(
    folder, selected, tmp_path, dev_scores, monkeypatch
):
    data = shutil.copytree(folder / "data", tmp_path / "data")
    (data / "xnli/dev-en.tsv").write_text(pairs("en", copies=2))

    with monkeypatch.context() as patch:
        # After the scores of the earlier file were dropped.
        patch.setattr(ANSWERING, kill)
        with pytest.raises(KeyboardInterrupt):
            tune(folder, selected, "train", data=data, **SELECTING)
    assert read(selected / "dev.json")["evaluations"] == []
    dev_scores[:] = [70.0, 60.0]
    tune(folder, selected, "train", data=data, **SELECTING)
    dev = read(selected / "dev.json")
    assert [(row["global_step"], row["headline"]) for row in dev["evaluations"]] == [
        (4, 70.0),
        (STEPS, 60.0),
    ]
    best = selected_checkpoint(str(selected)).prefix
    assert best == f"{selected}/best/model.ckpt-4"


def test_scores_of_other_settings_are_not_compared(
    folder, selected, dev_scores, capsys
):
    dev = read(selected / "dev.json")
    names = "activation_dtype", "slice_dtype"
    settings = SELECTING | {"mesh": MeshConfig(**dict.fromkeys(names, "bfloat16"))}
    # An earlier version did not record its settings.
    earlier = {name: value for name, value in dev.items() if name != "settings"}
    (selected / "dev.json").write_text(json.dumps(earlier))
    tune(folder, selected, "train", **settings)
    assert read(selected / "dev.json")["evaluations"] == dev["evaluations"]
    (selected / "dev.json").write_text(json.dumps(dev))
    capsys.readouterr()
    tune(folder, selected, "predict", **settings)
    change = ", ".join(f"MeshConfig.{x} was 'float32', is 'bfloat16'" for x in names)
    assert f"selected before: {change}; --mode=train_and" in capsys.readouterr().out
    dev_scores[:] = [60.0, 70.0]
    tune(folder, selected, "train", **settings)
    assert f"dev.json: {change}; the best and the newest" in capsys.readouterr().out
    dev = read(selected / "dev.json")
    assert [(row["global_step"], row["headline"]) for row in dev["evaluations"]] == [
        (4, 60.0),
        (STEPS, 70.0),
    ]
    assert selected_checkpoint(str(selected)).step == STEPS
    assert {dev["settings"][f"MeshConfig.{name}"] for name in names} == {"bfloat16"}


def test_training_alone_says_that_it_found_nothing_better(
    folder, selected, tmp_path, dev_scores, capsys
):
    data = shutil.copytree(folder / "data", tmp_path / "data")
    (data / "xnli/dev-en.tsv").write_text(pairs("en", copies=2))
    # Of two checkpoints; the trivial answer has 50.
    dev_scores[:] = [50.0, 40.0]
    tune(folder, selected, "train", data=data, **SELECTING)
    line = "xnli: accuracy 50.00 on en dev is not clearly above the 50.00 of the most "
    assert line in capsys.readouterr().out


def check_restores(run):
    """Its best checkpoint is whole for all who read it but training."""
    model = open_model(run)
    check_exportable(model, read_task(model), 12, mlm=False)
    prefix = model.weights.path
    to_huggingface(run, prefix, f"{run}/huggingface", encoder_only=False)
    encoder, config = open_model(run), retrieval(max_sequence_length=12)
    assert encoder.weights.path == prefix == f"{run}/best/model.ckpt-4"
    assert layer_vectors(encoder, ["text kept"], config).any()


def test_the_test_files_can_be_left_out(folder, selected, trivial_answers, capsys):
    tune(folder, selected, splits=["dev"], **SELECTING)
    assert "xnli: evaluates 2 dev files\n" in capsys.readouterr().out
    results = read(selected / "results.json")
    assert (sorted(results["dev"]), results["test"]) == (sorted(WORDS), {})
    tune(folder, selected, splits=["dev"], **SELECTING)
    assert "already, reused" in capsys.readouterr().out
    tune(folder, selected, **SELECTING)
    line = "xnli: evaluates 2 dev and 2 test files; --splits=dev leaves the test files"
    assert line in capsys.readouterr().out
    assert sorted(read(selected / "results.json")["test"]) == sorted(WORDS)


PARAPHRASES = {
    "en": ("text kept here", "here kept text"),
    "de": ("„Text“ bleibt hier", "hier bleibt Text"),
    "es": ("¿El texto queda?", "queda el texto"),
    "fr": ("l’été « reste »", "reste l’été"),
    "ja": ("本文はここにある。", "ここに本文がある。"),
    "ko": ("글은 여기에 있다", "여기에 글이 있다"),
    "zh": ("他说“文本在这里”。", "文本在这里，他说。"),
}


@pytest.fixture(scope="module")
def pawsx(folder):
    """PAWS-X without dev files, its test files without labels, and these elsewhere."""
    task, labels = folder / "unlabelled" / "pawsx", folder / "labels" / "pawsx"
    for made in (task, labels):
        made.mkdir(parents=True)
    for language, (first, second) in PARAPHRASES.items():
        with open(task / f"test-{language}.tsv", "w", newline="") as handle:
            rows = [(f'"{first}" 1', second), (first, "\u2028"), (second, first)]
            csv.writer(handle, delimiter="\t").writerows(rows)
        (labels / f"test-{language}.tsv").write_text("1\n0\n1\n")
    with open(task / "train-en.tsv", "w", newline="") as handle:
        rows = [("text", "text", 1), ('"text"', "word", 0), ("here", "word", 0)]
        csv.writer(handle, delimiter="\t").writerows(rows * 6)
    return folder / "unlabelled"


def test_unlabelled_files_of_several_scripts_are_predicted_and_scored(
    folder, pawsx, tmp_path, capsys
):
    with assumed_answers():
        tune(
            folder, tmp_path, task="pawsx", data="unlabelled", eval_every_steps=2,
            class_weights="balanced",
        )  # fmt: skip
    printed = capsys.readouterr().out
    assert "pawsx: no English dev file with labels; the last checkpoint is" in printed
    assert "pawsx test: no labels in en, de, es, fr, ja, ko, zh; predicted" in printed
    results = read(tmp_path / "results.json")
    # 18 pairs, 2 epochs, batches of 8.
    assert results["global_step"] == 5
    assert results["test"]["zh"] == {"examples": 3}
    assert results["dev"] == {}
    saved = read(tmp_path / "config.json")
    assert saved["data"]["class_weights"] == "balanced"
    assert saved["task"]["kind"] == "classification"

    scored = score(str(tmp_path / "predictions"), str(folder / "labels"))
    accuracies = {}
    for language in PARAPHRASES:
        path = tmp_path / "predictions" / "pawsx" / f"test-{language}.tsv"
        right = [a == b for a, b in zip(path.read_text().split(), "101", strict=True)]
        accuracies[language] = pytest.approx(100 * sum(right) / 3)
    assert scored["pawsx"]["accuracy"] == accuracies
    # XTREME's score of the task: no language is missing.
    assert "avg_metric" in scored["pawsx"]


def test_without_english_dev_there_is_no_choice_of_rates(folder, pawsx, tmp_path):
    with pytest.raises(UserError, match="learning_rates: 2 to choose from, but pawsx"):
        tune(folder, tmp_path / "run", task="pawsx", data="unlabelled", **GRID)
    assert not (tmp_path / "run").exists()


def test_the_predictions_are_scored_as_finetune_scores_them(
    folder, two_compared, trivial_answers, capsys
):
    """Also with a language outside XTREME, one without labels, and odd paths."""
    data = folder / "more data"
    out = shutil.copytree(two_compared, folder / "one run's")
    shutil.copytree(folder / "data", data)
    (data / "xnli/test-my.tsv").write_text(pairs("sw"))
    (data / "xnli/test-ur.tsv").write_text("neno\tlugha\n")
    tune(folder, out, data=data.name, **SELECTING)
    printed = capsys.readouterr().out
    assert "xnli: my: not among XTREME's languages of the task" in printed
    output = out / "scores.json"
    done = decoupled(
        *("score", f"--prediction_folder={out / 'predictions'}", "--tasks=xnli"),
        *(f"--label_folder={data}", "--languages=en,sw,my", f"--output={output}"),
    )
    assert done.returncode == 0, done.stderr
    scores, results = read(output), read(out / "results.json")
    assert results["outside_xtreme"] == ["my"]
    tested = {name: row.get("accuracy") for name, row in results["test"].items()}
    assert tested.pop("ur") is None
    assert scores["outside_xtreme"] == {"xnli": {"accuracy": {"my": tested.pop("my")}}}
    assert scores["xnli"]["accuracy"] == tested
