"""The fine-tuning command: what it takes from a checkpoint, and mistakes."""

import dataclasses
import json

import numpy as np
import pytest

from decoupled import build_records
from decoupled.compat import tf
from decoupled.configs import FinetuningConfig, MeshConfig, SamplingConfig
from decoupled.errors import UserError
from decoupled.finetune import FinetuneConfig, run_finetuning
from decoupled.pretrain import PretrainConfig, run_pretraining
from tests.data.small_corpus import make_corpus, make_vocabulary
from tests.helpers import MASKING, adamw, schedule, tiny_model, tiny_training

FINETUNING = FinetuningConfig(
    num_epochs=6.0,
    max_sequence_length=12,
    classifier_dropout=0.1,
    keep_layers=0,
    freeze_input_embedding=False,
    warmup_fraction=0.1,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pre-trained model, and a task: does a text speak of a record or of words?"""
    folder = tmp_path_factory.mktemp("finetune")
    make_corpus(folder / "corpus")
    vocabulary = make_vocabulary(folder / "sentencepiece.model").path
    records = str(folder / "records")
    build_records.build(str(folder / "corpus"), vocabulary, records, 2000, 1)
    config = PretrainConfig(
        tiny_model(vocab_size=54),
        MeshConfig("all:1", "", "float32"),
        MASKING,
        SamplingConfig(0.5),
        adamw(),
        schedule(train_steps=5),
        tiny_training(),
    )
    run_pretraining(config, records, vocabulary, str(folder / "pretrained"), "train")
    task = folder / "tasks" / "catalogs"
    task.mkdir(parents=True)
    (task / "labels.txt").write_text("record\nword\n")
    words = "the holds text of one language and every is kept here".split()
    lines = [f"{w} {label}\t{label}\n" for w in words for label in ("record", "word")]
    (task / "train-en.tsv").write_text("".join(lines * 3))
    (task / "dev-en.tsv").write_text("".join(lines[:6]))
    (task / "test-sw.tsv").write_text("rekodi word\tword\nneno record\trecord\n")
    return folder


def tune(folder, name, mode="train_and_evaluate", **changes):
    config = FinetuneConfig(
        dataclasses.replace(FINETUNING, **changes),
        MeshConfig("all:1", "", "float32"),
        adamw(learning_rate=5e-3),
        tiny_training(),
    )
    arguments = (str(folder / "tasks"), str(folder / "pretrained"))
    run_finetuning(config, "catalogs", *arguments, str(folder / name), mode)
    return folder / name


def variables(path):
    reader = tf.train.load_checkpoint(str(path))
    return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}


def test_learns_and_reports(folder, capsys):
    tuned = tune(folder, "tuned")
    printed = capsys.readouterr().out
    assert "initialised" in printed and "cls/predictions/output_embedding" in printed
    results = json.loads((tuned / "results.json").read_text())
    assert results["dev"]["en"] == {
        "accuracy": 1.0,
        "majority_accuracy": 0.5,
        "examples": 6,
    }
    assert results["test"]["sw"]["examples"] == 2
    names = variables(tuned)
    assert not any(name.startswith("cls/") for name in names)
    assert names["output_weights"].shape == (2, 16)
    assert names["bert/pooler/dense/kernel"].shape == (16, 16)
    # 66 examples, 6 epochs, batches of 8.
    assert names["global_step"] == 50
    tune(folder, "tuned")
    assert "of step 50 already, reused" in capsys.readouterr().out
    tune(folder, "tuned", mode="predict")
    rows = (tuned / "predictions/test-sw.tsv").read_text().splitlines()
    assert [row.split("\t")[0] for row in rows][0] in ("record", "word")
    assert len(rows) == 2


def test_keeps_the_first_layers_only(folder):
    tuned = tune(folder, "one_layer", mode="train", keep_layers=1, num_epochs=0.2)
    names = variables(tuned)
    assert "bert/encoder/layer_0/output/dense/kernel" in names
    assert not any("layer_1" in name for name in names)
    saved = json.loads((tuned / "config.json").read_text())
    assert saved["model"]["num_layers"] == 1


def test_a_frozen_input_embedding_does_not_move(folder):
    tuned = tune(
        folder, "frozen", mode="train", freeze_input_embedding=True, num_epochs=1.0
    )
    before, after = variables(folder / "pretrained"), variables(tuned)
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


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"keep_layers": 3}, "keep_layers: 3, but the checkpoint's model has 2"),
        ({"max_sequence_length": 21}, "max_positions = 20"),
    ],
)
def test_more_than_the_model_has(folder, changes, message):
    with pytest.raises(UserError, match=message):
        tune(folder, "refused", **changes)
    assert not (folder / "refused").exists()


def test_wrong_checkpoint(folder, tmp_path):
    with pytest.raises(UserError, match="no complete checkpoint"):
        run_finetuning(
            FinetuneConfig(FINETUNING, None, None, tiny_training()),
            "catalogs", str(folder / "tasks"), str(tmp_path),
            str(tmp_path / "x"), "train",
        )  # fmt: skip
    with pytest.raises(UserError, match="no such checkpoint"):
        run_finetuning(
            FinetuneConfig(FINETUNING, None, None, tiny_training()),
            "catalogs", str(folder / "tasks"), str(folder / "pretrained/model.ckpt-9"),
            str(tmp_path / "x"), "train",
        )  # fmt: skip
