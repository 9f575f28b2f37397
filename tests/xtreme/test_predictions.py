"""Predictions in the submission format, checked against labels."""

import pytest

from decoupled.core.errors import UserError
from decoupled.xtreme.predictions import read_predictions
from tests.xtreme.xtreme_samples import language_file

CLASSES = ["neutral", "entailment"]
TAGS = [["DET", "NOUN"], ["X"]]
QUESTIONS = [("q1", ["a"]), ("q2", ["b"])]
PAIRS = [("de-1", "en-2")]


@pytest.mark.parametrize(
    "task, text, labels, expected",
    [
        ("xnli", "neutral\nneutral\n", CLASSES, ["neutral", "neutral"]),
        ("pawsx", "0\r\n1", ["1", "1"], ["0", "1"]),
        ("tatoeba", "12\n0\n", ["1", "1"], ["12", "0"]),
        ("udpos", "X\nX\n\n_\n\n", TAGS, [["X", "X"], ["_"]]),
        (
            "panx",
            "\nO\n\n\nB-LOC\nI-LOC",
            [["O"], ["O", "O"]],
            [["O"], ["B-LOC", "I-LOC"]],
        ),
        ("bucc2018", "de-5\ten-1\n", PAIRS, [("de-5", "en-1")]),
        ("bucc2018", "", PAIRS, []),
    ],
)
def test_lines(tmp_path, task, text, labels, expected):
    file = language_file(tmp_path / "test-sw.tsv", text, task)
    assert read_predictions(file, labels, "gold") == expected


def test_answers(tmp_path):
    text = '{"q2": "b", "other": "", "q1": "\\u00e9"}'
    file = language_file(tmp_path / "test-sw.json", text, "xquad")
    expected = {"q2": "b", "other": "", "q1": "é"}
    assert read_predictions(file, QUESTIONS, "gold") == expected


@pytest.mark.parametrize(
    "task, text, labels, place, told",
    [
        ("xnli", "neutral\n", CLASSES, ":2", "1 lines, but gold has 2 labels"),
        ("xnli", "neutral\n" * 3, CLASSES, ":3", "3 lines, but gold has 2 labels"),
        ("xnli", "", CLASSES, ":1", "0 lines, but gold has 2 labels"),
        (
            "xnli",
            "neutral\nA.\tB.\tneutral\n",
            CLASSES,
            ":2",
            "'A.\\tB.\\tneutral' is not",
        ),
        ("xnli", "neutral\nneutral\n\n", CLASSES, ":3", "'' is not contradiction"),
        ("xnli", "\ufeffneutral\nneutral\n", CLASSES, ":1", "'\\ufeffneutral' is not"),
        ("pawsx", f"{'1' * 99}\n", ["1"], ":1", f"'{'1' * 60}...' is not 0 or 1"),
        (
            "udpos",
            "X\nNOUNS\n\nX\n",
            TAGS,
            ":2",
            "'NOUNS' is not a part of speech of UD",
        ),
        (
            "udpos",
            "a\tX\nb\tX\n\nc\tX\n",
            TAGS,
            ":1",
            "'a\\tX' is not a part of speech",
        ),
        (
            "udpos",
            "\nX\nX\n\n\nX\nX\n",
            TAGS,
            ":6",
            "sentence 2, which starts here, has 2 tags, but 1 in gold",
        ),
        ("udpos", "X\nX\n", TAGS, ":3", "1 sentences, but 2 in gold"),
        ("udpos", "", TAGS, ":1", "0 sentences, but 2 in gold"),
        ("udpos", "X\nX\n\nX\n\nX\n", TAGS, ":6", "3 sentences, but 2 in gold"),
        ("tatoeba", "1\n2.0\n", ["1", "1"], ":2", "'2.0' is not a line number, from 0"),
        ("tatoeba", "1\n٣\n", ["1", "1"], ":2", "'٣' is not a line number, from 0"),
        ("bucc2018", "a\tb\nc\n", PAIRS, ":2", "'c' is not two ids with a tab between"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_language(
    tmp_path, task, text, labels, place, told
):
    file = language_file(tmp_path / "test-sw.tsv", text, task)
    with pytest.raises(UserError) as raised:
        read_predictions(file, labels, "gold")
    assert str(raised.value).startswith(f"{file.path}{place} (language sw): {told}")


@pytest.mark.parametrize(
    "text, place, told",
    [
        ('{"q1": "a",\n "q2" "b"}', ":2", "not JSON at column 7 (Expecting ':'"),
        ('["a", "b"]', ":1", "not a JSON object of ids and answers"),
        ('{\n"q1": "a",\n"q2": null}', ":3", "the answer of 'q2' is not a string"),
        ('{"q\\u0031": 5}', "", "the answer of 'q1' is not a string"),
        (
            '{"q1": "a"}',
            "",
            "1 of 2 questions have no answer, the first of them 'q2'; --missing",
        ),
    ],
)
def test_what_is_wrong_with_answers(tmp_path, text, place, told):
    file = language_file(tmp_path / "test-sw.json", text, "mlqa")
    with pytest.raises(UserError) as raised:
        read_predictions(file, QUESTIONS, "gold")
    assert str(raised.value).startswith(f"{file.path}{place} (language sw): {told}")


def test_missing_answers_can_be_accepted(tmp_path):
    file = language_file(tmp_path / "test-sw.json", '{"q1": "a"}', "mlqa")
    found = read_predictions(file, QUESTIONS, "gold", answers_may_miss=True)
    assert found == {"q1": "a"}
