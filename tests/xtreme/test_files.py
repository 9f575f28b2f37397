"""Labels in both layouts, predictions checked against them, and mistakes in both."""

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.core.errors import UserError
from decoupled.corpora import locales
from decoupled.xtreme.files import (
    LanguageFile,
    is_language,
    languages_of,
    read_labels,
    read_predictions,
    sorted_positions,
)
from tests.xtreme.xtreme_samples import LABELS, PREDICTIONS, language_file, squad_json


@pytest.fixture
def read(tmp_path):
    def read_text(text, task, name="test-sw.tsv"):
        return read_labels(language_file(tmp_path / name, text, task))

    return read_text


@pytest.mark.parametrize(
    "text",
    [
        "neutral\nentailment\n",
        "neutral\r\nentailment",
        "One.\tTwo.\tneutral\r\nThree.\tFour.\tentailment\r\n",
        # `finetune` takes empty lines at the end, too.
        "One.\tTwo.\tneutral\nThree.\tFour.\tentailment\n\n\n",
        # Quoted as by Python's csv, where a sentence has quotes.
        '"He said ""no""."\tTwo.\tneutral\n"""A""\tB"\tFour.\tentailment\n',
        # Quotes that are text.
        '"He said.\tTwo".\tneutral\nThree\t"\tentailment\n',
        # A line end in a quoted sentence.
        '"One\nline."\tTwo.\tneutral\r\nThree.\t"Four\r\n"\tentailment\r\n',
        # What is a line end for Unicode only.
        "One\u2028a.\tTwo\u0085.\tneutral\nThree\x0c.\tFour.\tentailment\n",
    ],
)
def test_classes_alone_or_after_two_sentences(read, text):
    assert read(text, "xnli") == ["neutral", "entailment"]


@pytest.mark.parametrize(
    "text",
    [
        "DET\nNOUN\n\nX\n",
        "The\tDET\ncat\tNOUN\n\nhm\tX\n\n\n",
        "\nDET\r\nNOUN\r\n \r\n\r\nX",
        '"\tDET\n10 000\tNOUN\n\n\u3000\tX\n',
    ],
)
def test_tags_alone_or_after_tokens(read, text):
    assert read(text, "udpos") == [["DET", "NOUN"], ["X"]]


def test_line_numbers_given_or_from_a_side_that_is_not_sorted(read):
    assert read("7\n0\n", "tatoeba") == ["7", "0"]
    # White space at the ends is left out first; equal sentences keep their order.
    text = "Go.\n Cat.\nGo.\nÄh.\nare.\n"
    assert read(text, "tatoeba", "sw-en.en") == ["1", "0", "2", "4", "3"]


def test_a_label_of_translated_files_has_another_spelling(read):
    text = "a\tb\tcontradictory\na\tb\tneutral\n"
    assert read(text, "xnli", "test-sw.tsv") == ["contradiction", "neutral"]


def test_questions(read):
    text = squad_json({"1": ["a", "b"], "2": ["", "c"]})
    expected = [("1", ["a", "b"]), ("2", ["", "c"])]
    assert read(text, "xquad", "test-sw.json") == expected
    bare = json.dumps(json.loads(text)["data"])
    assert read(bare, "xquad", "test-sw.json") == expected


@pytest.mark.parametrize(
    "task, text, problem",
    [
        ("xnli", "", ": empty"),
        ("xnli", "neutral\nmaybe\n", ":2: 'maybe' is not contradiction, entailment"),
        ("xnli", "neutral\n\n", ":2: '' is not contradiction"),
        (
            "xnli",
            "One.\tTwo.\nThree.\tFour.\n",
            ":1: no label after two sentences; XTR",
        ),
        ("xnli", "A.\tB.\tneutral\nC.\tD.\t\n", ":2: '' is not contradiction"),
        ("xnli", "A.\tB.\tneutral\nC.\tD.\n", ":2: no label after two sentences"),
        ("xnli", "A.\tB.\tneutral\tentailment\n", ":1: 4 columns, not sentence, sen"),
        ("xnli", "A.\tB.\tC.\n", ":1: 'C.' is not contradiction, entailment, neutral"),
        ("pawsx", "2\n", ":1: '2' is not 0 or 1"),
        (
            "udpos",
            "The\ncat\n",
            ":1: 'The' is not a part of speech of UD, as NOUN; XTR",
        ),
        ("udpos", "The\tDET\ncat\tN\n", ":2: 'N' is not a part of speech"),
        ("udpos", "\n\n", ": empty"),
        ("panx", "B-PER\nI-MISC\n", ":2: 'I-MISC' is not O, or B- or I- with PER, LOC"),
        ("bucc2018", "de-1 en-1\n", ":1: 'de-1 en-1' is not two ids with a tab"),
        ("bucc2018", "", ": empty"),
        ("tatoeba", "-1\n", ":1: '-1' is not a line number, from 0"),
        ("xquad", "{\n,", ":2: not JSON at column 1 (Expecting property name"),
        pytest.param(
            "xquad",
            "[" * 100_000,
            ":1: not JSON at column 1 (nested too deeply)",
            id="deep",
        ),
        ("xquad", '{"data": [{"title": "x"}]}', ": not in SQuAD's format"),
        ("xquad", "3", ": not in SQuAD's format"),
        ("xquad", squad_json({"q": [7]}), ": not in SQuAD's format"),
        ("xquad", '{"data": []}', ": empty"),
        ("mlqa", squad_json({"q1": ["a"], "q2": []}), ": question 'q2' has no answers"),
        (
            "mlqa",
            squad_json({"q1": ["a"], "q2": ["b"]}).replace("q2", "q1"),
            ": two questions with the id 'q1'",
        ),
        (
            "tydiqa",
            squad_json({"q1": [""], "q2": [""]}),
            ": all answers are empty; XTR",
        ),
    ],
)
def test_what_is_wrong_with_labels_is_reported_with_file_line_and_language(
    tmp_path, task, text, problem
):
    file = language_file(tmp_path / "gold", text, task)
    place, message = re.fullmatch(r"((?::\d+)?): (.*)", problem).groups()
    with pytest.raises(UserError) as raised:
        read_labels(file)
    assert str(raised.value).startswith(f"{file.path}{place} (language sw): {message}")


@pytest.mark.parametrize(
    "task, name, content, message",
    [
        (
            "tatoeba",
            "sw-en.en",
            "Cat.\nGo.\n",
            "sorted, .* give test-sw.tsv, or this side",
        ),
        (
            "xnli",
            "gold",
            b"neutral\n\xff\n",
            r"gold: not UTF-8 at byte 8, line 2 \(language sw\)",
        ),
        ("xnli", "gold", None, r"gold: cannot read .*\(language sw\)"),
    ],
)
def test_a_file_that_tells_nothing(tmp_path, task, name, content, message):
    file = language_file(tmp_path / name, content or "", task)
    if content is None:
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match=message):
        read_labels(file)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_sorted_positions_lead_to_the_sentences(sentences):
    positions = sorted_positions(sentences)
    stripped = [sentence.strip() for sentence in sentences]
    ordered = sorted(stripped)
    assert sorted(positions) == list(range(len(sentences)))
    assert [ordered[position] for position in positions] == stripped


def test_real_files(data_dir):
    def labels(name, task):
        return read_labels(LanguageFile(os.path.join(data_dir, name), task, "en"))

    classes = labels("xtreme/xnli/test-en.tsv", "xnli")
    assert {name: classes.count(name) for name in set(classes)} == {
        "contradiction": 1670,
        "entailment": 1670,
        "neutral": 1670,
    }
    tags = labels("xtreme/udpos/test-en.tsv", "udpos")
    assert (len(tags), sum(map(len, tags))) == (2077, 25094)
    questions = labels("xtreme/xquad/xquad.hi.json", "xquad")
    assert (len(questions), len(dict(questions))) == (1190, 1190)


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
    "task, text, labels, place, message",
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
        ("xnli", "neutral\u00a0\nneutral\n", CLASSES, ":1", "'neutral\\xa0' is not"),
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
def test_what_is_wrong_with_predictions_is_reported_with_file_line_and_language(
    tmp_path, task, text, labels, place, message
):
    file = language_file(tmp_path / "test-sw.tsv", text, task)
    with pytest.raises(UserError) as raised:
        read_predictions(file, labels, "gold")
    assert str(raised.value).startswith(f"{file.path}{place} (language sw): {message}")


@pytest.mark.parametrize(
    "text, place, message",
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
def test_what_is_wrong_with_answers(tmp_path, text, place, message):
    file = language_file(tmp_path / "test-sw.json", text, "mlqa")
    with pytest.raises(UserError) as raised:
        read_predictions(file, QUESTIONS, "gold")
    assert str(raised.value).startswith(f"{file.path}{place} (language sw): {message}")


@pytest.mark.parametrize("task", ["xnli", "udpos", "bucc2018", "tatoeba", "xquad"])
def test_byte_order_marks_are_skipped(tmp_path, task):
    name = "test-sw.json" if task == "xquad" else "test-sw.tsv"
    pairs = []
    for mark in ("", "\ufeff"):
        gold = language_file(tmp_path / "gold" / name, mark + LABELS[task], task)
        said = language_file(tmp_path / name, mark + PREDICTIONS[task], task)
        labels = read_labels(gold)
        pairs.append((labels, read_predictions(said, labels, gold.path)))
    assert pairs[0] == pairs[1]


def test_blanks_around_labels_are_ignored(read):
    assert read("neutral \n  entailment\n", "xnli") == ["neutral", "entailment"]
    assert read("a\tb\tneutral \nc\td\t  neutral\n", "xnli") == ["neutral"] * 2
    assert read("DET \n NOUN\n \nthe\t X \n", "udpos") == [["DET", "NOUN"], ["X"]]


def test_a_word_without_its_tag_is_no_end_of_a_sentence(read):
    with pytest.raises(UserError, match=r"sw\.tsv:2 .*: no tag after the word"):
        read("The\tDET\ncat\t\nsat\tVERB\n", "udpos")


WHITE = ["\u00a0", "\u3000", "\x85", "\x0b", "\x1c", "\u2028"]


@pytest.mark.parametrize("white", WHITE)
@pytest.mark.parametrize("task, label", [("xnli", "neutral"), ("udpos", "DET")])
def test_other_white_space_around_labels_is_refused(tmp_path, task, label, white):
    text = f"{label}\n{label}{white}\n"
    with pytest.raises(UserError, match="gold:2 .* is not ") as caught:
        read_labels(language_file(tmp_path / "gold", text, task))
    assert str(caught.value).isprintable()


def test_languages_of_a_folder(tmp_path):
    names = (
        "test-sw.tsv test-zh-TW.tsv test-zh_Hant.tsv dev-de.tsv test-.tsv test-e.tsv"
    )
    for name in [*names.split(), "test-sw.tsv.bak", "TEST-fr.tsv", "test-a.b.tsv"]:
        (tmp_path / name).write_text("")
    result = languages_of(str(tmp_path), "test-{language}.tsv")
    assert result == ["sw", "zh-TW", "zh_Hant"]
    both = languages_of(str(tmp_path), "test-{language}.tsv", "dev-{language}.tsv")
    assert both == ["de", "sw", "zh-TW", "zh_Hant"]


def test_a_language_that_stands_twice_is_the_same(tmp_path):
    (tmp_path / "test").mkdir()
    for name in ("context-hi-question-hi.json", "context-hi-question-de.json"):
        (tmp_path / "test" / name).write_text("")
    template = "test/context-{language}-question-{language}.json"
    assert languages_of(str(tmp_path), template) == ["hi"]
    assert languages_of(str(tmp_path), "test/{name}.json", "none/{language}") == []


def test_what_may_be_a_language():
    assert all(map(is_language, ["sw", "ceb", "zh-TW", "sr_Latn_RS"]))
    # All of them are codes that a corpus accepts, which accepts more.
    for name in ("sw", "ceb", "zh-TW", "sr_Latn_RS", "v2", "b", "sr@latin"):
        locales.check_language(name, "test")
    assert not any(map(is_language, ["v2", "b", "sr@latin"]))
    assert not any(map(is_language, ["", "s", "../sw", "sw/", "s.w", "sw-", "zh--TW"]))
