"""SQuAD's exact match and F1. Expected values are those of the published script."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.metrics.squad import squad_scores, word_f1, words

CASES = [
    ("The Broncos", ["Broncos"], 100, 100.0),
    ("", [""], 100, 0.0),
    ("the", ["a"], 100, 0.0),
    ("Denver Broncos", ["Broncos", "Denver Broncos of 1977"], 0, 66.66666666666666),
    ("it's 12.5%", ["its 125"], 100, 100.0),
    ("“quoted”", ["quoted"], 0, 0.0),
    ("北京 大学", ["北京大学"], 0, 0.0),
    ("a-the", ["athe"], 100, 100.0),
    ("thé theory", ["the theory"], 0, 66.66666666666666),
    ("x x y", ["x y y"], 0, 66.66666666666666),
    ("10\u00a0000 km", ["10 000 km"], 100, 100.0),
    ("İstanbul", ["i\u0307stanbul"], 100, 100.0),
    ("STRASSE", ["straße"], 0, 0.0),
    ("anthem", ["them"], 0, 0.0),
    ("３０８", ["308"], 0, 0.0),
    ("a\u3000b", ["b"], 100, 100.0),
    ("_the_", ["the"], 100, 0.0),
    ("one two three", ["three two", "one two four five"], 0, 80.0),
]
# Of XQuAD, where each answer is the first word of the right one.
FIRST_WORDS = {
    "en": (35.12605042016807, 64.51621469562478),
    "de": (40.0, 69.04856298509772),
    "es": (30.840336134453782, 62.252836915751246),
    "ar": (28.991596638655462, 64.76257851401809),
    "hi": (34.45378151260504, 66.21675946959756),
    "zh": (92.26890756302521, 96.62765106042416),
}


def xquad(data_dir, language):
    path = os.path.join(data_dir, f"xtreme/xquad/xquad.{language}.json")
    with open(path, encoding="utf-8") as handle:
        articles = json.load(handle)["data"]
    return [
        (question["id"], [answer["text"] for answer in question["answers"]])
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


@pytest.mark.parametrize("prediction, answers, exact_match, f1", CASES)
def test_values_of_the_published_script(prediction, answers, exact_match, f1):
    found = squad_scores([("q", answers)], {"q": prediction})
    assert found == pytest.approx({"exact_match": exact_match, "f1": f1}, abs=1e-9)


def test_questions_without_an_answer_count_zero_and_others_are_not_read():
    questions = [("1", ["a b"]), ("2", ["c"]), ("1", ["b c d"]), ("4", ["e"])]
    found = squad_scores(questions, {"1": "b", "2": "C.", "5": "e"})
    # F1: 1 ("a" is an article), 1, 1/2 and nothing.
    assert found == {"exact_match": 50.0, "f1": 62.5}


def test_no_questions():
    with pytest.raises(ValueError, match="no questions"):
        squad_scores([], {"1": "a"})


@given(st.text(), st.text())
def test_f1_is_symmetric_and_full_for_equal_words_only(one, other):
    one, other = words(one), words(other)
    assert word_f1(one, other) == pytest.approx(word_f1(other, one))
    if one:
        assert word_f1(one, one) == 1
        assert (word_f1(one, other) > 1 - 1e-9) == (sorted(one) == sorted(other))


@given(st.text())
def test_words_stay_as_they_are_when_found_again(text):
    found = words(text)
    assert words(" ".join(found)) == found


@pytest.mark.parametrize("language", FIRST_WORDS)
def test_xquad(data_dir, language):
    questions = xquad(data_dir, language)
    right = {name: answers[0] for name, answers in questions}
    assert squad_scores(questions, right) == {"exact_match": 100.0, "f1": 100.0}
    first = {name: answer.split()[0] for name, answer in right.items()}
    exact_match, f1 = FIRST_WORDS[language]
    assert squad_scores(questions, first) == pytest.approx(
        {"exact_match": exact_match, "f1": f1}, abs=1e-9
    )
