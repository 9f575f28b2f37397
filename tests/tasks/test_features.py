"""Texts and pairs of texts as the encoder's inputs."""

import numpy as np
import pytest

from decoupled.tasks.features import pack_texts, truncate


class Letters:
    """A vocabulary of letters: a is 10, b is 11, ..."""

    pad_id, cls_id, sep_id = 0, 1, 2

    def encode_batch(self, texts):
        return [[10 + ord(letter) - ord("a") for letter in text] for text in texts]


def test_one_text():
    packed = pack_texts(Letters(), [("ab",), ("",)], 6)
    np.testing.assert_array_equal(
        packed["input_word_ids"], [[1, 10, 11, 2, 0, 0], [1, 2, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        packed["input_mask"], [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]
    )
    assert not packed["input_type_ids"].any()
    assert {array.dtype for array in packed.values()} == {np.dtype(np.int32)}


def test_a_pair_has_two_types_and_three_special_pieces():
    packed = pack_texts(Letters(), [("ab", "c")], 8)
    assert packed["input_word_ids"].tolist() == [[1, 10, 11, 2, 12, 2, 0, 0]]
    assert packed["input_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 0, 0]]
    assert packed["input_mask"].tolist() == [[1, 1, 1, 1, 1, 1, 0, 0]]


def test_long_texts_are_cut_at_their_end():
    one = pack_texts(Letters(), [("abcdef",)], 5)
    assert one["input_word_ids"].tolist() == [[1, 10, 11, 12, 2]]
    pair = pack_texts(Letters(), [("abcdef", "gh")], 8)
    assert pair["input_word_ids"].tolist() == [[1, 10, 11, 12, 2, 16, 17, 2]]


@pytest.mark.parametrize(
    "lengths, budget, kept",
    [
        ((3, 3), 6, (3, 3)),
        ((5, 3), 7, (4, 3)),
        ((3, 5), 7, (3, 4)),
        ((5, 3), 5, (3, 2)),
        ((9, 1), 4, (3, 1)),
        ((4, 4), 3, (2, 1)),
        ((7,), 3, (3,)),
    ],
)
def test_the_longer_is_cut_first_and_of_equals_the_second(lengths, budget, kept):
    segments = [list(range(length)) for length in lengths]
    cut = truncate(segments, budget)
    assert tuple(map(len, cut)) == kept
    assert all(s[: len(c)] == c for s, c in zip(segments, cut, strict=True))
