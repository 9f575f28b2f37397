"""The fine-tuning command: what it takes from a checkpoint, and mistakes."""

import contextlib
import dataclasses
import io
import json
import re
import shutil
import types

import numpy as np
import pytest

from decoupled.commands.finetune import run_finetuning
from decoupled.configs import (
    FinetuningConfig,
    MeshConfig,
    OwnTaskConfig,
    QuestionAnsweringConfig,
)
from decoupled.configs.finetuning import FinetuneConfig
from decoupled.configs.hardware import HOST, Hardware, TpuAddress
from decoupled.core.errors import UserError
from decoupled.runs import finetuning, finetuning_plan, finetuning_run
from decoupled.runs.evaluation import AnsweredFile
from decoupled.runs.finetuning_plan import plan_finetuning
from decoupled.tasks import presets
from decoupled.training import checkpoints
from decoupled.training.bookkeeping import Checkpoints
from decoupled.training.checkpoint_files import CheckpointWriter
from tests.command_line import decoupled
from tests.commands.pretraining import checkpoint
from tests.helpers import adamw, tiny_training
from tests.pretrained import STEPS as PRETRAINED_STEPS
from tests.pretrained import make_pretrained

FINETUNING = FinetuningConfig(num_epochs=6.0, max_sequence_length=12)


def squad(*answers):
    """A file of questions about one paragraph, in SQuAD's form."""
    questions = [
        {
            "id": f"q{number}",
            "question": "What?",
            "answers": [{"text": text, "answer_start": 0}],
        }
        for number, text in enumerate(answers)
    ]
    paragraph = {"context": "which one is a", "qas": questions}
    return json.dumps({"data": [{"paragraphs": [paragraph]}]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pre-trained model, and a task: does a text speak of a record or of words?"""
    folder = tmp_path_factory.mktemp("finetune")
    made = make_pretrained(folder / "made", num_layers=2)
    made.rename(folder / "pretrained")
    task = folder / "tasks" / "catalogs"
    task.mkdir(parents=True)
    (task / "labels.txt").write_text("record\nword\n")
    words = "the holds text of one language and every is kept here".split()
    lines = [
        f"{' '.join([word] * times)} {label}\t{label}\n"
        for times in (1, 3, 5)
        for word in words
        for label in ("record", "word")
    ]
    (task / "train-en.tsv").write_text("".join(lines))
    (task / "dev-en.tsv").write_text("".join(lines[:6]))
    (task / "test-sw.tsv").write_text("rekodi word\tword\nneno record\trecord\n")
    return folder


# Pooler and head are trained, in graphs of half the size, or all.
HEAD_ALONE, ALL = {"bert/e*": 0}, {}


def settings(mesh=("all:1", ""), own_task=None, rates=HEAD_ALONE, **changes):
    """`changes` are fields of FinetuningConfig or TrainingConfig."""
    training = {k: v for k, v in changes.items() if not hasattr(FINETUNING, k)}
    finetuning = {k: v for k, v in changes.items() if k not in training}
    training.setdefault("save_checkpoints_steps", 100)
    return FinetuneConfig(
        dataclasses.replace(FINETUNING, **finetuning),
        MeshConfig(*mesh),
        adamw(learning_rate=5e-3, rates=rates),
        tiny_training(**training),
        own_task=own_task,
    )


def tune(
    folder,
    out,
    mode="train_and_evaluate",
    *,
    task="catalogs",
    data="tasks",
    init="pretrained",
    hardware=HOST,
    **changes,
):
    """Runs the command; returns the folder of the run. See `settings`."""
    paths = (str(folder / data), str(folder / init), str(folder / out))
    run_finetuning(settings(**changes), task, *paths, mode, hardware=hardware)
    return folder / out


ONE_EPOCH = dict(num_epochs=1.0, keep_layers=1)
STEPS = 9


@pytest.fixture(scope="module")
def short(folder):
    """A run of an epoch of the first layer."""
    return tune(folder, "short", "train", save_checkpoints_steps=2, **ONE_EPOCH)


def test_a_folder_belongs_to_its_initial_weights_and_settings(folder, short):
    before = checkpoint(short)
    for changes, message in (
        ({"classifier_dropout": 0.5}, "data.classifier_dropout is 0.1, not 0.5"),
        ({"batch_size": 4}, "data.batch_size is 8, not 4;"),
    ):
        with pytest.raises(UserError, match=message):
            tune(folder, short, "train", **ONE_EPOCH, **changes)
    with pytest.raises(UserError, match="command is 'pretrain', not 'finetune';"):
        tune(folder, "pretrained", "train", **ONE_EPOCH)
    assert checkpoint(short).keys() == before.keys()
    assert checkpoint(folder / "pretrained")["global_step"] == PRETRAINED_STEPS

    # Other weights of the same names, sizes and step.
    prefix = folder / "pretrained" / f"model.ckpt-{PRETRAINED_STEPS}"
    weights = checkpoint(prefix)
    kept = folder / "kept"
    shutil.copytree(folder / "pretrained", kept)
    with CheckpointWriter(str(prefix)) as writer:
        for name, value in weights.items():
            writer.add(name, value + (1 if value.dtype == np.float32 else 0))
    try:
        message = rf"began from other weights than .*model.ckpt-{PRETRAINED_STEPS}; use"
        with pytest.raises(UserError, match=message):
            tune(folder, short, "train", **ONE_EPOCH)
    finally:
        shutil.rmtree(folder / "pretrained")
        kept.rename(folder / "pretrained")


OWN = OwnTaskConfig(
    name="kinds",
    kind="classification",
    files="{split}-{language}.csv",
    training_languages=("sw",),
    texts=("text",),
    label="kind",
    metric="macro_f1",
)


@pytest.fixture(scope="module")
def own(folder, tmp_path_factory):
    """Settings of a run of a task of one's own, its folder, and what it printed."""
    data = tmp_path_factory.mktemp("own")
    words = "the holds text of one language and every is kept here".split()
    rows = [f"{kind},{word} {kind}\n" for word in words for kind in ("record", "word")]
    for name, content in (("train", rows * 3), ("dev", rows[:6]), ("test", rows[:4])):
        text = "".join(["kind,text\n", *content])
        (data / f"{name}-sw.csv").write_text(text)
    (data / "test-en.csv").write_text("kind,text\nword,one word\n")
    run = dict(task="own", data=data, own_task=OWN, rates=ALL, keep_layers=1)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        out = tune(folder, data / "tuned", freeze_input_embedding=True, **run)
    return run, out, printed.getvalue()


def test_a_task_of_ones_own_is_trained_in_its_own_language(own):
    _, out, printed = own
    assert "66 examples (sw)" in printed and "trained on sw only" in printed
    assert "kinds: trained on sw, zero-shot" in (out / "results.svg").read_text()
    results = json.loads((out / "results.json").read_text())
    assert results["task"] == "kinds" and results["headline"] == ["macro_f1"]
    dev = results["dev"]["sw"]
    assert (dev["macro_f1"], dev["examples"]) == (100.0, 6)
    assert results["test"]["en"]["examples"] == 1
    saved = json.loads((out / "config.json").read_text())["task"]
    assert saved["kind"] == "classification" and saved["labels"] == ["record", "word"]


def test_learns_and_reports(folder, own, capsys):
    run, tuned, printed = own
    assert "initialised" in printed and "cls/predictions/output_embedding" in printed
    names = checkpoint(tuned)
    assert not any(name.startswith("cls/") for name in names)
    assert names["output_weights"].shape == (2, 16)
    assert names["bert/pooler/dense/kernel"].shape == (16, 16)
    # 66 examples, 6 epochs, batches of 8: the last one goes into a seventh epoch.
    assert names["global_step"] == 50
    again = dict(freeze_input_embedding=True, **run)
    tune(folder, tuned, **again)
    assert "of step 50 already, reused" in capsys.readouterr().out
    with pytest.raises(UserError, match="holds a single run, of learning rate 0.005"):
        tune(folder, tuned, learning_rates=(5e-3, 1e-3), **again)
    answers = {
        path.name: [row.split("\t") for row in path.read_text().splitlines()]
        for path in (tuned / "predictions/kinds").iterdir()
    }
    assert set(answers) == {"dev-sw.tsv", "test-sw.tsv", "test-en.tsv"}
    # All are right, as results.json says.
    assert [label for label, _ in answers["dev-sw.tsv"]] == ["record", "word"] * 3
    assert len(answers["test-sw.tsv"]) == 4
    for label, probability in sum(answers.values(), []):
        assert label in ("record", "word") and 0.5 <= float(probability) <= 1


def test_a_number_for_each_text_is_learned_and_converted(folder, tmp_path):
    words = "the holds text of one language and every is kept here".split()
    rows = [f"{n}\t{' '.join([word] * n)}\n" for word in words for n in (1, 3, 5)]
    for name, content in (("train", rows * 3), ("dev", rows[:6])):
        (tmp_path / f"{name}-en.tsv").write_text("".join(["kind\ttext\n", *content]))
    own = {"kind": "regression", "metric": "pearson", "training_languages": ("en",)}
    out = tune(
        folder, tmp_path / "tuned", task="own", data=tmp_path, num_epochs=18.0,
        keep_layers=1, rates=ALL,
        own_task=dataclasses.replace(OWN, files="{split}-{language}.tsv", **own),
    )  # fmt: skip
    scores = json.loads((out / "results.json").read_text())["dev"]["en"]
    assert scores["pearson"] > 90 and scores["trivial_pearson"] == 0
    assert scores["mean_absolute_error"] < scores["trivial_mean_absolute_error"] / 2
    [path] = (out / "predictions/kinds").iterdir()
    assert np.isfinite([float(line) for line in path.read_text().splitlines()]).all()

    there, back = tmp_path / "hf", tmp_path / "back"
    assert not decoupled(
        "convert", "to_hf", f"--model_dir={out}", f"--hf_dir={there}"
    ).returncode
    described = json.loads((there / "config.json").read_text())
    assert described["problem_type"] == "regression"
    assert described["id2label"] == {"0": "LABEL_0"}
    assert not decoupled(
        "convert", "from_hf", f"--hf_dir={there}", f"--model_dir={back}"
    ).returncode
    assert json.loads((back / "config.json").read_text())["task"] == {
        "name": "kinds", "labels": [], "kind": "regression"
    }  # fmt: skip
    weights = checkpoint(back)
    for name, value in weights.items():
        if name != "global_step":
            np.testing.assert_array_equal(value, checkpoint(out)[name])


def test_an_evaluation_reads_each_checkpoint_whole_once(folder, short, monkeypatch):
    """That is 12 GB for RemBERT with its slots."""
    monkeypatch.setattr(checkpoints, "_states_when_read", {})
    prefixes, read = [], checkpoints._read_all

    def noted(prefix):
        prefixes.append(prefix)
        read(prefix)

    monkeypatch.setattr(checkpoints, "_read_all", noted)
    # Of other settings of training it takes the run's own.
    tune(folder, short, "eval", **ONE_EPOCH, classifier_dropout=0.5)
    assert prefixes == [
        f"{folder}/pretrained/model.ckpt-{PRETRAINED_STEPS}",
        f"{short}/model.ckpt-{STEPS}",
    ]
    results = json.loads((short / "results.json").read_text())
    assert results["task"] == "catalogs" and results["test"]["sw"]["examples"] == 2
    dev = results["dev"]["en"]
    assert set(dev) == {"accuracy", "trivial_accuracy", "examples"}
    assert (dev["trivial_accuracy"], dev["examples"]) == (50.0, 6)
    answers = {path.name for path in (short / "predictions/catalogs").iterdir()}
    assert answers == {"dev-en.tsv", "test-sw.tsv"}


def test_keeps_the_first_layers_only(short):
    names = checkpoint(short)
    assert "bert/encoder/layer_0/output/dense/kernel" in names
    assert not any("layer_1" in name for name in names)
    saved = json.loads((short / "config.json").read_text())
    assert saved["model"]["num_layers"] == 1


def plan(folder, init, out, mode="train"):
    """The plan of the command of `tune`, which writes nothing."""
    config = settings()
    task = presets.make_task("catalogs", str(folder / "tasks"), config.finetuning, None)
    paths = (str(init), str(out))
    return plan_finetuning(config, task, *paths, mode, 1, str(out / "features"))


def with_task(short, copy, **entries):
    """A copy of a run whose config.json has these entries of its task."""
    shutil.copytree(short, copy)
    content = json.loads((copy / "config.json").read_text())
    content["task"] |= entries
    (copy / "config.json").write_text(json.dumps(content))
    return copy


OTHER_ORDER = {"labels": ["word", "record"]}


@pytest.mark.parametrize("entries", [OTHER_ORDER, {"kind": "tagging"}, {}])
def test_a_head_for_other_labels_begins_anew(folder, short, tmp_path, entries):
    """Its layer has the same shape."""
    init = with_task(short, tmp_path / "short", **entries)
    drawn = plan(folder, init, tmp_path / "again").run.drawn_names
    assert drawn == (("output_weights", "output_bias") if entries else ())


def test_processes_compare_the_files_that_they_answer(folder, tmp_path, monkeypatch):
    compared = {}
    group = types.SimpleNamespace(
        count=lambda: 2, agree=lambda what, facts: compared.update(facts)
    )
    monkeypatch.setattr(finetuning_plan, "hosts", group)
    plan(folder, folder / "pretrained", tmp_path / "never", "train_and_evaluate")
    assert set(compared) == {"catalogs/dev-en.tsv", "catalogs/test-sw.tsv"}


def test_a_frozen_input_embedding_does_not_move_within_a_run(folder, own):
    run, tuned, _ = own
    before, after = checkpoint(folder / "pretrained"), checkpoint(tuned)
    fixed = [
        name
        for name in before
        if name.startswith(("bert/embeddings/", "bert/encoder/embedding"))
        and not name.endswith(("adam_m", "adam_v"))
    ]
    assert len(fixed) == 7
    for name in fixed:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
        assert f"{name}/adam_m" not in after
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    assert (before[kernel] != after[kernel]).any()
    for rates, message in (
        ({"bert/embeddings/word_embeddings": 2.0}, "2.0 for bert/embeddings/word"),
        ({"bert/enc*": 0, "bert/p*": 0, "out*": 0}, "nothing is trained"),
    ):
        with pytest.raises(UserError, match=message):
            changes = dict(freeze_input_embedding=True, **ONE_EPOCH)
            tune(folder, "refused", "train", rates=rates, **changes)
    assert not (folder / "refused").exists()
    with pytest.raises(
        UserError, match="data.freeze_input_embedding is True, not False"
    ) as caught:
        tune(folder, tuned, "train", **run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"keep_layers": 3}, "keep_layers: 3, but the checkpoint's model has 2"),
        ({"max_sequence_length": 21}, "max_positions = 20"),
        ({"num_epochs": 1e10}, r"num_epochs: 1e\+10 epochs of .* 100,000,000"),
        (
            # Its hosts run no Python.
            {"hardware": Hardware(tpu=TpuAddress("node"))},
            "--tpu=node: batches of fine-tuning are made",
        ),
    ],
)
def test_what_no_run_can_do_leaves_no_folder(folder, changes, message):
    with pytest.raises(UserError, match=message):
        tune(folder, "refused", **changes)
    assert not (folder / "refused").exists()


# Folder and files of a task of each kind, complete and right.
RIGHT = {
    "catalogs": {
        "catalogs/labels.txt": "record\nword\n",
        "catalogs/train-en.tsv": "a\trecord\nb\tword\n",
        "catalogs/dev-en.tsv": "a\trecord\n",
        "catalogs/test-sw.tsv": "b\tword\n",
    },
    "xnli": {
        "xnli/train-en.tsv": "a\tb\tneutral\n",
        "xnli/dev-en.tsv": "a\tb\tneutral\n",
        "xnli/dev-sw.tsv": "a\tb\tneutral\n",
        "xnli/test-my.tsv": "a\tb\n",
    },
    "udpos": {
        "udpos/train-en.tsv": "a\tNOUN\n",
        "udpos/dev-en.tsv": "a\tNOUN\n",
        "udpos/test-de.tsv": "a\n",
    },
    "xquad": {
        "squad/train-v1.1.json": squad("one", "which"),
        "squad/dev-v1.1.json": squad("one", "which"),
        "xquad/xquad.ro.json": squad("one", "which"),
    },
    "tydiqa": {
        f"tydiqa/tydiqa-goldp-v1.1-{split}/tydiqa.goldp.{name}.{split}.json": squad("a")
        for split, name in (("train", "en"), ("dev", "en"), ("dev", "sw"))
    },
}


def write_files(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def tune_right(
    folder,
    data,
    task,
    mode="train_and_evaluate",
    *,
    learning_rate=1e-3,
    max_answer_length="auto",
    training=types.MappingProxyType({}),
    **flags,
):
    """Trains a step on a task's files in `data`, and evaluates; writes to data/run.

    `training` are further arguments of `settings`.
    """
    usual = dict(max_sequence_length=20, eval_every_steps=2)
    config = settings(**ONE_EPOCH, **usual, **training)
    optimizer = dataclasses.replace(config.optimizer, learning_rate=learning_rate)
    config = dataclasses.replace(
        config,
        optimizer=optimizer,
        question_answering=QuestionAnsweringConfig(4, 4, max_answer_length, 5),
    )
    paths = (str(data), str(folder / "pretrained"), str(data / "run"))
    run_finetuning(config, task, *paths, mode, **flags)


def test_settings_of_questions_are_said_to_have_no_effect_on_other_tasks(
    tmp_path, capsys
):
    questions = QuestionAnsweringConfig(doc_stride=48)
    config = dataclasses.replace(settings(), question_answering=questions)
    with pytest.raises(UserError):
        run_finetuning(config, "xnli", str(tmp_path), "nowhere", str(tmp_path), "train")
    assert capsys.readouterr().out == (
        "QuestionAnsweringConfig.doc_stride = 48 has no effect: xnli is "
        "classification\n"
    )


@pytest.mark.parametrize(
    "task", ["xnli", pytest.param("udpos", marks=pytest.mark.slow)]
)
def test_weights_that_overflow_in_the_last_step_give_no_scores(folder, tmp_path, task):
    """The loss of that step was finite. NaN has an argmax, and so a label."""
    write_files(tmp_path, RIGHT[task])
    # A mesh splits rows of a batch, and not its 7 examples.
    training = dict(mesh=("data:2", "batch:data"), batch_size=7)
    with pytest.raises(UserError, match=r"model.ckpt-1: the model computes NaN"):
        tune_right(folder, tmp_path, task, learning_rate=1e30, training=training)
    assert not (tmp_path / "run/results.json").exists()
    assert not list(tmp_path.glob("run/predictions/**/*.*"))


def test_the_dev_file_that_selects_is_read_first_if_tests_alone_are_answered(
    folder, tmp_path
):
    write_files(tmp_path, {**RIGHT["xnli"], "xnli/dev-en.tsv": "a\tb\n"})
    with pytest.raises(UserError, match=f"{tmp_path}/xnli/dev-en.tsv:1: column 3"):
        tune_right(folder, tmp_path, "xnli", splits=("test",))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def one_type(tmp_path_factory):
    """The folder of a pre-trained model with one type embedding."""
    folder = tmp_path_factory.mktemp("one_type")
    made = make_pretrained(folder / "made", type_vocab_size=1, num_layers=1)
    made.rename(folder / "pretrained")
    return folder


@pytest.mark.parametrize(
    "task, name, text",
    [
        ("xnli", "xnli/train-en.tsv", None),
        ("xquad", "squad/train-v1.1.json", None),
        ("tydiqa", "tydiqa/tydiqa-goldp-v1.1-train/tydiqa.goldp.en.train.json", None),
        ("catalogs", "catalogs/train-en.tsv", "a\tb\tword\n"),
        # Single texts in training alone.
        ("catalogs", "catalogs/test-sw.tsv", "a\tb\tword\n"),
    ],
)
def test_pairs_and_questions_need_two_type_embeddings(
    one_type, tmp_path, task, name, text
):
    write_files(tmp_path, {**RIGHT[task], name: text or RIGHT[task][name]})
    with pytest.raises(UserError, match=f"{tmp_path}/{name}: holds pairs of texts"):
        tune_right(one_type, tmp_path, task)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def asked(folder, tmp_path_factory):
    """Files of questions, and a run of a step on them that was not evaluated.

    The longest answer in training has 5 characters; one of two in the test has 8.
    """
    data = tmp_path_factory.mktemp("asked")
    right = {**RIGHT["xquad"], "xquad/xquad.ro.json": squad("which on", "which")}
    write_files(data, right)
    tune_right(folder, data, "xquad", "train", max_answer_length=1)
    return data


@pytest.fixture
def questions(asked, tmp_path):
    """A copy of them."""
    return shutil.copytree(asked, tmp_path / "asked")


@pytest.mark.usefixtures("empty_pictures")
def test_answers_may_be_longer_than_those_in_training_and_that_is_said(
    folder, questions, capsys
):
    tune_right(folder, questions, "xquad")
    assert (
        "xquad: an answer has at most 7 characters, 1.5 times the longest one in "
        "training (QuestionAnsweringConfig.max_answer_length = 'auto'); longer right "
        "answers are lost: test ro 50.00%; none in the other files (2)\n"
    ) in capsys.readouterr().out
    predictions = questions / "run/predictions/xquad/test-ro.json"
    answers = json.loads(predictions.read_text()).values()
    assert len(answers) == 2 and max(map(len, answers)) <= 7
    results = json.loads((questions / "run/results.json").read_text())
    assert results["outside_xtreme"] == ["ro"] and "f1" in results["test"]["ro"]


@pytest.mark.usefixtures("empty_pictures")
def test_exports_follow_the_last_evaluation_and_no_later_training(
    folder, questions, monkeypatch
):
    def answer(network, run, batch_size, data, names, checkpoint):
        for name in names:
            examples = data.examples(*name)
            yield AnsweredFile(*name, examples, ["one"] * len(examples))

    monkeypatch.setattr(finetuning_run, "answer_languages", answer)
    answers = questions / "run/answers.json"

    def limit(*mode, **changes):
        tune_right(folder, questions, "xquad", *mode, **changes)
        return json.loads(answers.read_text())["max_answer_length"]

    # Before an evaluation, training alone tells.
    for length in (1, 2):
        assert limit("train", max_answer_length=length) == length
    assert limit() == "auto"
    assert limit("train", max_answer_length=2) == "auto"
    # An earlier version let that training write it.
    answers.write_text('{"max_answer_length": 2}')
    assert limit() == "auto"
    assert limit("predict", max_answer_length=2) == 2


def test_every_bad_file_is_named_and_training_alone_reads_english_dev(
    folder, tmp_path, monkeypatch
):
    texts = {
        **RIGHT["xnli"],
        "xnli/dev-sw.tsv": "a\n",
        "xnli/test-my.tsv": "b\tc\td\n",
    }
    write_files(tmp_path, texts)
    monkeypatch.setattr(finetuning, "train_runs", lambda *_: None)
    run = dict(task="xnli", data=tmp_path, **ONE_EPOCH)
    message = "2 mistakes: .*dev-sw.tsv:1: .*test-my.tsv:1: .*unknown label 'd'"
    with pytest.raises(UserError, match=message):
        tune(folder, tmp_path / "run", **run)
    assert not (tmp_path / "run").exists()
    out = tune(folder, tmp_path / "run", "train", **run)
    assert (out / "config.json").exists()


def test_an_interrupted_run_resumes_and_says_from_where(
    folder, short, tmp_path, capsys, monkeypatch
):
    orders, plan = [], finetuning_run.plan_batches

    def noted(*arguments):
        orders.append(arguments[-1])
        return plan(*arguments)

    monkeypatch.setattr(finetuning_run, "plan_batches", noted)
    out = tmp_path / "run"
    run = dict(mode="train", save_checkpoints_steps=2, **ONE_EPOCH)
    save = Checkpoints.save

    def interrupted(checkpoints, step):
        if step == 6:
            raise KeyboardInterrupt
        save(checkpoints, step)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tune(folder, out, **run)
    line = r"batches of 8 examples packed into \d rows of \d+ tokens, \d+% of them"
    printed = capsys.readouterr().out
    assert re.search(line, printed) and "initialised 23 variables from " in printed
    tune(folder, out, **run)

    printed = capsys.readouterr().out
    assert f"resuming from {out}/model.ckpt-4 at step 4, 32 examples seen" in printed
    assert "initialised" not in printed
    # The resumed run makes its batches as it began, whatever mesh it has now.
    assert orders[0] is None and orders[1] is not None
    expected, resumed = checkpoint(short), checkpoint(out)
    assert expected.keys() == resumed.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


def test_evaluation_leaves_the_folder_to_the_run_that_claimed_it(
    folder, tmp_path, monkeypatch
):
    """Which may be about to save its first checkpoint."""
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "train_runs", lambda *_: None)
        tune(folder, tmp_path / "run", "train", batch_size=8)
    for batch_size, message in (
        (8, "no complete checkpoint"),
        (4, "data.batch_size is 8, not 4;"),
    ):
        with pytest.raises(UserError, match=message):
            tune(folder, tmp_path / "run", "eval", batch_size=batch_size)
    # Of an earlier version, which could smooth labels in training.
    path = tmp_path / "run/config.json"
    for smoothing in (0.0, 0.1):
        claimed = json.loads(path.read_text())
        claimed["data"]["label_smoothing"] = smoothing
        path.write_text(json.dumps(claimed))
        with pytest.raises(UserError, match="no complete checkpoint"):
            tune(folder, tmp_path / "run", "eval")


def test_evaluation_needs_a_checkpoint_and_a_split(folder, tmp_path):
    with pytest.raises(UserError, match="no complete checkpoint"):
        tune(folder, tmp_path / "run", "eval")
    assert not (tmp_path / "run").exists()
    only_train = tmp_path / "tasks" / "catalogs"
    only_train.mkdir(parents=True)
    for name in ("labels.txt", "train-en.tsv"):
        shutil.copy(folder / "tasks/catalogs" / name, only_train)

    with pytest.raises(UserError, match="holds no dev or test file of catalogs"):
        tune(folder, tmp_path / "other", "predict", data=tmp_path / "tasks")
