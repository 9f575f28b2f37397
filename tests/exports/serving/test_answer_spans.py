"""The graph chooses and trims answers as `tasks.qa_answers` does."""

import random

import numpy as np
import pytest
import tensorflow as tf

from decoupled.configs import QuestionAnsweringConfig
from decoupled.exports.serving.question_windows import Windows, characters
from decoupled.exports.serving.text_questions import Spans, Trim, best_spans
from decoupled.tasks import qa_answers

# White space of several kinds, brackets, closing signs, letters of one to four bytes.
ALPHABET = " \t\u00a0\u3000abé猫𐍈()（）[]{}「」.,;:!。-–\x1f\u200b"


def random_spans(count=3000):
    """(text, characters of its first piece, of its last piece)."""
    generator = random.Random(0)
    for _ in range(count):
        text = "".join(generator.choices(ALPHABET, k=generator.randint(1, 12)))
        yield text, generator.randint(1, len(text)), generator.randint(1, len(text))


def test_trims_as_the_evaluation_does():
    cases = list(random_spans())
    texts, heads, tails = zip(*cases, strict=True)
    found = characters(tf.constant(texts))
    start, end = found.splits[:-1], found.splits[1:]
    spans = Spans(
        start,
        end,
        head_end=start + tf.constant(heads, tf.int64),
        tail_start=end - tf.constant(tails, tf.int64),
        score=None,
    )
    begin, stop = Trim()(spans, found)
    places = zip((begin - start).numpy(), (stop - start).numpy(), strict=True)
    trimmed = [text[a:b] for text, (a, b) in zip(texts, places, strict=True)]
    assert trimmed == [qa_answers.trim(*case) for case in cases]
    assert len(set(trimmed)) > 1000


def random_windows(generator, count, length):
    """Windows of four questions, whose pieces stand for one to three characters."""
    question = np.sort(generator.integers(0, 4, count))
    question[:4] = np.arange(4)
    question.sort()
    inside = np.zeros([count, length], bool)
    inside[:, 3:-2] = True
    # The context of the last question has no text.
    inside[question == 3] = False
    sizes = generator.integers(0, 4, [count, length])
    ends = np.where(inside, np.cumsum(sizes, axis=1), 0)
    starts = np.where(inside, np.cumsum(sizes, axis=1) - sizes, 0)
    middle = inside & (generator.random([count, length]) < 0.7)
    return question, inside, starts, ends, middle


def check_against_the_evaluation(generator, logits, longest, n_best):
    question, inside, starts, ends, middle = random_windows(
        generator, *logits.shape[1:]
    )
    settings = QuestionAnsweringConfig(8, 8, longest, n_best)
    features = {
        "character_starts": np.where(inside, starts, -1),
        "character_ends": np.where(inside, ends, -1),
        "max_context": middle.astype(np.int8),
    }
    expected = qa_answers.best_spans(features, *logits, settings)
    windows = Windows(
        tf.constant(question, tf.int64),
        {},
        tf.constant(starts, tf.int64),
        tf.constant(ends, tf.int64),
        tf.constant(middle),
    )
    spans = best_spans(
        windows, *map(tf.constant, logits), tf.constant(4, tf.int64), settings
    )
    for number in range(3):
        rows = np.flatnonzero(question == number)
        row = rows[expected[rows, 2].argmax()]
        first, last = expected[row, :2].astype(int)
        assert float(spans.score[number]) == expected[row, 2]
        assert spans.start[number] == starts[row, first]
        assert spans.end[number] == ends[row, last]
        assert spans.head_end[number] == ends[row, first]
        assert spans.tail_start[number] == starts[row, last]
    assert spans.score[3] == -np.inf
    assert (int(spans.start[3]), int(spans.end[3])) == (0, 0)


@pytest.mark.parametrize("longest, n_best", [(1, 1), (3, 4), (30, 20), (5, 50)])
def test_finds_the_spans_that_the_evaluation_finds(longest, n_best):
    generator = np.random.default_rng(longest)
    logits = generator.normal(size=[2, 12, 24]).astype(np.float32)
    check_against_the_evaluation(generator, logits, longest, n_best)


@pytest.mark.parametrize("n_best", [1, 4, 20])
@pytest.mark.parametrize("values", [1, 3])
def test_chooses_the_span_of_the_evaluation_among_equal_ones(values, n_best):
    generator = np.random.default_rng(n_best)
    for _ in range(10):
        logits = generator.integers(0, values, [2, 12, 24]).astype(np.float32)
        check_against_the_evaluation(generator, logits, 5, n_best)


def test_a_limit_in_characters():
    generator = np.random.default_rng(0)
    question, _, starts, ends, middle = random_windows(generator, 12, 24)
    windows = Windows(
        tf.constant(question, tf.int64),
        {},
        tf.constant(starts, tf.int64),
        tf.constant(ends, tf.int64),
        tf.constant(middle),
    )
    logits = generator.normal(size=[2, 12, 24]).astype(np.float32)
    settings = QuestionAnsweringConfig(8, 8, 1, 24)
    batch = tf.constant(4, tf.int64)
    spans = best_spans(windows, *map(tf.constant, logits), batch, settings, 6)
    has_text = ends > starts
    for number in range(3):
        # All spans of all windows, one by one.
        best = max(
            logits[0, row, first] + logits[1, row, last]
            for row in np.flatnonzero(question == number)
            for first in np.flatnonzero(has_text[row])
            for last in np.flatnonzero(has_text[row])
            if first <= last
            and ends[row, last] - starts[row, first] <= 6
            and middle[row, (first + last + 1) // 2]
        )
        assert float(spans.score[number]) == pytest.approx(best)
        assert spans.end[number] - spans.start[number] <= 6
