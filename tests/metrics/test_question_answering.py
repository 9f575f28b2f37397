"""Exact match and F1 of SQuAD and MLQA. Expected values are those of their scripts."""

import functools
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.metrics.question_answering import (
    mlqa_scores,
    mlqa_words,
    squad_scores,
    squad_words,
)

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
# Of XQuAD, where each answer is the first word of the right one: exact match, F1 by
# SQuAD's rules, and F1 by those of MLQA.
FIRST_WORDS = {
    "en": (35.12605042016807, 64.51621469562478, 64.52181693652112),
    "de": (40.0, 69.04856298509772, 65.84398295174337),
    "es": (30.840336134453782, 62.252836915751246, 58.68261017586879),
    "ar": (28.991596638655462, 64.76257851401809, 64.37272069118305),
    "hi": (34.45378151260504, 66.21675946959756, 66.2127578689573),
    "zh": (92.26890756302521, 96.62765106042416, 96.63658459631195),
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
    result = squad_scores([("q", answers)], {"q": prediction})
    assert result == pytest.approx({"exact_match": exact_match, "f1": f1}, abs=1e-9)


def test_questions_without_an_answer_count_zero_and_others_are_not_read():
    questions = [("1", ["a b"]), ("2", ["c"]), ("1", ["b c d"]), ("4", ["e"])]
    result = squad_scores(questions, {"1": "b", "2": "C.", "5": "e"})
    # F1: 1 ("a" is an article), 1, 1/2 and nothing.
    assert result == {"exact_match": 50.0, "f1": 62.5}


def test_no_questions():
    with pytest.raises(ValueError, match="no questions"):
        squad_scores([], {"1": "a"})


@given(st.text())
def test_words_stay_as_they_are_when_found_again(text):
    result = squad_words(text)
    assert squad_words(" ".join(result)) == result


@pytest.mark.parametrize("language", FIRST_WORDS)
def test_xquad(data_dir, language):
    questions = xquad(data_dir, language)
    right = {name: answers[0] for name, answers in questions}
    first = {name: answer.split()[0] for name, answer in right.items()}
    exact_match, *f1 = FIRST_WORDS[language]
    of_mlqa = functools.partial(mlqa_scores, language=language)
    for score, expected in zip((squad_scores, of_mlqa), f1, strict=True):
        assert score(questions, right) == {"exact_match": 100.0, "f1": 100.0}
        values = {"exact_match": exact_match, "f1": expected}
        assert score(questions, first) == pytest.approx(values, abs=1e-9)


MLQA_CASES = [
    ("en", "“The end”", ["end"], 100, 100.0),
    ("en", "a b—c", ["bc"], 100, 100.0),
    ("es", "La casa de los niños", ["casa de niños"], 100, 100.0),
    ("es", "El  un, una", [""], 100, 0.0),
    ("es", "él la", ["el él"], 100, 100.0),
    ("de", "der Hund und die Katze", ["Hund und Katze"], 100, 100.0),
    ("de", "EINES Tages", ["tages"], 100, 100.0),
    ("de", "Straße der Einheit", ["straße einheit"], 100, 100.0),
    ("de", "<b>+1$", ["b1"], 100, 100.0),
    ("ar", "الكتاب", ["كتاب"], 100, 100.0),
    ("ar", "في المدرسة", ["مدرسة في"], 0, 100.0),
    ("ar", "خيال", ["خي"], 100, 100.0),
    ("ar", "هل؟ نعم،", ["هل نعم"], 100, 100.0),
    ("ar", "بالبيت", ["ب بيت"], 100, 100.0),
    ("hi", "नई दिल्ली।", ["नई दिल्ली"], 100, 100.0),
    ("hi", "the दिल्ली", ["दिल्ली"], 0, 66.66666666666666),
    ("vi", "của những con mèo", ["con mèo"], 100, 100.0),
    ("vi", "CỦA cái là chiếc", ["x"], 0, 0.0),
    ("vi", "lành", ["nh"], 0, 0.0),
    ("zh", "北京大学", ["大学北京"], 0, 100.0),
    ("zh", "北京 ABC大学", ["北京abc 大学"], 100, 100.0),
    ("zh", "2008年，奥运会。", ["2008年奥运会"], 100, 100.0),
    ("zh", "龥龦龦", ["龥 龦龦"], 100, 100.0),
    ("zh", "\U00020000一", ["一\U00020000"], 0, 100.0),
    ("zh", "the 中", ["中"], 0, 66.66666666666666),
    ("zh", "", ["。"], 100, 0.0),
    ("zh", "中中国", ["中国国", "国"], 0, 66.66666666666666),
]


@pytest.mark.parametrize("language, prediction, answers, exact_match, f1", MLQA_CASES)
def test_values_of_the_published_script_of_mlqa(
    language, prediction, answers, exact_match, f1
):
    result = mlqa_scores([("q", answers)], {"q": prediction}, language)
    assert result == pytest.approx({"exact_match": exact_match, "f1": f1}, abs=1e-9)


def test_other_languages_have_no_articles_and_regions_no_rules_of_their_own():
    assert mlqa_words("The «Mto», mkubwa!", "sw") == ["the", "mto", "mkubwa"]
    assert (
        mlqa_words("长江 a", "zh-TW") == mlqa_words("长江 a", "zh") == ["长", "江", "a"]
    )
    assert mlqa_words("The river", "en_GB") == ["river"]


@given(st.sampled_from("en es vi de ar hi zh".split()), st.text())
def test_case_white_space_and_punctuation_do_not_count(language, text):
    # Upper case is not undone by lower case for every character of Unicode.
    if text.upper().lower() == text.lower():
        assert mlqa_words(text.upper(), language) == mlqa_words(text, language)
    assert mlqa_words(f" \t{text}。」\n", language) == mlqa_words(text, language)
