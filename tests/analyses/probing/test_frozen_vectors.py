"""Words become pieces, sentences vectors, and targets rows of a batch."""

import numpy as np
import pytest

from decoupled.analyses.models import layer_encoder, open_models, packed
from decoupled.analyses.probing.frozen_vectors import (
    ProbingData,
    Sentence,
    label_ids,
    prepare,
)
from decoupled.analyses.probing.task_files import Example, Target
from decoupled.core.errors import UserError

EXAMPLES = [
    Example(
        ["Select", "the", "blue", "page"],
        [Target((0, 1), (1, 2), ("V",)), Target((1, 4), (0, 1), ("N", "D"))],
    ),
    Example(["the", "image"], [Target((1, 2), (0, 1), ("new",))]),
]


@pytest.fixture(scope="module")
def opened(pretrained_dir):
    [model] = open_models([pretrained_dir])
    return model, layer_encoder(model)


@pytest.fixture(scope="module")
def data(opened, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("cache") / "dev.npy")
    return prepare(*opened, EXAMPLES, {"D": 0, "N": 1, "V": 2}, path, None)


def pieces_of(vocabulary, words):
    return [vocabulary.encode(word) for word in words]


def test_labels_are_those_of_the_training_data():
    assert label_ids(EXAMPLES) == {"D": 0, "N": 1, "V": 2, "new": 3}


def test_spans_of_words_become_spans_of_pieces(data, vocabulary):
    counts = [len(ids) for ids in pieces_of(vocabulary, EXAMPLES[0].words)]
    ends = np.cumsum([0, *counts])
    first, second = data.sentences
    assert first.spans.tolist() == [
        [[0, ends[1]], [ends[1], ends[2]]],
        [[ends[1], ends[4]], [0, ends[1]]],
    ]
    assert (len(data.places), data.lost_targets) == (3, 0)
    assert (first.labels, second.labels) == ([(2,), (1, 0)], [(-1,)])


def test_vectors_are_those_of_the_encoder(data, opened, vocabulary):
    model, encoder = opened
    for number, (words, _) in enumerate(EXAMPLES):
        ids = vocabulary.encode(" ".join(words))
        outputs = encoder(packed(vocabulary, [ids])).numpy()
        expected = outputs[:, 0, 1:-1].swapaxes(0, 1)
        result = data.vectors[slice(*data.sentences[number][:2])]
        assert result.shape == expected.shape == (len(ids), 3, 8)
        np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3)


def test_a_batch_by_hand():
    sentences = [
        Sentence(0, 2, np.array([[[0, 2], [1, 2]]]), [(0,)], [(0, 0)]),
        Sentence(
            *(2, 6, np.array([[[1, 3], [0, 4]], [[3, 4], [0, 1]]])),
            *([(1, -1), ()], [(1, 0), (1, 1)]),
        ),
    ]
    vectors = np.arange(12, dtype=np.float16).reshape(6, 2, 1)
    data = ProbingData(vectors, sentences, 2, 0)
    batch = data.batch([1, 0])
    assert batch.vectors.dtype == np.float32
    # The second layer of the second sentence, then of the first.
    assert batch.vectors[:, 1].ravel().tolist() == [5, 7, 9, 11, 1, 3]
    (rows, owners), (other_rows, other_owners) = batch.spans
    assert rows.tolist() == [1, 2, 3, 4, 5]
    assert owners.tolist() == [0, 0, 1, 2, 2]
    assert other_rows.tolist() == [0, 1, 2, 3, 0, 5]
    assert other_owners.tolist() == [0, 0, 0, 0, 1, 2]
    assert batch.labels.tolist() == [[0, 1], [0, 0], [1, 0]]
    assert batch.unknown_labels == 1


# The model has 24 positions, two of them for [CLS] and [SEP].
@pytest.mark.parametrize("max_tokens, pieces", [(None, 22), (24, 22), (10, 8)])
def test_targets_beyond_the_length_are_lost(opened, tmp_path, max_tokens, pieces):
    words = ["objects"] * 30
    targets = [Target((0, 1), None, ("x",)), Target((29, 30), None, ("x",))]
    long = [Example(words, targets[1:]), Example(words, targets[::-1])]
    result = prepare(*opened, long, {"x": 0}, str(tmp_path / "a.npy"), max_tokens)
    assert result.lost_targets == 2
    # Of the second sentence the second target.
    assert result.places == [(1, 1)]
    assert len(result.vectors) == pieces
    last = [Example(words, targets[1:])]
    with pytest.raises(UserError, match=f"within the first {pieces + 2} positions"):
        prepare(*opened, last, {"x": 0}, str(tmp_path / "b.npy"), max_tokens)


def test_words_that_are_nothing_keep_their_place(opened, vocabulary, tmp_path):
    nothing = "\u200b"
    assert vocabulary.encode(nothing) == []
    example = Example(["the", nothing, "page"], [Target((1, 2), None, ("x",))])
    result = prepare(*opened, [example], {"x": 0}, str(tmp_path / "a.npy"), None)
    the = len(vocabulary.encode("the"))
    [sentence] = result.sentences
    assert sentence.spans.tolist() == [[[the, the + 1]]]
