"""Which checkpoint is opened, by which name, and what is refused."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from decoupled.analyses.models import (
    LayerEncoder,
    batches,
    describe,
    open_models,
    short_names,
)
from decoupled.core.errors import UserError
from decoupled.model.variables import OUTPUT_EMBEDDING, OUTPUT_FACTOR
from tests.analyses.tiny_runs import write_finetuned_run, write_run
from tests.exports.models import model_config, pretrained_weights, random_batch
from tests.exports.reference import Reference


def test_names_are_the_shortest_that_differ(tmp_path):
    for name in ("a/runs/x", "a/runs/y", "b/runs/x"):
        (tmp_path / name).mkdir(parents=True)
    a_x, a_y, b_x = (
        f"{tmp_path}/{name}" for name in ("a/runs/x", "a/runs/y", "b/runs/x")
    )
    assert short_names([a_x, a_y]) == ["x", "y"]
    assert short_names([f"{a_x}/", b_x]) == ["a/runs/x", "b/runs/x"]
    assert short_names([f"{a_x}/model.ckpt-5"]) == ["x/model.ckpt-5"]
    with pytest.raises(UserError, match="a/runs/x: is given twice"):
        short_names([a_x, a_x])


def test_what_a_result_says_of_a_model(pretrained_dir, coupled_dir, vocabulary):
    decoupled, coupled = open_models([pretrained_dir, coupled_dir])
    assert describe(decoupled) == {
        "name": "pretrained",
        "folder": pretrained_dir,
        "checkpoint": "model.ckpt-7",
        "global_step": 7,
        "vocabulary": vocabulary.fingerprint,
        "vocab_size": 48,
        "coupled": False,
        "input_embedding_size": 6,
        "output_embedding_size": 10,
        "hidden_size": 8,
        "num_layers": 2,
    }
    assert describe(coupled)["coupled"] is True


def test_the_best_checkpoint_counts_where_one_was_kept(vocabulary, tmp_path):
    folder = write_finetuned_run(tmp_path / "run", vocabulary)
    best = pathlib.Path(folder, "best")
    best.mkdir()
    for file in pathlib.Path(folder).glob("model.ckpt-7*"):
        shutil.copy(file, best / file.name.replace("-7", "-3"))
    newest = 'model_checkpoint_path: "model.ckpt-3"\n'
    (best / "checkpoint").write_text(f"{newest}all_{newest.replace('path', 'paths')}")
    [model] = open_models([folder])
    assert model.weights.path == f"{best}/model.ckpt-3"
    [model] = open_models([f"{best}/model.ckpt-3"])
    assert (model.folder, model.name) == (folder, "best/model.ckpt-3")


def test_sizes_must_be_those_of_the_checkpoint(vocabulary, tmp_path):
    folder = write_run(tmp_path / "run", vocabulary)
    path = tmp_path / "run" / "config.json"
    described = json.loads(path.read_text())
    described["model"]["output_embedding_size"] = 12
    path.write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"transform/dense/kernel has shape \[8, 10\]"):
        open_models([folder])


def test_the_output_embedding_of_low_rank_is_the_product(vocabulary, tmp_path):
    config = model_config(output_embedding_rank=3)
    weights = pretrained_weights(config)
    folder = write_run(tmp_path / "run", vocabulary, {"output_embedding_rank": 3})
    [model] = open_models([folder])
    table = weights[OUTPUT_EMBEDDING] @ weights[OUTPUT_FACTOR]
    assert model.embeddings == ["input", "output"]
    np.testing.assert_array_equal(model.embedding("output"), table)


def test_the_head_is_asked_for(vocabulary, tmp_path):
    folder = write_finetuned_run(tmp_path / "run", vocabulary)
    [model] = open_models([folder])
    assert list(model.embeddings) == ["input"]
    with pytest.raises(UserError, match="holds no MLM head"):
        open_models([folder], masked_lm=True)


@pytest.mark.parametrize("folder", ["pretrained_dir", "coupled_dir"])
def test_all_layers_and_the_embedding(folder, request):
    [model] = open_models([request.getfixturevalue(folder)])
    reference = Reference(model.config, {n: model.weights[n] for n in model.weights})
    batch = random_batch(model.config, 3, 7)
    outputs = LayerEncoder(model)(batch | {"more": np.zeros(2)}).numpy()
    assert outputs.shape == (3, 3, 7, 8)
    real = batch["input_mask"].astype(bool)
    for layer, expected in enumerate(reference.encode(batch), start=1):
        np.testing.assert_allclose(outputs[layer][real], expected[real], atol=2e-5)
    embeddings = "bert/embeddings"
    x = reference.weights[f"{embeddings}/word_embeddings"][batch["input_word_ids"]]
    x = x + reference.weights[f"{embeddings}/position_embeddings"][:7]
    types = reference.weights[f"{embeddings}/token_type_embeddings"]
    x = reference.layer_norm(
        x + types[batch["input_type_ids"]], f"{embeddings}/LayerNorm"
    )
    x = reference.dense(x, "bert/encoder/embedding_hidden_mapping_in")
    np.testing.assert_allclose(outputs[0], x, atol=2e-5)


def test_batches_hold_every_row_once_without_empty_columns():
    lengths = [5, 2, 3, 1, 4]
    mask = (np.arange(6) < np.array(lengths)[:, np.newaxis]).astype(np.int32)
    arrays = {
        "input_mask": mask,
        "input_word_ids": mask * np.arange(1, 6)[:, np.newaxis],
        "number": np.arange(5),
    }
    found = list(batches(arrays, 2))
    assert [batch["number"].tolist() for batch in found] == [[3, 1], [2, 4], [0]]
    assert [batch["input_mask"].shape for batch in found] == [(2, 2), (2, 4), (1, 5)]
    assert found[1]["input_word_ids"].tolist() == [[3, 3, 3, 0], [5, 5, 5, 5]]
