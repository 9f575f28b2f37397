"""Sentences in batches: every token in its place."""

from typing import NamedTuple

import numpy as np

from decoupled.tasks import sentence_batches as batches


class Letters(NamedTuple):
    """A vocabulary whose pieces are characters."""

    pad_id: int = 0
    cls_id: int = 1
    sep_id: int = 2

    def encode_batch(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


TEXTS = ["ab", "", "cdefgh", "z", "ij"]


def collected(texts, wanted, batch_size, pool_special_tokens=False):
    """Batches of (rows, length)."""
    tokens = batches.tokenize(Letters(), texts)
    wanted = [batches.Batch(np.array(rows), length) for rows, length in wanted]
    input_fn = batches.batch_input_fn(
        Letters(), tokens, wanted, batch_size, pool_special_tokens
    )
    return list(input_fn().as_numpy_iterator())


def test_tokens_of_all_sentences(monkeypatch):
    monkeypatch.setattr(batches, "_TEXTS_AT_ONCE", 2)
    tokens = batches.tokenize(Letters(), TEXTS)
    assert "".join(map(chr, tokens.ids)) == "".join(TEXTS)
    assert tokens.ends.tolist() == [2, 2, 8, 9, 11]
    assert tokens.lengths(6).tolist() == [4, 2, 6, 3, 4]


def test_batches_by_hand():
    first, second = collected(TEXTS, [([0, 1], 5), ([3], 5)], batch_size=2)
    a, b, z = map(ord, "abz")
    assert first["input_word_ids"].tolist() == [[1, a, b, 2, 0], [1, 2, 0, 0, 0]]
    assert first["input_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]
    assert first["pooled_tokens"].tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert second["input_word_ids"].tolist() == [[1, z, 2, 0, 0], [0] * 5]
    assert second["input_mask"].tolist() == [[1, 1, 1, 0, 0], [0] * 5]
    assert not second["input_type_ids"].any()


def test_each_batch_has_its_own_length():
    first, second = collected(TEXTS, [([2, 4], 8), ([0, 3], 4)], batch_size=2)
    assert first["input_word_ids"][0].tolist() == [1, *map(ord, "cdefgh"), 2]
    assert second["input_word_ids"].tolist() == [
        [1, *map(ord, "ab"), 2],
        [1, ord("z"), 2, 0],
    ]
    assert first["input_mask"].shape == (2, 8)
    assert second["pooled_tokens"].shape == (2, 4)


def test_long_sentences_are_cut_and_keep_their_end():
    (batch,) = collected(TEXTS, [([2], 5)], batch_size=1)
    assert batch["input_word_ids"].tolist() == [[1, *map(ord, "cde"), 2]]


def test_special_tokens_count_where_asked_for():
    (batch,) = collected(TEXTS, [([0], 5)], batch_size=1, pool_special_tokens=True)
    assert batch["pooled_tokens"].tolist() == batch["input_mask"].tolist()
