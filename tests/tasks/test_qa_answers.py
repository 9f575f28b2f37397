"""From logits to answers: by hand, and against a search of all spans."""

import dataclasses

import numpy as np
import pytest

from decoupled.configs import QuestionAnsweringConfig
from decoupled.tasks.qa_answers import (
    best_spans,
    scored_answers,
    span_text,
    trim,
)
from decoupled.tasks.qa_files import Question

SETTINGS = QuestionAnsweringConfig(8, 8, max_answer_length=3, n_best=2)
CONTEXT = "one two three four"
WORDS = [(0, 3), (3, 7), (7, 13), (13, 18)]


def window(first=0, owner=0, width=8):
    """A window over CONTEXT from word `first` on: [CLS] Q [SEP] words [SEP]."""
    words = WORDS[first:]
    starts, ends = np.full([2, 1, width], -1, np.int32)
    starts[0, 3 : 3 + len(words)] = [start for start, _ in words]
    ends[0, 3 : 3 + len(words)] = [end for _, end in words]
    return {
        "example_index": np.array([owner], np.int32),
        "character_starts": starts,
        "character_ends": ends,
        "max_context": (starts >= 0).astype(np.int8),
    }


def join(*windows):
    return {name: np.concatenate([w[name] for w in windows]) for name in windows[0]}


def logits(*rows, width=8):
    """Rows of {place: logit}; others are 0."""
    result = np.zeros([len(rows), width], np.float32)
    for row, values in zip(result, rows, strict=True):
        for place, value in values.items():
            row[place] = value
    return result


def answers(features, starts, ends, settings=SETTINGS, count=1, most=None):
    questions = [Question(str(i), "?", CONTEXT, ()) for i in range(count)]
    scores = logits(*starts), logits(*ends)
    scored = scored_answers(questions, features, *scores, settings, most)
    return [answer.text for answer in scored]


def test_the_best_start_and_end():
    assert answers(window(), [{4: 5}], [{5: 4}]) == ["two three"]


def test_white_space_is_no_part_of_an_answer():
    assert answers(window(), [{4: 5}], [{4: 5}]) == ["two"]


def test_places_outside_the_context_do_not_count():
    """[CLS] is at 0, the question at 1, the last [SEP] at 7."""
    assert answers(window(), [{0: 9, 1: 9, 5: 1}], [{0: 9, 7: 9, 5: 1}]) == ["three"]


def test_an_end_is_not_before_its_start():
    """6 + 5 would be most, but in the wrong order; 6 + 1 is more than 1 + 5."""
    assert answers(window(), [{5: 6, 3: 1}], [{4: 5, 6: 1}]) == ["three four"]


def test_an_answer_is_not_too_long():
    starts, ends = [{3: 5, 4: 1}], [{6: 5, 5: 2}]
    assert answers(window(), starts, ends) == ["one two three"]
    four = dataclasses.replace(SETTINGS, max_answer_length=4)
    assert answers(window(), starts, ends, four) == ["one two three four"]


def test_auto_limits_characters_instead_of_pieces():
    """The context is "one two three four"; each word is a piece."""
    starts, ends = [{3: 5, 4: 1}], [{6: 5, 5: 2}]
    auto = dataclasses.replace(SETTINGS, max_answer_length="auto")
    for most, expected in (
        (18, "one two three four"),
        (17, "one two three"),
        (13, "one two three"),
        (12, "two three"),
    ):
        assert answers(window(), starts, ends, auto, most=most) == [expected]
    with pytest.raises(ValueError, match="max_characters must be given"):
        answers(window(), starts, ends, auto)


def test_where_no_pair_is_possible_the_best_piece_answers():
    one = dataclasses.replace(SETTINGS, n_best=1)
    assert answers(window(), [{6: 5}], [{3: 4}], one) == ["four"]


def test_the_best_window_answers():
    features = join(window(), window(first=2), window(owner=1))
    starts = [{3: 2}, {3: 3}, {4: 1}]
    ends = [{3: 2}, {4: 3}, {4: 1}]
    assert answers(features, starts, ends, count=2) == ["three four", "two"]


def test_of_equal_windows_the_first_answers():
    features = join(window(), window(first=2))
    assert answers(features, [{3: 2}, {3: 2}], [{3: 2}, {3: 2}]) == ["one"]


def test_of_equal_spans_the_larger_start_and_then_the_first_answers():
    one = dataclasses.replace(SETTINGS, max_answer_length=1, n_best=4)
    assert answers(window(), [{4: 3, 5: 2}], [{4: 1, 5: 2}], one) == ["two"]
    assert answers(window(), [{4: 2, 5: 3}], [{4: 2, 5: 1}], one) == ["three"]
    for n_best in (1, 2, 4):
        some = dataclasses.replace(one, n_best=n_best)
        assert answers(window(), [{}], [{}], some) == ["one"]


def test_only_the_window_with_most_context_scores_a_span():
    features = window()
    features["max_context"][0, 4] = 0
    # The middle of 4 to 5 is 5, that of 3 to 4 and of 4 itself is 4.
    assert answers(features, [{4: 9}], [{5: 4}]) == ["two three"]
    assert answers(features, [{3: 9}], [{4: 5, 5: 1, 3: 2}]) == ["one"]
    one = dataclasses.replace(SETTINGS, n_best=1)
    assert answers(features, [{4: 9, 6: 1}], [{4: 5}], one) == ["four"]


def test_a_space_before_the_text_is_no_answer():
    features = window()
    features["character_ends"][0, 3] = 0
    assert answers(features, [{3: 9, 4: 1}], [{3: 9, 4: 1}]) == ["two"]


def test_a_piece_of_white_space_alone_is_no_answer():
    features = window()
    space = CONTEXT.index(" ")
    features["character_starts"][0, 3] = space
    features["character_ends"][0, 3] = space + 1
    assert answers(features, [{3: 9, 4: 1}], [{3: 9, 4: 1}]) == ["two"]


def test_a_context_without_text_has_an_empty_answer():
    features = join(window(first=4), window(owner=1))
    found = answers(features, [{3: 1}, {4: 1}], [{3: 1}, {4: 1}], count=2)
    assert found == ["", "two"]


def test_the_text_is_cut_as_it_is_written():
    context = "is １０９４ km long"
    asked = Question("q", "?", context, ())
    features = {"character_starts": np.array([[2]]), "character_ends": np.array([[7]])}
    assert span_text(asked, features, 0, 0, 0) == "１０９４"


@pytest.mark.parametrize(
    "pieces, answer",
    [
        ([" (2", ",700", " km"], "2,700 km"),
        ([" (2", ",700", " km", ")"], "(2,700 km)"),
        ([" (2", ",700", " km)."], "2,700 km"),
        ([" (2007)"], "2007"),
        (["(", "2007", ")"], "(2007)"),
        ([" 2007)."], "2007"),
        (["(2007.)"], "2007"),
        ([" f", "(x", ")", " g"], "f(x) g"),
        ([" km", " (mi"], "km (mi"),
        ([" years,"], "years"),
        ([" years", ","], "years,"),
        ([" -"], "-"),
        ([" U", ".S."], "U.S"),
        ([" -7"], "-7"),
        (["战争", "的。"], "战争的"),
        (["战争", "。"], "战争。"),
        (["（", "战争", "）。"], "（战争）"),
        ([" पर्वत।"], "पर्वत"),
        ([" سنة،"], "سنة"),
        ([" لاہور۔"], "لاہور"),
        ([" አዲስ።"], "አዲስ"),
        ([" ရန်ကုန်။"], "ရန်ကုန်"),
        ([" ភ្នំពេញ។"], "ភ្នំពេញ"),
        ([" Երևան։"], "Երևան"),
        (["  "], ""),
        ([""], ""),
    ],
)
def test_signs_that_share_a_piece_with_more_are_no_part_of_an_answer(pieces, answer):
    assert trim("".join(pieces), len(pieces[0]), len(pieces[-1])) == answer


def exhaustive(features, starts, ends, settings, row):
    """The largest sum over all spans of a window."""
    places = np.flatnonzero(features["character_starts"][row] >= 0)
    return max(
        starts[row, first] + ends[row, last]
        for first in places
        for last in places
        if 0 <= last - first < settings.max_answer_length
        and features["max_context"][row, (first + last + 1) // 2]
    )


@pytest.mark.parametrize("seed", range(4))
def test_all_pairs_give_the_best_of_all_spans(seed, monkeypatch):
    """With as many starts and ends as there are pieces nothing is left out."""
    monkeypatch.setattr("decoupled.tasks.qa_answers._WINDOWS_AT_ONCE", 3)
    rng = np.random.default_rng(seed)
    features = join(*[window(first=row % 3, width=9) for row in range(8)])
    features["max_context"] *= rng.random([8, 9]) < 0.7
    features["max_context"][:, 3] = 1
    starts, ends = rng.normal(size=[2, 8, 9]).astype(np.float32)
    settings = dataclasses.replace(SETTINGS, n_best=20)
    has_text = features["character_starts"] >= 0
    found = best_spans(features, has_text, starts, ends, settings)
    for row, (first, last, score) in enumerate(found):
        assert 0 <= last - first < settings.max_answer_length
        assert score == starts[row, int(first)] + ends[row, int(last)]
        assert score == exhaustive(features, starts, ends, settings, row)
