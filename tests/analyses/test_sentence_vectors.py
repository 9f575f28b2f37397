"""Vectors of sentences from a model folder, against the serving encoder's."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from decoupled.analyses import sentence_vectors
from decoupled.configs import MeshConfig
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.exports.checkpoint_files import CheckpointFile
from decoupled.exports.serving.encoder import Encoder
from decoupled.tasks.classification import pack_texts
from decoupled.tasks.pooling import tokenize
from tests.analyses.sentences import (
    ENGLISH,
    ONE_DEVICE,
    OTHERS,
    retrieval,
    write_trained_model,
)

TEXTS = [*ENGLISH, "", *OTHERS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_trained_model(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def encoder(folder):
    return sentence_vectors.open_encoder(folder)


def served(encoder, length, special):
    """Means over each text's tokens in the last layer of the serving encoder."""
    arrays = pack_texts(encoder.vocabulary, [(text,) for text in TEXTS], length)
    outputs = Encoder(encoder.model, CheckpointFile(encoder.checkpoint))(
        {name: tf.constant(value) for name, value in arrays.items()}
    )["sequence_output"].numpy()
    means = []
    for row, mask in zip(outputs, arrays["input_mask"], strict=True):
        real = row[: mask.sum()] if special else row[1 : mask.sum() - 1]
        means.append(real.mean(0) if len(real) else np.zeros(row.shape[1]))
    return np.stack(means)


@pytest.mark.parametrize("special, length", [(True, 24), (False, 10)])
def test_vectors_are_those_of_the_serving_encoder(
    encoder, special, length, monkeypatch
):
    # Sentences of different lengths get graphs of their own.
    monkeypatch.setattr("decoupled.training.lengths._FLOPS_PER_GRAPH", 1)
    lengths = tokenize(encoder.vocabulary, TEXTS).lengths(length)
    assert lengths.min() <= 8 < lengths.max() == length
    config = retrieval(max_sequence_length=length, pool_special_tokens=special)
    found = sentence_vectors.layer_vectors(encoder, TEXTS, config, ONE_DEVICE)
    np.testing.assert_allclose(found, served(encoder, length, special), atol=2e-5)


def test_a_checkpoint_that_is_not_the_newest(folder, encoder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "model")
    (copy / "checkpoint").unlink()
    older = sentence_vectors.open_encoder(str(copy / "model.ckpt-7"))
    assert older.step == 7
    vectors = [
        sentence_vectors.layer_vectors(e, ENGLISH[:3], retrieval(layer=1), ONE_DEVICE)
        for e in (encoder, older)
    ]
    np.testing.assert_array_equal(*vectors)


def test_layers_are_counted_from_either_end(encoder):
    layers = [encoder.layer(retrieval(layer=number)) for number in (0, 2, -1, -3)]
    assert layers == [0, 2, 2, 0]
    for number in (3, -4):
        with pytest.raises(UserError, match=rf"layer: {number}, .*layers 0 .* to 2"):
            encoder.layer(retrieval(layer=number))


def test_more_tokens_than_positions(encoder):
    with pytest.raises(UserError, match="max_positions = 24"):
        sentence_vectors.check_lengths(encoder, retrieval(max_sequence_length=25))


def test_a_mesh_that_does_not_fit(encoder):
    mesh = MeshConfig("b:3", "batch:b", "float32", "gather", "float32", 128)
    with pytest.raises(
        UserError, match="'batch' of size 4 .* RetrievalConfig.batch_size"
    ):
        sentence_vectors.layer_vectors(encoder, ENGLISH, retrieval(), mesh)


def test_another_vocabulary_is_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "model")
    (copy / "checkpoint").unlink()
    described = json.loads((copy / "config.json").read_text())
    described["vocabulary"]["fingerprint"] = "0" * 64
    (copy / "config.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match="is not the vocabulary that the model"):
        sentence_vectors.open_encoder(str(copy / "model.ckpt-7"))


@pytest.mark.parametrize("special", [True, False])
def test_a_long_sentence_is_the_mean_over_the_tokens_of_its_windows(encoder, special):
    """Of windows that are encoded as texts of their own."""
    config = retrieval(max_sequence_length=8, pool_special_tokens=special)
    long = " ".join(ENGLISH[:3])
    (found,) = sentence_vectors.layer_vectors(
        encoder,
        [long],
        dataclasses.replace(config, long_sentences="windows"),
        ONE_DEVICE,
    )
    windows, _ = tokenize(encoder.vocabulary, [long]).windows(8)
    assert len(windows.ends) > 2
    sizes = np.diff(windows.ends, prepend=0)
    features = {
        "input_word_ids": np.zeros([len(sizes), 8], np.int32),
        "input_mask": np.zeros([len(sizes), 8], np.int32),
        "input_type_ids": np.zeros([len(sizes), 8], np.int32),
    }
    start = 0
    for row, end in enumerate(windows.ends):
        ids = [
            encoder.vocabulary.cls_id,
            *windows.ids[start:end],
            encoder.vocabulary.sep_id,
        ]
        features["input_word_ids"][row, : len(ids)] = ids
        features["input_mask"][row, : len(ids)] = 1
        start = end
    outputs = Encoder(encoder.model, CheckpointFile(encoder.checkpoint))(
        {name: tf.constant(value) for name, value in features.items()}
    )["sequence_output"].numpy()
    tokens = [
        row[: size + 2] if special else row[1 : size + 1]
        for row, size in zip(outputs, sizes, strict=True)
    ]
    np.testing.assert_allclose(found, np.concatenate(tokens).mean(0), atol=2e-5)
    (cut,) = sentence_vectors.layer_vectors(encoder, [long], config, ONE_DEVICE)
    assert np.abs(found - cut).max() > 1e-3
