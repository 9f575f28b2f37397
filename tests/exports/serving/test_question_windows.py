"""The graph cuts contexts into the windows of `tasks.qa_features`, piece by piece."""

import numpy as np
import pytest
import tensorflow as tf

from decoupled.configs import QuestionAnsweringConfig
from decoupled.exports.serving.question_windows import (
    ContextPieces,
    characters,
    question_windows,
)
from decoupled.tasks.qa_features import context_pieces, question_features
from decoupled.tasks.qa_files import Question
from tests.tasks.question_samples import TEXTS, make_vocabulary

ODD = (
    "",
    "   ",
    "\u200b",
    "½ kg ﬁne ｆｕｌｌ con người \u00a0x",
    "e\u0301\u0302\u0323 a",
    # Unknown characters: in scripts without spaces each is a piece of its own.
    "猫☃☃猫ก็กกิ☃a☃b",
    "¨ x ¨",
    "  two  spaces  ",
    "ﷺ end",
    "가각 가\u0301",
    "[CLS] [MASK] <pad> 𐍈",
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("reader") / "pieces.model")


def samples():
    """Questions in all languages of the samples, and about odd contexts."""
    for language, (context, *pairs) in TEXTS.items():
        for number, (text, _) in enumerate(pairs):
            # Long enough for several windows.
            yield Question(f"{language}{number}", text, f"{context} {context}", ())
    for number, context in enumerate(ODD):
        yield Question(f"odd{number}", "What is it?" * number, context, ())


def pieces_of(vocabulary, contexts):
    texts = tf.constant(contexts)
    text = characters(texts)
    return ContextPieces(vocabulary, vocabulary.tokenizer())(texts, text), text


def test_pieces_stand_for_the_same_characters(reader):
    contexts = [*ODD, *(text for text, *_ in TEXTS.values())]
    pieces, text = pieces_of(reader, contexts)
    for number, context in enumerate(contexts):
        expected = context_pieces(reader, context)
        own = slice(*pieces.splits.numpy()[number : number + 2])
        offset = text.splits[number]
        np.testing.assert_array_equal(pieces.ids[own], expected.ids, context)
        np.testing.assert_array_equal(pieces.starts[own] - offset, expected.starts)
        np.testing.assert_array_equal(pieces.ends[own] - offset, expected.ends)


@pytest.mark.parametrize(
    "length, asked, stride", [(32, 8, 5), (40, 16, 21), (300, 16, 16)]
)
def test_windows_are_those_of_training(reader, length, asked, stride):
    questions = list(samples())
    settings = QuestionAnsweringConfig(asked, stride, 30, 20)
    expected = question_features(reader, questions, length, settings)
    pieces, text = pieces_of(reader, [question.context for question in questions])
    queries = reader.tokenizer().tokenize([question.text for question in questions])
    windows = question_windows(reader, queries, pieces, length, settings)
    np.testing.assert_array_equal(windows.question, expected["example_index"])
    width = windows.starts.shape[1]
    assert width == expected["input_mask"].sum(axis=1).max()
    for name, value in windows.packed.items():
        assert value.dtype == tf.int32
        np.testing.assert_array_equal(value, expected[name][:, :width], name)
        assert not expected["input_mask"][:, width:].any()
    np.testing.assert_array_equal(
        windows.may_be_middle, expected["max_context"][:, :width] == 1
    )
    inside = expected["character_starts"][:, :width] >= 0
    offsets = tf.gather(text.splits, windows.question)[:, tf.newaxis]
    for name, places in (
        ("character_starts", windows.starts),
        ("character_ends", windows.ends),
    ):
        own = (places - offsets).numpy()
        np.testing.assert_array_equal(own[inside], expected[name][:, :width][inside])


def test_no_questions_make_no_windows(reader):
    pieces, _ = pieces_of(reader, tf.constant([], tf.string))
    queries = reader.tokenizer().tokenize(tf.constant([], tf.string))
    settings = QuestionAnsweringConfig(8, 8, 30, 20)
    windows = question_windows(reader, queries, pieces, 32, settings)
    assert windows.starts.shape[0] == windows.packed["input_mask"].shape[0] == 0
