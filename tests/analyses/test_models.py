"""Which checkpoint is opened, by which name; vectors of layers and sentences."""

import dataclasses
import json

import numpy as np
import pytest

from decoupled.analyses import models
from decoupled.analyses.models import (
    array_on_disk,
    describe,
    layer_encoder,
    open_models,
    short_names,
    text_parts,
)
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.exports.serving.encoder import Encoder
from decoupled.training.xla import adapter
from tests.analyses.sentences import (
    ENGLISH,
    OTHER_LANGUAGES,
    open_model,
    retrieval,
    write_trained_model,
)
from tests.analyses.tiny_runs import write_finetuned_run, write_run
from tests.exports.models import random_batch
from tests.exports.reference import Reference

TEXTS = [*ENGLISH[:5], "", *OTHER_LANGUAGES[:4]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_trained_model(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def encoder(folder):
    return open_model(folder)


@pytest.fixture(scope="module")
def last_layer(encoder):
    return models.layer_vectors(encoder, TEXTS, retrieval())


def expected_means(encoder, config):
    """Means over each text's tokens in the last layer of the serving encoder."""
    network = Encoder(encoder.config, encoder.weights)
    special, means = int(config.pool_special_tokens), []
    for ids in encoder.vocabulary.encode_batch(TEXTS):
        windows = text_parts(np.array(ids, np.int32), config)
        features = models.packed(encoder.vocabulary, windows)
        outputs = network({name: tf.constant(x) for name, x in features.items()})
        rows = zip(outputs["sequence_output"].numpy(), windows, strict=True)
        tokens = [row[1 - special : 1 + len(of) + special] for row, of in rows]
        joined = np.concatenate(tokens)
        means.append(joined.sum(0) / max(1, len(joined)))
    return np.stack(means)


@pytest.mark.parametrize(
    "length, long, special", [(10, "cut", True), (8, "windows", False)]
)
def test_vectors_are_means_over_the_tokens_of_the_last_layer(
    encoder, length, long, special
):
    """Of texts, or of windows that are encoded as separate texts."""
    sizes = [len(ids) for ids in encoder.vocabulary.encode_batch(TEXTS)]
    assert min(sizes) == 0 and max(sizes) > 2 * 6
    config = retrieval(
        max_sequence_length=length, pool_special_tokens=special, long_sentences=long
    )
    result = models.layer_vectors(encoder, TEXTS, config)
    np.testing.assert_allclose(result, expected_means(encoder, config), atol=2e-5)


def test_accelerators_give_the_same_vectors(encoder, last_layer):
    """Lengths are padded to multiples, and batches to a multiple of the devices."""
    pytest.importorskip("jax")
    adapter.Client("cpu", [8], print)
    config = retrieval()
    pool = models.pooling_function(encoder, [2], config, "cpu")
    vectors = models.layer_vectors(encoder, TEXTS, config, pool)
    np.testing.assert_allclose(vectors, last_layer, atol=1e-6)


def test_layers_are_counted_from_either_end():
    layers = [retrieval(layer=number).layer_of(2, "m") for number in (0, 2, -1, -3)]
    assert layers == [0, 2, 2, 0]
    for number in (3, -4):
        with pytest.raises(UserError, match=rf"layer: {number}, .*layers 0 .* to 2"):
            retrieval(layer=number).layer_of(2, "m")


def test_each_layer_by_itself(encoder, last_layer):
    every = np.zeros([3, len(TEXTS), 8], np.float32)
    models.add_vectors(every, encoder, TEXTS, range(3), retrieval())
    lower = (
        models.layer_vectors(encoder, TEXTS, retrieval(layer=layer)) for layer in (0, 1)
    )
    for vectors, expected in zip([*lower, last_layer], every, strict=True):
        np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_a_disk_that_is_too_small_is_refused(tmp_path):
    vectors = array_on_disk(str(tmp_path / "some"), np.float16, (2, 3))
    assert (vectors.shape, vectors.any()) == ((2, 3), False)
    with pytest.raises(UserError, match="no room for .* TMPDIR can be another folder"):
        array_on_disk(str(tmp_path / "all"), np.float32, (10**8, 10**9))


def test_numbers_that_are_not_finite_are_refused(encoder, monkeypatch):
    class Diverged(dict):
        """Weights of which each is NaN."""

        path = "model.ckpt-7"

        def __missing__(self, name):
            return np.full_like(encoder.weights[name], np.nan)

        def __contains__(self, name):
            return name in encoder.weights

    diverged = dataclasses.replace(encoder, weights=Diverged())
    with pytest.raises(UserError, match="model.ckpt-7: gives numbers that are not fin"):
        models.layer_vectors(diverged, ENGLISH, retrieval())


def test_long_sentences_are_divided_into_windows_of_nearly_equal_length():
    # A window has room for 4 beside [CLS] and [SEP].
    config = retrieval(max_sequence_length=6, long_sentences="windows")
    for size, expected in ((0, [0]), (4, [4]), (9, [3, 3, 3]), (10, [3, 3, 4])):
        ids = np.arange(size)
        windows = text_parts(ids, config)
        assert [len(window) for window in windows] == expected
        np.testing.assert_array_equal(np.concatenate(windows), ids)


def test_names_are_the_shortest_that_differ(tmp_path):
    for name in ("a/runs/x", "a/runs/y", "b/runs/x"):
        (tmp_path / name).mkdir(parents=True)
    a_x, a_y, b_x = (
        f"{tmp_path}/{name}" for name in ("a/runs/x", "a/runs/y", "b/runs/x")
    )
    assert short_names([a_x, a_y]) == ["x", "y"]
    assert short_names([f"{a_x}/", b_x]) == ["a/runs/x", "b/runs/x"]
    assert short_names([f"{a_x}/model.ckpt-5"]) == ["x/model.ckpt-5"]
    for again in (a_x, f"{a_x}/", f"{tmp_path}/a/./runs/x"):
        with pytest.raises(UserError, match="/x/?: is given twice"):
            short_names([a_x, again])


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


def test_sizes_must_be_those_of_the_checkpoint(vocabulary, tmp_path):
    folder = write_run(tmp_path / "run", vocabulary)
    path = tmp_path / "run" / "config.json"
    described = json.loads(path.read_text())
    described["model"]["output_embedding_size"] = 12
    path.write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"transform/dense/kernel has shape \[8, 10\]"):
        open_models([folder])


def test_the_head_and_the_positions_are_asked_for(vocabulary, tmp_path):
    folder = write_finetuned_run(tmp_path / "run", vocabulary)
    [model] = open_models([folder])
    assert list(model.embeddings) == ["input"]
    with pytest.raises(UserError, match="holds no MLM head"):
        open_models([folder], masked_lm=True)
    with pytest.raises(UserError, match="sequence_length: 32, but run has max_posit"):
        open_models([folder], length=32)


def test_all_layers_and_the_embedding(pretrained_dir):
    [model] = open_models([pretrained_dir])
    reference = Reference(model.config, {n: model.weights[n] for n in model.weights})
    batch = random_batch(model.config, 3, 7)
    outputs = layer_encoder(model)(batch | {"more": np.zeros(2)}).numpy()
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


def test_batches_hold_every_text_once_the_longest_first(vocabulary):
    pieces = [[7] * count for count in (3, 0, 1, 6, 2)]
    result = list(models.encoder_batches(vocabulary, pieces, 2, "texts"))
    assert [rows.tolist() for rows, _ in result] == [[3, 0], [4, 2], [1]]
    assert [batch["input_mask"].shape for _, batch in result] == [
        (2, 8),
        (2, 4),
        (1, 2),
    ]
    cls, sep, pad = vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id
    _, second = result[1]
    assert second["input_word_ids"].tolist() == [[cls, 7, 7, sep], [cls, 7, sep, pad]]
    assert second["input_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
