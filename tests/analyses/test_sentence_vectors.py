"""Vectors of sentences from a model folder, against the serving encoder's."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from decoupled.analyses import models
from decoupled.analyses.models import Tokens, tokenize
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.exports.serving.encoder import Encoder
from decoupled.tasks.classification import pack_texts
from tests.analyses.sentences import (
    ENGLISH,
    OTHERS,
    open_model,
    retrieval,
    write_trained_model,
)

TEXTS = [*ENGLISH, "", *OTHERS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_trained_model(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def encoder(folder):
    return open_model(folder)


def served(encoder, length, special):
    """Means over each text's tokens in the last layer of the serving encoder."""
    arrays = pack_texts(encoder.vocabulary, [(text,) for text in TEXTS], length)
    outputs = Encoder(encoder.config, encoder.weights)(
        {name: tf.constant(value) for name, value in arrays.items()}
    )["sequence_output"].numpy()
    means = []
    for row, mask in zip(outputs, arrays["input_mask"], strict=True):
        real = row[: mask.sum()] if special else row[1 : mask.sum() - 1]
        means.append(real.mean(0) if len(real) else np.zeros(row.shape[1]))
    return np.stack(means)


@pytest.mark.parametrize("special, length", [(True, 24), (False, 10)])
def test_vectors_are_means_over_the_tokens_of_the_last_layer(encoder, special, length):
    lengths = tokenize(encoder.vocabulary, TEXTS).lengths(length)
    assert lengths.min() <= 8 < lengths.max() == length
    config = retrieval(max_sequence_length=length, pool_special_tokens=special)
    found = models.layer_vectors(encoder, TEXTS, config)
    np.testing.assert_allclose(found, served(encoder, length, special), atol=2e-5)


def test_layers_are_counted_from_either_end():
    layers = [retrieval(layer=number).layer_of(2, "m") for number in (0, 2, -1, -3)]
    assert layers == [0, 2, 2, 0]
    for number in (3, -4):
        with pytest.raises(UserError, match=rf"layer: {number}, .*layers 0 .* to 2"):
            retrieval(layer=number).layer_of(2, "m")


def test_more_tokens_than_positions(encoder):
    with pytest.raises(UserError, match="max_positions = 24"):
        models.check_lengths(encoder, retrieval(max_sequence_length=25))


@pytest.mark.parametrize("special", [True, False])
def test_a_long_sentence_is_the_mean_over_the_tokens_of_its_windows(encoder, special):
    """Of windows that are encoded as texts of their own."""
    config = retrieval(max_sequence_length=8, pool_special_tokens=special)
    long = " ".join(ENGLISH[:3])
    (found,) = models.layer_vectors(
        encoder,
        [long],
        dataclasses.replace(config, long_sentences="windows"),
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
    outputs = Encoder(encoder.config, encoder.weights)(
        {name: tf.constant(value) for name, value in features.items()}
    )["sequence_output"].numpy()
    tokens = [
        row[: size + 2] if special else row[1 : size + 1]
        for row, size in zip(outputs, sizes, strict=True)
    ]
    np.testing.assert_allclose(found, np.concatenate(tokens).mean(0), atol=2e-5)
    (cut,) = models.layer_vectors(encoder, [long], config)
    assert np.abs(found - cut).max() > 1e-3


@pytest.mark.parametrize("layers", [[0], [1, 0], [0, 1, 2]])
def test_each_layer_by_itself(encoder, layers):
    every = dict.fromkeys(range(3))
    for layer in every:
        config = retrieval(layer=layer)
        every[layer] = models.layer_vectors(encoder, TEXTS, config)
    seen = []
    for rows, pooled in models.encode_texts(encoder, TEXTS, layers, retrieval()):
        assert sorted(pooled) == sorted(layers)
        for layer, vectors in pooled.items():
            np.testing.assert_allclose(vectors, every[layer][rows], atol=1e-6)
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(TEXTS)))


def test_no_text_has_no_vector(encoder):
    assert models.layer_vectors(encoder, [], retrieval()).shape == (0, 8)


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


class Letters(NamedTuple):
    """A vocabulary whose pieces are characters."""

    pad_id: int = 0
    cls_id: int = 1
    sep_id: int = 2

    def encode_batch(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


LETTERS = ["ab", "", "cdefgh", "z", "ij"]


def test_tokens_of_all_sentences(monkeypatch):
    monkeypatch.setattr(models, "_TEXTS_AT_ONCE", 2)
    tokens = tokenize(Letters(), LETTERS)
    assert "".join(map(chr, tokens.ids)) == "".join(LETTERS)
    assert tokens.ends.tolist() == [2, 2, 8, 9, 11]
    assert tokens.lengths(6).tolist() == [4, 2, 6, 3, 4]


def test_batches_by_hand():
    tokens, rows = tokenize(Letters(), LETTERS), np.array([2, 0, 1])
    sizes = tokens.lengths(5)[rows]
    ids, mask = models._batch(Letters(), tokens, rows, sizes)
    a, b, c, d, e = map(ord, "abcde")
    # A long sentence is cut and keeps its end.
    assert ids.tolist() == [[1, c, d, e, 2], [1, a, b, 2, 0], [1, 2, 0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]


def test_long_sentences_are_divided_into_windows_of_nearly_equal_length():
    # 2, 0 and 9 pieces; a window has room for 4 beside [CLS] and [SEP].
    tokens = Tokens(np.arange(11, dtype=np.int32), np.array([2, 2, 11]))
    windows, owners = tokens.windows(6)
    assert windows.ends.tolist() == [2, 2, 5, 8, 11]
    assert owners.tolist() == [0, 1, 2, 2, 2]
    assert windows.ids is tokens.ids
    unchanged, same = tokens.windows(11)
    assert unchanged.ends.tolist() == [2, 2, 11] and same.tolist() == [0, 1, 2]
