"""MLQA's exact match and F1. Expected values are those of the published script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.metrics.mlqa import LANGUAGES, mlqa_scores, words
from tests.metrics.test_squad import xquad

CASES = [
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
# Of XQuAD by MLQA's rules: first words as answers, and answers without their last
# character for every other question, none for the rest.
FIRST_WORDS = {
    "en": (35.12605042016807, 64.52181693652112),
    "de": (40.0, 65.84398295174337),
    "es": (30.840336134453782, 58.68261017586879),
    "ar": (28.991596638655462, 64.37272069118305),
    "hi": (34.45378151260504, 66.2127578689573),
    "zh": (92.26890756302521, 96.63658459631195),
}
CUT = {
    "en": (1.680672268907563, 21.22919016091284),
    "de": (2.26890756302521, 19.420862284307656),
    "es": (1.8487394957983194, 23.53461197999015),
    "ar": (2.100840336134454, 24.980685205064095),
    "hi": (1.5126050420168067, 22.532316855166588),
    "zh": (3.0252100840336134, 38.903629023729),
}


@pytest.mark.parametrize("language, prediction, answers, exact_match, f1", CASES)
def test_values_of_the_published_script(language, prediction, answers, exact_match, f1):
    found = mlqa_scores([("q", answers)], {"q": prediction}, language)
    assert found == pytest.approx({"exact_match": exact_match, "f1": f1}, abs=1e-9)


def test_other_languages_have_no_articles_and_regions_no_rules_of_their_own():
    assert words("The «Mto», mkubwa!", "sw") == ["the", "mto", "mkubwa"]
    assert words("长江 a", "zh-TW") == words("长江 a", "zh") == ["长", "江", "a"]
    assert words("The river", "en_GB") == ["river"]


@given(st.sampled_from(LANGUAGES), st.text())
def test_case_white_space_and_punctuation_do_not_count(language, text):
    # Upper case is not undone by lower case for every character of Unicode.
    if text.upper().lower() == text.lower():
        assert words(text.upper(), language) == words(text, language)
    assert words(f" \t{text}。」\n", language) == words(text, language)


@pytest.mark.parametrize("language", FIRST_WORDS)
def test_xquad_by_the_rules_of_mlqa(data_dir, language):
    questions = xquad(data_dir, language)
    right = {name: answers[0] for name, answers in questions}
    full = {"exact_match": 100.0, "f1": 100.0}
    assert mlqa_scores(questions, right, language) == full
    first = {name: answer.split()[0] for name, answer in right.items()}
    cut = {name: right[name][:-1] for name, _ in questions[::2]}
    for predictions, expected in ((first, FIRST_WORDS), (cut, CUT)):
        exact_match, f1 = expected[language]
        assert mlqa_scores(questions, predictions, language) == pytest.approx(
            {"exact_match": exact_match, "f1": f1}, abs=1e-9
        )
