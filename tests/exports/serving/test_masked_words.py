"""The pieces predicted for a mask."""

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.data.vocabulary import open_vocabulary
from decoupled.exports.serving.masked_words import (
    MaskedWords,
    encode_masked,
    open_checkpoint,
)
from tests.vocabularies import train_vocabulary


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A vocabulary of characters, so that its pieces can be typed in."""
    path = tmp_path_factory.mktemp("words") / "characters.model"
    sentences = ["Select a page, (it) is empty. 密码不能为空。"] * 9
    return open_vocabulary(train_vocabulary(path, sentences, model_type="char"))


@pytest.mark.parametrize(
    "text, pieces",
    [
        # In training: the pieces of "a page." with those of "page" replaced.
        ("a [MASK].", "▁ a [MASK] ."),
        ("a [MASK] .", "▁ a [MASK] ▁ ."),
        ("([MASK]) is", "▁ ( [MASK] ) ▁ i s"),
        ("a ([MASK])", "▁ a ▁ ( [MASK] )"),
        ("it[MASK]", "▁ i t [MASK]"),
        ("[MASK]s", "[MASK] s"),
        ("[MASK]", "[MASK]"),
        ("  [MASK]\t", "[MASK]"),
        ("[MASK] is", "[MASK] ▁ i s"),
        ("[MASK], it", "[MASK] , ▁ i t"),
        ("is [MASK]", "▁ i s [MASK]"),
        ("is\u00a0 [MASK]", "▁ i s [MASK]"),
        ("[MASK][MASK] [MASK]", "[MASK] [MASK] [MASK]"),
        ("s[MASK]y", "▁ s [MASK] y"),
        # No word of Chinese begins with the space before a text.
        ("[MASK]不能为空。", "▁ [MASK] 不 能 为 空 。"),
        ("密码[MASK]为空。", "▁ 密 码 [MASK] 为 空 。"),
        ("密码[MASK]", "▁ 密 码 [MASK]"),
        # Of an unknown character only it is unknown.
        ("☃[MASK]☃", "▁ <unk> [MASK] <unk>"),
    ],
)
def test_text_beside_a_mask_has_the_pieces_of_training(words, text, pieces):
    ids = encode_masked(words, text)
    encoded = [words.id_to_piece(index) for index in ids]
    assert encoded == ["[CLS]", *pieces.split(), "[SEP]"]


def test_a_text_without_a_mask_is_refused(vocabulary):
    with pytest.raises(UserError, match=r"'none': has no \[MASK\] to fill"):
        encode_masked(vocabulary, "none")


def test_most_probable_pieces_come_first(vocabulary):
    def logits(inputs):
        assert inputs["masked_lm_positions"].numpy().tolist() == [[1, 2]]
        assert inputs["input_word_ids"].shape == (1, 4)
        # More rows than the vocabulary has pieces; the last is the likeliest.
        scores = np.zeros((1, 2, vocabulary.size + 1), np.float32)
        scores[0, 0, 7], scores[0, 0, 9], scores[0, 0, -1] = 3, 2, 4
        scores[0, 1, 8] = 50
        return scores

    first, second = MaskedWords(vocabulary, 24, logits).fill("[MASK][MASK]", 2)
    total = np.exp([3, 2, 4]).sum() + vocabulary.size - 2
    assert [row.piece for row in first] == [vocabulary.id_to_piece(i) for i in (7, 9)]
    assert [row.probability for row in first] == pytest.approx(np.exp([3, 2]) / total)
    assert second[0] == (vocabulary.id_to_piece(8), pytest.approx(1.0))


def test_models_without_a_head_say_so(finetuned_dir):
    with pytest.raises(UserError, match="ckpt-7: has no output embedding and no MLM"):
        open_checkpoint(finetuned_dir, None)


def test_texts_that_are_too_long_are_refused(pretrained_dir):
    model = open_checkpoint(pretrained_dir, None)
    with pytest.raises(UserError, match="tokens, the model has 24 positions"):
        model.fill("[MASK] " + "image " * 30, 1)
