"""Vectors of words are means of rows."""

import numpy as np
import pytest

from decoupled.analyses.models import open_models
from decoupled.analyses.word_vectors import known_pieces, read_words, word_vectors
from decoupled.core.errors import UserError


def test_a_words_vector_is_the_mean_of_its_pieces(pretrained_dir, vocabulary):
    [model] = open_models([pretrained_dir])
    vectors = word_vectors(model, ["password", "the", "the"])
    assert list(vectors) == ["input", "output"]
    for kind, width in (("input", 6), ("output", 10)):
        table = model.embedding(kind)
        assert table.shape == (48, width)
        for word in ("password", "the"):
            expected = table[vocabulary.encode(word)].mean(0)
            np.testing.assert_allclose(vectors[kind][word], expected, rtol=1e-6)
    # One of the words has several pieces.
    assert len(vocabulary.encode("password")) > 1


def test_a_coupled_model_has_one_table(coupled_dir):
    [model] = open_models([coupled_dir])
    assert list(word_vectors(model, ["page"])) == ["input"]


def test_words_with_unknown_pieces_are_left_out(vocabulary, pretrained_dir):
    assert list(known_pieces(vocabulary, ["page", "Ωmega", ""])) == ["page"]
    [model] = open_models([pretrained_dir])
    assert word_vectors(model, ["Ω"]) == {"input": {}, "output": {}}


def test_lists_of_words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("rose\n\n tulip \nrose\n")
    assert read_words(str(path)) == ["rose", "tulip"]
    path.write_text("\n\n")
    with pytest.raises(UserError, match=r"words.txt: holds no words"):
        read_words(str(path))
