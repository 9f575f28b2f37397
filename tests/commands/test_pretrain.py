"""The pre-training command: modes, resuming, kills, and mistakes."""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from decoupled.configs import (
    MaskingConfig,
    MeshConfig,
    PhaseConfig,
    PretrainConfig,
    SamplingConfig,
)
from decoupled.core.compat import tf
from decoupled.core.errors import Terminated, UserError
from decoupled.data.records import read_manifest, write_shard
from decoupled.data.records_build import build_records
from decoupled.data.sequences import chunk_counts
from decoupled.exports.interop.surgery import (
    change_embeddings,
    factorise,
    fold,
    untie,
)
from decoupled.model.variables import OUTPUT_EMBEDDING, WORD_EMBEDDINGS
from decoupled.runs import pretraining
from decoupled.runs.pretraining_plan import held_out_counts, plan_pretraining
from decoupled.runs.saved_run import open_model
from decoupled.tasks.mlm import MaskedLM
from decoupled.tasks.objectives import OBJECTIVES
from decoupled.training import loop
from decoupled.training.bookkeeping import Checkpoints, Diverged
from decoupled.training.checkpoint_files import CheckpointWriter
from decoupled.training.checkpoints import write_list
from decoupled.training.events import read_scalars
from tests.command_line import decoupled
from tests.commands.pretraining import (
    checkpoint,
    make_records,
    pretrain_words,
)
from tests.data.record_folders import flip_byte
from tests.data.small_corpus import make_corpus, make_vocabulary
from tests.helpers import MASKING, adamw, schedule, tiny_model, tiny_training
from tests.pretrained import STEPS as WRITTEN
from tests.pretrained import run_pretraining, write_weights
from tests.processes import run_python
from tests.training import runs

STEPS = 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """(records folder, vocabulary)."""
    return make_records(tmp_path_factory.mktemp("data"))


SMALL = {"vocab_size": 54, **runs.SMALL}


# The head alone is trained, in graphs of half the size.
RATES = {"bert/*": 0}
HEAD_ALONE = adamw(rates=RATES)


def config(**changes):
    fields = dict(
        model=tiny_model(**SMALL),
        masking=MASKING,
        optimizer=HEAD_ALONE,
        schedule=schedule(train_steps=STEPS),
        training=tiny_training(),
    )
    return PretrainConfig(**{**fields, **changes})


@pytest.fixture(scope="module")
def two_steps(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = config(schedule=schedule(train_steps=2))
    run_pretraining(settings, *data, str(folder), "train")
    return folder


@pytest.fixture
def trained(two_steps, tmp_path):
    """The folder of a run of two steps, to go on with."""
    return shutil.copytree(two_steps, tmp_path / "run")


@pytest.fixture(scope="module")
def evaluated(data, two_steps, tmp_path_factory):
    """What an evaluation of the run of two steps wrote, and what it printed."""
    run = shutil.copytree(two_steps, tmp_path_factory.mktemp("evaluated") / "run")
    # Of a shorter run: the checkpoint that is there is evaluated.
    settings = config(schedule=schedule(train_steps=1))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run_pretraining(settings, *data, str(run), "eval")
    return json.loads((run / "eval.json").read_text()), printed.getvalue()


@pytest.fixture
def without_training(monkeypatch):
    """What comes before the first step is all that is done."""
    monkeypatch.setattr(pretraining, "train", lambda *_, **__: None)


@pytest.fixture
def copied_training(two_steps, monkeypatch):
    """Training copies the checkpoint of two steps."""

    def train(graph, run, *_, **__):
        for path in (two_steps / "checkpoint", *two_steps.glob("model.ckpt-2.*")):
            shutil.copy(path, run.model_dir)

    monkeypatch.setattr(pretraining, "train", train)


@pytest.fixture
def assumed_predictions(monkeypatch):
    """An evaluation computes nothing."""
    row = {"loss_sum": 2.0, "hits": 0.0, "weight": 1.0}

    def predict(*_):
        yield from itertools.repeat(row, 1000)

    monkeypatch.setattr(pretraining, "predict", predict)


def pretrain(data, folder, *more, mode="train"):
    """Runs the command in this process."""
    _, *words = pretrain_words(data, folder, *more, mode=mode)
    return decoupled(*words)


STRAIGHT = (
    f"ScheduleConfig.train_steps = {STEPS}",
    "TrainingConfig.save_checkpoints_steps = 5",
    f"OptimizerConfig.rates = {RATES}",
    # A seed may be as large as a clock.
    "TrainingConfig.seed = 9223372036854775000",
)


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    """The folder of a run that nobody disturbed, and what it printed."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    done = pretrain(data, folder, *STRAIGHT, mode="train_and_evaluate")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_modes(data, straight):
    folder, printed = straight
    assert "starting from initial weights" in printed
    assert f"held-out text at step {STEPS}" in printed
    evaluated = json.loads((folder / "eval.json").read_text())
    assert evaluated["global_step"] == STEPS
    assert set(evaluated["languages"]) == {"en", "sw"}
    loss = evaluated["all"]["masked_lm_loss"]
    assert 0 < loss < np.log(54)
    # So little training teaches frequencies and nothing else.
    entropies = [of["unigram_entropy"] for of in evaluated["languages"].values()]
    assert min(entropies) <= evaluated["all"]["unigram_entropy"] <= max(entropies)
    assert 0 < min(entropies) and max(entropies) < np.log(54)
    assert (
        "the loss is not 1 nat below the unigram entropy: the model may still"
        in printed
    )
    assert set(read_scalars(f"{folder}/eval", "masked_lm_loss/sw")) == {STEPS}
    percent = 100 * evaluated["languages"]["sw"]["masked_lm_accuracy"]
    logged = read_scalars(f"{folder}/eval", "masked_lm_accuracy_percent/sw")
    assert logged == {STEPS: pytest.approx(percent, rel=1e-6)}
    average = 100 * evaluated["all"]["masked_lm_accuracy"]
    assert f"masked_lm_accuracy {average:.2f}%  " in printed

    assert not pretrain(data, folder, *STRAIGHT, mode="predict").returncode
    lines = (folder / "predictions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    total = sum(row["loss_sum"] for row in rows) / sum(row["weight"] for row in rows)
    assert total == pytest.approx(loss, rel=1e-6)

    printed = pretrain(data, folder, *STRAIGHT, mode="train_and_evaluate").stdout
    assert f"complete at step {STEPS}; nothing to train" in printed
    assert f"of step {STEPS} already, reused" in printed
    names = {path.name for path in folder.iterdir()}
    assert {"command.1", "command.3", "sentencepiece.model"} <= names


def test_an_evaluation_belongs_to_its_text_settings_and_weights(
    data, trained, tmp_path, assumed_predictions, capsys
):
    records, path = str(tmp_path / "records"), trained / "eval.json"
    shutil.copytree(data[0], records)
    usual = config(schedule=schedule(train_steps=2))

    def printed(settings=usual):
        arguments = (settings, records, data[1], str(trained), "train_and_evaluate")
        run_pretraining(*arguments)
        return capsys.readouterr().out

    assert "held-out text at step 2" in printed()
    assert f"{path}: of step 2 already, reused" in printed()
    narrow, fewer = MeshConfig(slice_dtype="bfloat16"), tiny_training(eval_sequences=1)
    other = dataclasses.replace(usual, mesh=narrow, training=fewer)
    assert (
        f"{path}: evaluated again: MeshConfig.slice_dtype was 'float32', is "
        "'bfloat16', TrainingConfig.eval_sequences was 0, is 1\n"
    ) in printed(other)
    # The documents in another order: the same size and the same time of the change.
    manifest = read_manifest(records)
    [shard] = manifest.language("eval", "sw").files
    examples = map(
        tf.train.Example.FromString,
        tf.compat.v1.io.tf_record_iterator(manifest.path(shard)),
    )
    documents = [x.features.feature["ids"].int64_list.value for x in examples]
    stamp = os.stat(manifest.path(shard)).st_mtime_ns
    write_shard(records, shard.name, documents[::-1])
    os.utime(manifest.path(shard), ns=(stamp, stamp))
    assert os.path.getsize(manifest.path(shard)) == shard.bytes
    assert f"{path}: evaluated again: {shard.name} has changed\n" in printed(other)
    assert "reused" in printed(other)


def test_training_text_in_other_shards_cannot_be_resumed(data, trained, tmp_path):
    """Its order would be another one."""
    make_corpus(tmp_path / "corpus", evaluation=(("en", 20), ("sw", 10)))
    records = str(tmp_path / "records")
    build_records(str(tmp_path / "corpus"), data[1], records, 500)
    with pytest.raises(UserError) as caught:
        run_pretraining(config(), records, data[1], str(trained), "train")
    assert str(caught.value) == (
        f"{trained}: holds another model: the training text in {records} is not what "
        "the run began with; use its settings and files to go on, or another "
        "--model_dir"
    )


def test_settings_that_change_at_a_resume_are_said_but_for_bookkeeping(
    data, trained, without_training, capsys
):
    """`trained` was to train for two steps."""
    others = dict(save_checkpoints_steps=7, log_steps=3, eval_batch_size=4)
    settings = config(
        mesh=MeshConfig(activation_dtype="bfloat16"),
        optimizer=adamw(weight_decay=0.5, rates=RATES),
        schedule=schedule(train_steps=4, warmup_steps=3),
        training=tiny_training(gradient_accumulation=2, **others),
    )
    run_pretraining(settings, *data, str(trained), "train")
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if " until step 2, is " in line]
    assert sorted(line.partition(" was ")[0] for line in lines) == [
        "MeshConfig.activation_dtype",
        "OptimizerConfig.weight_decay",
        "ScheduleConfig.train_steps",
        "ScheduleConfig.warmup_steps",
        "TrainingConfig.gradient_accumulation",
    ]
    assert "ScheduleConfig.train_steps was 2 until step 2, is 4 from here" in lines


def test_sampling_is_shown_and_kept_and_so_are_whole_words(
    data, tmp_path, copied_training, capsys
):
    weighted = SamplingConfig(0.5, {"sw": 0.25})
    settings = config(
        sampling=weighted, schedule=schedule(train_steps=2), whole_words=True
    )
    run_pretraining(settings, *data, str(tmp_path / "run"), "train")
    printed = capsys.readouterr().out
    assert "2 languages, alpha 0.5" in printed
    assert f"the whole table: {tmp_path}/run/sampling.json" in printed
    kept = json.loads((tmp_path / "run/sampling.json").read_text())
    assert [kept[name]["drawn"] for name in ("en", "sw")] == [0.75, 0.25]
    entry = read_manifest(data[0]).language("train", "sw")
    pieces = chunk_counts(entry, MASKING.sequence_length).sum()
    drawn = 0.25 * 2 * settings.training.batch_size
    assert kept["sw"]["epochs"] == pytest.approx(drawn / pieces, abs=1e-6)
    saved = json.loads((tmp_path / "run/config.json").read_text())
    assert saved["data"]["masking"]["whole_words"] is True
    with pytest.raises(UserError, match=r"masking.whole_words is True, not None"):
        tokens = dataclasses.replace(settings, whole_words=False)
        run_pretraining(tokens, *data, str(tmp_path / "run"), "train")


def test_a_folder_of_before_goes_on_with_alpha_alone(data, trained, capsys):
    path = trained / "config.json"
    saved = json.loads(path.read_text())
    settings = config(schedule=schedule(train_steps=2))
    # When alpha was the only setting, and when epochs could be limited.
    for sampling, more in (
        ({}, {}),
        ({"min_epochs": None, "max_epochs": None}, {"sequences": None}),
    ):
        saved["data"] |= {"sampling": {"alpha": 0.5, **sampling}, **more}
        path.write_text(json.dumps(saved))
        run_pretraining(settings, *data, str(trained), "train")
        assert "complete at step 2; nothing to train" in capsys.readouterr().out
    saved["data"]["sampling"]["max_epochs"] = {"sw": 2.0}
    path.write_text(json.dumps(saved))
    with pytest.raises(UserError, match="max_epochs is .*, which only the version"):
        run_pretraining(settings, *data, str(trained), "train")


def test_initial_weights_of_a_model_that_computes_something_else_are_refused(
    data, trained, tmp_path
):
    """Their shapes are the same."""
    for changes in (
        {"activation": "relu"},
        {"layer_norm_epsilon": 0.5},
        {"num_heads": 1, "head_size": 16},
        {"project_equal_widths": True},
    ):
        model = tiny_model(**{**SMALL, **changes})
        folder = str(tmp_path / "other")
        with pytest.raises(UserError, match=f"has {list(changes)[0]} = .*, not "):
            run_pretraining(
                config(model=model),
                *data,
                folder,
                "train",
                init_checkpoint=str(trained),
            )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "changes, now",
    [
        (
            {"mlm_transform": "dense_activation_norm"},
            "'dense_activation_norm' with a projection",
        ),
        ({"project_equal_output_widths": True}, "'projection' with a projection"),
        ({"output_embedding_size": 40}, None),
        ({}, None),
    ],
)
def test_an_output_embedding_that_is_read_in_another_way_is_said(
    data, trained, capsys, changes, now
):
    model = tiny_model(**{**SMALL, **changes})
    paths = (*data, str(trained.parent / "never"), "train")
    plan_pretraining(config(model=model), *paths, init_checkpoint=str(trained))
    line = (
        f"ModelConfig.mlm_transform: {now}, and of --init_checkpoint 'projection' "
        "without a projection; its output embedding begins with another meaning\n"
    )
    printed = capsys.readouterr().out
    assert line in printed if now else "another meaning" not in printed


def test_initial_weights_of_other_shapes_leave_no_folder(data, trained, tmp_path):
    def refused(message, **changes):
        other = config(model=tiny_model(**{**SMALL, **changes}))
        arguments = (*data, str(tmp_path / "other"), "train")
        with pytest.raises(UserError, match=message):
            run_pretraining(other, *arguments, init_checkpoint=str(trained))
        assert not (tmp_path / "other").exists()

    refused("has shape .*, the model needs", input_embedding_size=8)
    # Converted models may have more rows than pieces.
    path = trained / "config.json"
    described = json.loads(path.read_text())
    described["model"]["vocab_size"] = 60
    path.write_text(json.dumps(described))
    refused(
        "has 60 rows of embeddings, and ModelConfig.vocab_size is 54; decoupled "
        "convert vocabulary, with its own vocabulary, gives it a row for each piece"
    )


def test_weights_that_are_not_finite_are_named_where_training_diverges(
    data, trained, tmp_path, monkeypatch
):
    """Those that a run starts from, and its own."""
    weights = checkpoint(trained)
    with CheckpointWriter(str(trained / "model.ckpt-2")) as writer:
        for name, value in weights.items():
            if name == "bert/encoder/layer_0/output/dense/bias":
                value = np.full_like(value, np.nan)
            writer.add(name, value)

    class Diverging:
        def train(self, *_, **__):
            raise Diverged("loss is nan at step 3")

    monkeypatch.setattr(loop, "_estimator", lambda *_: Diverging())
    longer, message = config(schedule=schedule(4)), "output/dense/bias holds values"
    with pytest.raises(UserError, match=f"layer_0/{message}"):
        first = {"init_checkpoint": str(trained)}
        run_pretraining(longer, *data, str(tmp_path / "new"), "train", **first)
    with pytest.raises(UserError, match=f"model.ckpt-2: .*layer_0/{message}"):
        run_pretraining(longer, *data, str(trained), "train")


# A run whose initial weights have another output embedding.
BEGUN = config(
    model=tiny_model(
        **{**SMALL, "output_embedding_size": 6},
        initial_values={"bert/*/word_embeddings": 2.0},
    ),
    schedule=schedule(train_steps=2),
    optimizer=adamw(rates=RATES | {"cls/predictions/transform/*": 2.0}),
)


@pytest.fixture(scope="module")
def begun(data, two_steps, tmp_path_factory):
    """The folder of such a run of two steps, and what it printed."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        first = {"init_checkpoint": str(two_steps)}
        run_pretraining(BEGUN, *data, str(folder), "train", **first)
    return folder, printed.getvalue()


def test_a_run_goes_on_from_another_with_a_fresh_output_embedding(
    data, two_steps, begun, capsys
):
    run, printed = begun
    assert "drawn from the seed: cls/predictions/output_embedding, " in printed
    without = (
        "no effect on variables of --init_checkpoint, such as bert/embeddings/word"
    )
    assert f"ModelConfig.initial_values has {without}" in printed
    first, second = checkpoint(two_steps), checkpoint(run)
    # What was taken over does not move, as the head alone is trained.
    table = "bert/embeddings/word_embeddings"
    np.testing.assert_allclose(second[table], first[table], atol=1e-9)
    assert second["cls/predictions/output_embedding"].shape == (54, 6)
    saved = json.loads((run / "config.json").read_text())
    assert saved["data"]["init_checkpoint"] == "model.ckpt-2"
    arguments = (BEGUN, *data, str(run), "train")
    run_pretraining(*arguments, init_checkpoint=str(two_steps))
    assert "complete at step 2; nothing to train" in capsys.readouterr().out


def test_a_run_with_a_beginning_goes_on_in_another_form(
    data, two_steps, begun, tmp_path, monkeypatch, capsys
):
    """Its initial weights have other sizes, and rates name what it lost."""
    run, first = str(begun[0]), {"init_checkpoint": str(two_steps)}
    narrow, folded = (str(tmp_path / name) for name in ("narrow", "folded"))
    change_embeddings(run, None, narrow, lambda model: factorise(model, 3))
    change_embeddings(run, None, folded, fold)
    assert "leave 'cls/predictions/transform/*' out" in capsys.readouterr().out

    def go_on(form, folder, rates, **branch):
        settings = dataclasses.replace(
            BEGUN, model=open_model(form).config, schedule=schedule(3),
            optimizer=adamw(rates=rates, learning_rate=5e-4),
        )  # fmt: skip
        run_pretraining(settings, *data, folder, "train", **first, **branch)
        return capsys.readouterr().out

    slower = "OptimizerConfig.learning_rate was 0.01 until step 2"
    branch = str(tmp_path / "branch")
    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "train", lambda *_, **__: None)
        assert slower in go_on(narrow, narrow, BEGUN.optimizer.rates)
        go_on(folded, branch, RATES, branch_from=f"{folded}/model.ckpt-2")
    assert_same(checkpoint(branch), checkpoint(folded))
    printed = go_on(folded, folded, RATES)
    assert f"{folded}/model.ckpt-2 at step 2, 16 examples" in printed
    assert slower in printed
    assert checkpoint(folded)["global_step"] == 3


def test_a_branch_is_what_the_trunk_would_have_become(data, trained, tmp_path, capsys):
    """Weights, slots, data and rate go on, as if the decay had always been set.

    The trunk ends in the warm-up, whose rate does not depend on what comes after it.
    """
    decayed = config(schedule=schedule(6, 4, "one_minus_sqrt", 2))
    run_pretraining(decayed, *data, str(tmp_path / "straight"), "train")
    branch = (decayed, *data, str(tmp_path / "branch"), "train")
    prefix = str(trained / "model.ckpt-2")
    run_pretraining(*branch, branch_from=prefix)
    assert "/branch/model.ckpt-2 at step 2, 16 examples" in capsys.readouterr().out
    branched = checkpoint(tmp_path / "branch")
    assert branched["global_step"] == 6
    assert_same(branched, checkpoint(tmp_path / "straight"))

    # The same command goes on with the branch, whatever becomes of the trunk.
    trained.rename(tmp_path / "elsewhere")
    run_pretraining(*branch, branch_from=prefix)
    assert "complete at step 6; nothing to train" in capsys.readouterr().out


def test_a_run_goes_on_with_untied_embeddings(data, tmp_path, monkeypatch, capsys):
    """From a checkpoint in its middle, to the end of its schedule."""

    def written(graph, run, *_, **__):
        """Random weights and slots, which are as good to go on from."""
        folder = Path(run.model_dir)
        write_list(run.model_dir, [write_weights(folder, graph.network.model)])

    sizes = tiny_model(**{**SMALL, "coupled": True})
    frozen = adamw(rates={"bert/encoder/*": 0})
    settings = dict(schedule=schedule(WRITTEN + 1), optimizer=frozen)
    coupled = config(model=sizes, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "train", written)
        run_pretraining(coupled, *data, str(tmp_path / "run"), "train")
    folder = str(tmp_path / "untied")
    change_embeddings(str(tmp_path / "run"), f"model.ckpt-{WRITTEN}", folder, untie)
    words, pieces = WORD_EMBEDDINGS, OUTPUT_EMBEDDING
    start = checkpoint(tmp_path / "untied")
    np.testing.assert_array_equal(start[words], start[pieces])
    np.testing.assert_array_equal(start[f"{words}/adam_v"], start[f"{pieces}/adam_v"])

    decoupled = config(model=dataclasses.replace(sizes, coupled=False), **settings)
    run_pretraining(decoupled, *data, folder, "train")

    assert "untied/model.ckpt-5 at step 5, 40 examples" in capsys.readouterr().out
    end = checkpoint(tmp_path / "untied")
    assert end["global_step"] == 6
    assert not np.array_equal(end[words], end[pieces])
    with pytest.raises(UserError, match="coupled is False, not True"):
        run_pretraining(coupled, *data, folder, "train")


def test_refused_branches(data, trained, tmp_path):
    folder = str(tmp_path / "branch")

    def branch(path=str(trained), **changes):
        run_pretraining(config(**changes), *data, folder, "train", branch_from=path)

    with pytest.raises(UserError, match=r"data.seed is 3, not 4; a branch has"):
        branch(training=tiny_training(seed=4))
    with pytest.raises(UserError, match=r"is of step 2, but the decay would begin at"):
        branch(schedule=schedule(40, 1))
    with pytest.raises(UserError, match=r"model.ckpt-1: no such folder, and no check"):
        branch(str(trained / "model.ckpt-1"))
    with pytest.raises(UserError, match=r"has no slots of the optimizer for bert/"):
        branch(optimizer=adamw(), schedule=schedule(train_steps=3))
    assert not (tmp_path / "branch").exists()


def test_rates_of_variables_belong_to_the_run(
    data, trained, tmp_path, without_training
):
    """A resumed run keeps them. A branch may have others."""
    rates = {"*output_embedding": 2.0, "bert/*": 0}
    other = config(optimizer=adamw(rates=rates), schedule=schedule(train_steps=3))
    with pytest.raises(UserError, match=r"rates.\*output_embedding is None, not 2"):
        run_pretraining(other, *data, str(trained), "train")
    folder = tmp_path / "branch"
    run_pretraining(other, *data, str(folder), "train", branch_from=str(trained))
    saved = json.loads((folder / "config.json").read_text())
    assert saved["data"]["rates"] == rates
    with pytest.raises(UserError, match=r"rates.\*output_embedding is 2.0, not None"):
        longer = config(schedule=schedule(train_steps=4))
        run_pretraining(longer, *data, str(folder), "train")


SHORT = PhaseConfig(
    steps=3,
    masking=dataclasses.replace(MASKING, sequence_length=8, masking_rate=0.3),
    sampling=SamplingConfig(1.0),
    batch_size=4,
)


def with_phase(**changes):
    """The setting of an earlier phase, `SHORT` with changes."""
    return {"earlier_phases": (dataclasses.replace(SHORT, **changes),)}


PHASES = config(
    schedule=schedule(6, 2),
    training=tiny_training(save_checkpoints_steps=1, keep_checkpoint_max=9),
    earlier_phases=(SHORT,),
)


@pytest.fixture(scope="module")
def phased(data, tmp_path_factory):
    """The folder of a run of two phases, and what it printed."""
    folder = tmp_path_factory.mktemp("phased") / "run"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run_pretraining(PHASES, *data, str(folder), "train")
    return folder, printed.getvalue()


def test_phases_have_data_of_their_own(data, phased, tmp_path, capsys):
    run, printed = phased
    first, second = (
        f"phase {n} of 2: steps {steps} tokens a step, {rate} predicted"
        for n, steps, rate in (
            (1, "0 to 3, 4 sequences of 8", "30%"),
            (2, "3 to 6, 8 sequences of 12", "15%"),
        )
    )
    assert printed.index(first) < printed.index("at step 3, 0 examples of this phase")
    assert printed.index(first) < printed.index(second)
    rows = json.loads((run / "sampling_phase_1.json").read_text())
    assert rows.keys() == json.loads((run / "sampling.json").read_text()).keys()

    # What is complete is said once.
    run_pretraining(PHASES, *data, str(run), "train")
    printed = capsys.readouterr().out
    assert printed.count("complete at step 6; nothing to train") == 1
    assert "phase 1 of 2" not in printed

    # The first is the beginning of a run that has its settings throughout.
    settings = config(
        schedule=schedule(6, 2),
        masking=SHORT.masking,
        sampling=SHORT.sampling,
        training=dataclasses.replace(PHASES.training, batch_size=4),
    )
    alone = tmp_path / "alone"
    run_pretraining(settings, *data, str(alone), "train")
    assert_same(at_step(run, 3), at_step(alone, 3))
    table = "cls/predictions/output_embedding"
    assert not np.array_equal(at_step(run, 4)[table], at_step(alone, 4)[table])

    saved = json.loads((run / "config.json").read_text())["data"]
    assert saved["masking"]["sequence_length"] == 12
    assert [phase["steps"] for phase in saved["earlier_phases"]] == [3]
    longer = dataclasses.replace(
        PHASES, earlier_phases=(dataclasses.replace(SHORT, steps=4),)
    )
    with pytest.raises(UserError, match=r"earlier_phases"):
        run_pretraining(longer, *data, str(run), "train")


def test_phases_resume_exactly_and_an_evaluation_that_was_ended_is_repeated(
    data, phased, tmp_path, assumed_predictions, monkeypatch
):
    """It comes every four steps: in the second phase, and at its end."""
    run = stopped_at(3, phased[0], tmp_path / "run")
    training = dataclasses.replace(PHASES.training, eval_every_steps=4)
    settings = dataclasses.replace(PHASES, training=training)
    arguments = (settings, *data, str(run), "train_and_evaluate")

    def ended(*_):
        raise Terminated("SIGTERM")

    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "_predictions", ended)
        with pytest.raises(Terminated):
            run_pretraining(*arguments)
    assert checkpoint(run)["global_step"] == 4
    run_pretraining(*arguments)
    evaluated = read_scalars(str(run / "eval"), "masked_lm_loss/sw")
    assert set(evaluated) == {4, 6}
    assert_same(at_step(run, 6), at_step(phased[0], 6))


def stopped_at(step, run, copy):
    """A copy of a run that saved every step, as it was then."""
    shutil.copytree(run, copy)
    (copy / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
    for later in range(step + 1, 7):
        for path in copy.glob(f"model.ckpt-{later}.*"):
            path.unlink()
    return copy


def at_step(folder, step):
    return checkpoint(folder / f"model.ckpt-{step}")


def assert_same(variables, expected):
    assert variables.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(variables[name], value, err_msg=name)


def test_evaluation_has_the_length_of_the_phase_that_was_left_and_its_own_rate(
    data, phased, tmp_path
):
    alone = config(schedule=schedule(3, 2), masking=SHORT.masking)
    run = stopped_at(3, phased[0], tmp_path / "run")
    run_pretraining(PHASES, *data, str(run), "eval")
    evaluated = json.loads((run / "eval.json").read_text())
    assert evaluated["global_step"] == 3
    counts = held_out_counts(alone, read_manifest(data[0]))
    # 15% of 6 tokens is one. At the phase's 30% there would be two in all but the last.
    predictions = {k: v["predictions"] for k, v in evaluated["languages"].items()}
    assert predictions == counts


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": tiny_model(vocab_size=55)}, "vocab_size: 55, but .* has 54 pieces"),
        (
            {"model": tiny_model(vocab_size=54, max_positions=8)},
            "more than ModelConfig",
        ),
        (
            {"mesh": MeshConfig("m:3", "heads:m")},
            "rule heads:m: dimension 'heads' of size 4 does not divide into 3",
        ),
        (
            {"mesh": MeshConfig("m:2", "vocb:m")},
            "no dimension 'vocb'",
        ),
        ({"objective": "rtd"}, "pretrain.objective: 'rtd' is none of mlm"),
        ({"sampling": SamplingConfig(0.5, {"xx": 0.1})}, "no language 'xx'"),
        (
            {"mesh": MeshConfig("m:2", "batch:m;vocab:m")},
            "rules vocab:m and batch:m split rows",
        ),
        # Every phase is checked before the first.
        (
            with_phase(masking=MaskingConfig(10_000, 1500)),
            "10000 is more than ModelConfig.max_positions",
        ),
        (with_phase(sampling=SamplingConfig(0.5, {"xx": 0.1})), "no language 'xx'"),
        (
            {"mesh": MeshConfig("d:2", "batch:d"), **with_phase(batch_size=3)},
            "batch.* of size 3 does not divide into 2",
        ),
    ],
)
def test_settings_that_do_not_fit_leave_no_folder(
    data, tmp_path, capsys, changes, message
):
    with pytest.raises(UserError, match=message):
        run_pretraining(config(**changes), *data, str(tmp_path / "run"), "train")
    assert "starting from" not in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_an_objective_is_a_class_and_its_name(
    data, tmp_path, copied_training, assumed_predictions, monkeypatch, capsys
):
    class Halved(MaskedLM):
        metrics = {"halved_accuracy": ("hits", "weight")}
        loss = "halved_loss"

        def results(self, rows):
            results = super().results(rows)
            accuracy = results.pop("masked_lm_accuracy")
            return {"halved_accuracy": accuracy / 2, **results}

    monkeypatch.setitem(OBJECTIVES, "halved", Halved)
    settings = config(objective="halved", schedule=schedule(train_steps=2))
    run_pretraining(settings, *data, str(tmp_path / "run"), "train_and_evaluate")
    printed = capsys.readouterr().out
    assert "halved_accuracy " in printed and "halved_loss " in printed
    evaluated = json.loads((tmp_path / "run/eval.json").read_text())
    assert set(evaluated["all"]) == {
        "halved_accuracy", "halved_loss", "unigram_entropy", "predictions",
    }  # fmt: skip
    saved = json.loads((tmp_path / "run/config.json").read_text())
    assert saved["data"]["objective"] == "halved"


def signalled(number, step, *arguments):
    """The same; the signal comes once, after the first save from `step` on."""
    save, sent = Checkpoints.save, []

    def saved(checkpoints, now):
        save(checkpoints, now)
        if now >= step and not sent:
            sent.append(now)
            os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", saved)
        return pretrain(*arguments)


# The command; it is killed three steps after a checkpoint.
KILLED = """
import os, signal
from decoupled.__main__ import main
from decoupled.training.bookkeeping import Monitor

after_steps = Monitor.after_steps

def killed(self, step, values):
    after_steps(self, step, values)
    if step == 8:
        os.kill(os.getpid(), signal.SIGKILL)

Monitor.after_steps = killed
main()
"""


def test_killed_and_terminated_runs_lose_nothing(data, straight, tmp_path):
    """Losses, weights and slots are those of a run that nobody disturbed."""
    run = data, tmp_path / "killed", *STRAIGHT
    done = run_python(KILLED, *pretrain_words(*run)[1:])
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = signalled(signal.SIGTERM, 10, *run)
    assert done.returncode == 143
    assert "SIGTERM: saved at step" in done.stderr
    assert "/model.ckpt-5 at step 5" in done.stdout
    done = pretrain(*run)
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stdout

    undisturbed, _ = straight
    expected = read_scalars(str(undisturbed), "loss")
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert read_scalars(str(tmp_path / "killed"), "loss") == expected
    assert_same(checkpoint(tmp_path / "killed"), checkpoint(undisturbed))


def test_evaluation_is_a_mode_of_its_own(data, two_steps, evaluated, tmp_path):
    settings = config(schedule=schedule(train_steps=1))
    with pytest.raises(UserError, match=r"no complete checkpoint \(model.ckpt-N"):
        run_pretraining(settings, *data, str(tmp_path / "none"), "eval")
    assert not (tmp_path / "none").exists()
    # A run of other settings may be about to save its first checkpoint there.
    claimed = tmp_path / "claimed"
    claimed.mkdir()
    shutil.copy(two_steps / "config.json", claimed)
    with pytest.raises(UserError, match="holds another model: data.batch_size"):
        other = config(training=tiny_training(batch_size=4))
        run_pretraining(other, *data, str(claimed), "eval")

    results, printed = evaluated
    assert not (two_steps / "eval.json").exists()
    assert results["global_step"] == 2
    languages = results["languages"].values()
    total = results["all"]["predictions"]
    assert total == sum(language["predictions"] for language in languages)
    for metric in ("masked_lm_loss", "masked_lm_accuracy"):
        mean = sum(x[metric] * x["predictions"] for x in languages) / total
        assert results["all"][metric] == pytest.approx(mean, rel=1e-9)
    assert "held-out text at step 2, 2 languages" in printed


def test_meshes_may_change_and_an_evaluation_is_of_one_checkpoint(
    data, trained, evaluated, monkeypatch, capsys
):
    """A longer training goes on beside it. It adds two steps, on a third mesh."""
    longer = config(schedule=schedule(4), mesh=MeshConfig("m:2", "vocab:m;heads:m"))
    predict = pretraining.predict

    def after_training(*arguments):
        monkeypatch.setattr(pretraining, "predict", predict)
        run_pretraining(longer, *data, str(trained), "train")
        return predict(*arguments)

    monkeypatch.setattr(pretraining, "predict", after_training)
    # Batches get rows that the mesh can split.
    mesh, odd = MeshConfig("d:2", "batch:d"), tiny_training(eval_batch_size=3)
    split = config(schedule=schedule(2), mesh=mesh, training=odd)
    run_pretraining(split, *data, str(trained), "eval")
    resumed = f"resuming from {trained}/model.ckpt-2 at step 2, 16 examples"
    assert resumed in capsys.readouterr().out
    assert checkpoint(trained)["global_step"] == 4
    again, (alone, _) = json.loads((trained / "eval.json").read_text()), evaluated
    assert (again["global_step"], again["made_from"]) == (2, alone["made_from"])
    assert again["all"] == pytest.approx(alone["all"], rel=1e-5)


def test_a_checkpoint_that_a_training_removes_is_named(data, trained, monkeypatch):
    predict = pretraining.predict

    def after_removal(*arguments):
        for path in trained.glob("model.ckpt-2.*"):
            path.unlink()
        return predict(*arguments)

    monkeypatch.setattr(pretraining, "predict", after_removal)
    with pytest.raises(UserError, match="model.ckpt-2: was removed before it was read"):
        run_pretraining(
            config(schedule=schedule(train_steps=2)), *data, str(trained), "eval"
        )
    assert not (trained / "eval.json").exists()


def test_a_run_with_an_optimizer_that_is_gone_cannot_go_on(
    data, trained, tmp_path, assumed_predictions
):
    """It is evaluated, and its weights begin other runs."""
    values = {
        name.replace("/adam_v", "_slot_v"): value
        for name, value in checkpoint(trained).items()
        if not name.endswith("/adam_m")
    }
    with CheckpointWriter(str(trained / "model.ckpt-2")) as writer:
        for name, value in values.items():
            writer.add(name, value)
    noted = (trained / "settings.json").read_bytes()
    for folder, words in (
        (trained, {}),
        (tmp_path / "branch", {"branch_from": str(trained)}),
    ):
        with pytest.raises(UserError, match="was trained with Adafactor") as caught:
            run_pretraining(config(), *data, str(folder), "train", **words)
        assert "\n" not in str(caught.value)
    assert (trained / "settings.json").read_bytes() == noted
    assert not (tmp_path / "branch").exists()
    run_pretraining(config(), *data, str(trained), "eval")
    assert json.loads((trained / "eval.json").read_text())["global_step"] == 2
    first = {"init_checkpoint": str(trained)}
    plan_pretraining(config(), *data, str(tmp_path / "new"), "train", **first)


def test_records_of_another_vocabulary_are_refused(data, tmp_path):
    other = make_vocabulary(tmp_path / "other.model", size=50).path
    model = tiny_model(vocab_size=50)

    with pytest.raises(UserError, match="vocabulary") as caught:
        run_pretraining(
            config(model=model), data[0], other, str(tmp_path / "run"), "train"
        )

    assert other in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mode", ["train_and_evaluate", "eval", "predict"])
def test_records_without_held_out_text_end_before_the_first_step(data, tmp_path, mode):
    folder = tmp_path / "records"
    shutil.copytree(data[0], folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["eval"] = {}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    arguments = (config(), str(folder), data[1], str(tmp_path / "run"))
    with pytest.raises(UserError, match="records: no held-out text .*--mode=train$"):
        run_pretraining(*arguments, mode)
    assert not (tmp_path / "run").exists()


def test_every_mistake_ends_in_one_line_and_code_2(data, tmp_path):
    cut = tmp_path / "cut"
    shutil.copytree(data[0], cut)
    shard = min((cut / "train" / "en").glob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-5])
    damaged = tmp_path / "damaged"
    shutil.copytree(data[0], damaged)
    for path in damaged.glob("train/*/*.tfrecord"):
        flip_byte(path, path.stat().st_size - 6)
    a_file = tmp_path / "file"
    a_file.write_text("mine")

    for records, folder, message in (
        (cut, tmp_path / "cut_run", f"{shard}: truncated or corrupt ("),
        (data[0], a_file / "run", f"{a_file}/run: cannot write here"),
        # Found when it is read, in training.
        (damaged, tmp_path / "run", ".tfrecord: record "),
    ):
        done = pretrain((records, data[1]), folder, f"OptimizerConfig.rates = {RATES}")
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("decoupled pretrain: error: ")
        assert message in done.stderr
    assert a_file.read_text() == "mine"
    assert not (tmp_path / "cut_run").exists()
