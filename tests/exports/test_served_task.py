"""What is refused before anything is written: each mistake in one line, by name."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from decoupled.configs import QuestionAnsweringConfig
from decoupled.core.errors import UserError
from decoupled.exports.served_task import check_exportable, read_task
from decoupled.exports.serving.saved_model import export
from decoupled.runs.saved_run import open_model
from tests.exports.conftest import LABELS
from tests.exports.models import (
    finetuned_weights,
    model_config,
    pretrained_weights,
    write_checkpoint,
)

CONFIG = model_config()


@pytest.fixture
def run(pretrained_dir, tmp_path):
    """A copy of a pre-training run, free to be broken."""
    return pathlib.Path(shutil.copytree(pretrained_dir, tmp_path / "run"))


def change_config(run, **changes):
    path = run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def open_task(folder):
    """The task of a folder."""
    return read_task(open_model(str(folder)))


def refused(run, sequence_length=16, checkpoint=None):
    """The message of the UserError; nothing may have been written."""
    target = run.parent / "out"
    with pytest.raises(UserError) as caught:
        model = open_model(str(run), checkpoint)
        export(
            model,
            read_task(model),
            str(target),
            sequence_length=sequence_length,
            mlm=False,
            overwrite=False,
        )
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{run}/")


def with_weights(run, weights):
    """Makes a later checkpoint the newest one of the run."""
    write_checkpoint(str(run / "model.ckpt"), weights, step=9)
    return run


def test_a_kind_makes_it_a_tagger(run):
    change_config(run, task={"name": "panx", "kind": "tagging", "labels": LABELS})
    trained = open_task(run)
    assert (trained.kind, trained.text_kind) == ("tagger", None)
    assert trained.labels == LABELS


READER = {"name": "xquad", "kind": "question answering", "labels": []}
FEATURES = {"max_sequence_length": 24, "max_question_length": 9, "doc_stride": 7}


def test_a_reader_has_the_settings_of_its_training_and_its_last_evaluation(run):
    change_config(run, task=READER, data={"features": FEATURES})
    answers = {"max_answer_length": 11, "n_best": 3}
    (run / "answers.json").write_text(json.dumps(answers))
    trained = open_task(run)
    assert (trained.kind, trained.text_kind) == ("span_model", None)
    assert trained.answers == QuestionAnsweringConfig(9, 7, 11, 3)
    assert (trained.default_length(CONFIG), trained.assumed_settings) == (24, [])
    other = trained.with_max_answer_length(5)
    assert other.answers == QuestionAnsweringConfig(9, 7, 5, 3)


@pytest.mark.parametrize(
    "task, features, segments",
    [
        ({"name": "xnli", "labels": LABELS}, {}, (2,)),
        ({"name": "ours", "labels": LABELS}, {"texts": ["a", "b"]}, (2,)),
        ({"name": "ours", "labels": LABELS}, {"texts": [3]}, (1,)),
        ({"name": "ours", "kind": "regression"}, {"texts": ["a", "b"]}, (2,)),
        ({"name": "catalogs", "labels": LABELS}, {}, (1, 2)),
        (None, {}, (1, 2)),
    ],
)
def test_a_model_takes_as_many_texts_as_in_training(run, task, features, segments):
    change_config(run, task=task, data={"features": features})
    assert open_task(run).segments == segments


@pytest.mark.parametrize("task", [READER, {"name": "xnli", "labels": LABELS}])
def test_pairs_need_two_type_embeddings(run, task):
    sizes = dataclasses.asdict(CONFIG) | {"type_vocab_size": 1}
    change_config(run, task=task, data={"features": FEATURES}, model=sizes)
    assert "one type embedding (ModelConfig.type_vocab_size)" in refused(
        run, sequence_length=24
    )


def test_a_limit_in_characters_takes_the_place_of_one_in_pieces(run):
    change_config(run, task=READER, data={"features": FEATURES})
    answers = {"max_answer_length": "auto", "max_characters": 50, "n_best": 3}
    (run / "answers.json").write_text(json.dumps(answers))
    trained = open_task(run)
    assert trained.max_characters == 50
    assert trained.answer_settings() == {
        "max_question_length": 9,
        "doc_stride": 7,
        "max_answer_length": None,
        "n_best": 3,
        "max_characters": 50,
    }
    # Without training data "auto" says nothing.
    (run / "answers.json").write_text(json.dumps({"max_answer_length": "auto"}))
    unknown = open_task(run)
    assert unknown.answers.max_answer_length == 30
    assert unknown.assumed_settings == ["max_answer_length", "n_best"]
    other = trained.with_max_answer_length(5)
    assert (other.max_characters, other.answers.max_answer_length) == (None, 5)


def test_a_reader_of_unknown_settings_has_those_of_xtreme(run):
    change_config(run, task=READER, data={"source": "elsewhere"})
    trained = open_task(run)
    # XTREME's scripts allow 30 pieces.
    assert trained.answers == QuestionAnsweringConfig(max_answer_length=30)
    assert trained.assumed_settings == sorted(dataclasses.asdict(trained.answers))


def test_the_assumed_windows_of_a_reader_fit_its_positions(run):
    sizes = dataclasses.asdict(CONFIG) | {"max_positions": 100}
    change_config(run, task=READER, data={"source": "elsewhere"}, model=sizes)
    model = open_model(str(run))
    trained = read_task(model)
    # [CLS], two [SEP] and a question of 64 leave 33.
    assert trained.answers == QuestionAnsweringConfig(64, 33, 30)
    assert "doc_stride" in trained.assumed_settings
    assert refused(run, sequence_length=99).endswith("so give 100 or more")
    with pytest.raises(UserError, match="position_embeddings has shape"):
        check_exportable(model, trained, 100, mlm=False)


def test_a_reader_without_positions_for_a_question(run):
    change_config(run, task=READER, data={"source": "elsewhere"})
    message = (
        f"{run}: max_positions = 24 leaves no room for a question of 64 pieces and "
        "windows that begin every 128; fine-tune the model with smaller "
        "max_question_length and doc_stride"
    )
    assert refused(run, sequence_length=24) == message


@pytest.mark.parametrize(
    "answers, message",
    [
        ({"n_best": 0}, "QuestionAnsweringConfig.n_best: 0 is not"),
        ({"n_best": "7"}, "QuestionAnsweringConfig.n_best"),
        ({"max_characters": 0}, "answers.json: max_characters is 0, not 1 or more"),
    ],
)
def test_impossible_settings_of_a_reader(run, answers, message):
    change_config(run, task=READER, data={"features": FEATURES})
    (run / "answers.json").write_text(json.dumps(answers))
    assert message in refused(run)


def test_windows_that_would_skip_text(run):
    change_config(run, task=READER, data={"features": FEATURES | {"doc_stride": 12}})
    assert refused(run, sequence_length=23) == (
        "--sequence_length: 23 leaves 11 pieces of context beside a question of 9; "
        "windows begin every 12 pieces, so give 24 or more"
    )


@pytest.mark.parametrize("pieces", [0, -1])
def test_an_impossible_limit_of_answers(run, pieces):
    change_config(run, task=READER, data={"features": FEATURES})
    with pytest.raises(UserError, match=f"--max_answer_length: {pieces} is less than"):
        open_task(run).with_max_answer_length(pieces)


def test_a_limit_of_answers_for_another_model(finetuned_dir):
    with pytest.raises(UserError, match="--max_answer_length: is for models that"):
        open_task(finetuned_dir).with_max_answer_length(5)


TWO_NAMES = ["yes", "no", "no "]
LENGTH = "sequence_length is {!r}, not between 1 and the model's max_positions = 24"


@pytest.mark.parametrize(
    "task, data, message",
    [
        (
            {"name": "x", "kind": "translation"},
            {},
            "a task of the kind 'translation'; known: classification, regression, "
            "tagging, question answering",
        ),
        ({"name": "xquad"}, {}, '"task" has no list of labels'),
        ({"labels": ["yes", "no\n"]}, {}, "label 'no\\n' has the control character"),
        ({"labels": ["yes"]}, {}, "has the label 'yes' alone; two or more"),
        ({"kind": "tagging", "labels": ["O"]}, {}, "has the label 'O' alone"),
        ({"labels": TWO_NAMES}, {}, "label 'no' occurs twice"),
        ({"labels": ["caf\u00e9", "cafe\u0301"]}, {}, "look the same"),
        (
            {"name": "ours", "labels": LABELS},
            {"features": {"texts": ["a", None]}},
            "texts is ['a', None], not one or two",
        ),
        *(
            (None, {"masking": {"sequence_length": length}}, LENGTH.format(length))
            for length in ("9", 0, 25, True, None)
        ),
        *(
            (
                None,
                {"masking": {"sequence_length": 9}, "earlier_phases": phases},
                "earlier_phases: no phases",
            )
            for phases in (1, [1], [{"steps": "1"}], [{"masking": {}, "steps": 1}])
        ),
    ],
)
def test_a_config_that_contradicts_itself(run, task, data, message):
    change_config(run, task=task, data=data)
    said = refused(run)
    assert said.startswith("config.json: ") and message in said


def test_checkpoints_that_are_missing_or_cut_off(run):
    data = next(run.glob("*.data-00000-of-00001"))
    data.write_bytes(data.read_bytes()[:-100])
    for name in ("model.ckpt-8", "model.ckpt-7"):
        assert refused(run, checkpoint=name).startswith(f"{name}: ")


WEIGHTS = pretrained_weights(CONFIG)
KERNEL = "bert/encoder/layer_1/output/dense/kernel"
BETA = "bert/embeddings/LayerNorm/beta"


@pytest.mark.parametrize(
    "weights, message",
    [
        (
            {name: WEIGHTS[name] for name in WEIGHTS if name != KERNEL},
            f"no variable {KERNEL} [12, 8]; this is not a checkpoint of the model that "
            "config.json describes",
        ),
        (
            pretrained_weights(model_config(intermediate_size=16)),
            "bert/encoder/layer_0/intermediate/dense/kernel has shape [8, 16], the "
            "model of config.json has [8, 12]",
        ),
        (
            pretrained_weights(model_config(num_layers=3)),
            "bert/encoder/layer_2/attention/output/LayerNorm/beta [8] is not part of "
            "the model",
        ),
        (
            WEIGHTS | {BETA: np.full(6, np.nan, np.float32)},
            f"{BETA} holds values that are not finite",
        ),
    ],
    ids=["missing", "shape", "more layers", "diverged"],
)
def test_weights_of_another_model(run, weights, message):
    assert refused(with_weights(run, weights)).startswith(f"model.ckpt-9: {message}")


def test_as_many_labels_as_the_classifier_has(run):
    change_config(run, task={"labels": LABELS[:2]})
    weights = finetuned_weights(CONFIG, len(LABELS))
    assert "output_weights has shape [3, 8]" in refused(with_weights(run, weights))


def phases(*earlier_phases, last):
    """Of steps and lengths, before a last one of this length."""
    return {
        "masking": {"sequence_length": last},
        "earlier_phases": [
            {"steps": steps, "masking": {"sequence_length": length}}
            for steps, length in earlier_phases
        ],
    }


@pytest.mark.parametrize(
    "data, trained, default",
    [
        ({"features": {"max_sequence_length": 9}}, 9, 9),
        ({"masking": {"sequence_length": 24}}, 24, 24),
        # The checkpoint is of step 7.
        (phases((7, 12), last=24), 12, 12),
        (phases((3, 12), (3, 8), last=9), 12, 12),
        (phases((6, 12), last=24), 24, 24),
        # Of a conversion: TF Hub's 128, but this model has 24 positions.
        ({"source": "elsewhere"}, None, 24),
    ],
)
def test_the_length_of_training_is_the_default(run, data, trained, default):
    change_config(run, data=data)
    model = open_task(run)
    assert (model.trained_length, model.default_length(CONFIG)) == (trained, default)


@pytest.mark.parametrize("length", [4, 25])
def test_impossible_sequence_length(run, length):
    assert refused(run, sequence_length=length) == (
        f"--sequence_length: {length} is not between 5 and the model's "
        "max_positions = 24"
    )


def test_the_selected_checkpoint_is_chosen_unread(run):
    data = next(run.glob("*.data-00000-of-00001"))
    data.write_bytes(b"damaged" + data.read_bytes()[7:])
    assert open_model(str(run), verify=False).weights.path == f"{run}/model.ckpt-7"
    with pytest.raises(UserError, match="no complete checkpoint|cannot be read"):
        open_model(str(run))
    (run / "checkpoint").unlink()
    assert open_model(str(run), verify=False).weights.path == f"{run}/model.ckpt-7"
    with pytest.raises(UserError, match="no complete checkpoint"):
        open_model(str(run))
    next(run.glob("*.index")).unlink()
    with pytest.raises(UserError, match="no readable list of checkpoints"):
        open_model(str(run), verify=False)
    (run / "checkpoint").write_text("nonsense")
    with pytest.raises(UserError, match="run/checkpoint: cannot be read; write"):
        open_model(str(run), verify=False)
