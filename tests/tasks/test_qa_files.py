"""Reading SQuAD's JSON: what is in it, answers that stand elsewhere, mistakes."""

import json
import re
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoupled.core.errors import UserError
from decoupled.tasks.qa_files import (
    Answer,
    find_span,
    read_questions,
)
from decoupled.xtreme.files import LanguageFile
from tests.tasks.question_samples import documents, write_document


def read(path, document):
    write_document(path, document)
    return read_questions(LanguageFile(str(path), "xquad", "en"))


def with_answer(context, text, start):
    answer = {"text": text, "answer_start": start}
    question = {"id": "q", "question": "What?", "answers": [answer]}
    return {"data": [{"paragraphs": [{"context": context, "qas": [question]}]}]}


def test_questions_in_the_order_of_the_file(tmp_path):
    read_file = read(tmp_path / "en.json", documents("en"))
    first, second = read_file.questions
    assert (first.identifier, first.text) == ("en-0", "How long is the Elbe?")
    assert first.answers == (Answer("1,094 km", 18, 26),)
    assert first.context[18:26] == "1,094 km"
    assert second.context is first.context
    assert (read_file.moved_ids, read_file.lost_ids) == ([], [])
    assert read_file.repairs() == ""


def test_a_list_of_articles_is_read_too(tmp_path):
    articles = documents("en")["data"]
    assert len(read(tmp_path / "en.json", articles).questions) == 2


def test_labels_that_were_taken_away(tmp_path):
    """XTREME's preprocessing leaves an empty answer; other files have none at all."""
    stripped = documents("zh", with_answers=False)
    del stripped["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    questions = read(tmp_path / "zh.json", stripped).questions
    assert [question.answers for question in questions] == [(), ()]
    assert questions[0].trained_answer is None


def test_a_wrong_answer_start_is_repaired_and_counted(tmp_path):
    context = "one two one two one"
    read_file = read(tmp_path / "en.json", with_answer(context, "one", 10))
    assert read_file.questions[0].answers == (Answer("one", 8, 11),)
    assert (read_file.moved_ids, read_file.lost_ids) == (["q"], [])
    assert read_file.repairs() == (
        "1 questions with an answer that is not at its answer_start, found elsewhere, "
        "as q"
    )


def test_bytes_as_answer_start_are_seen_of_the_whole_file(tmp_path):
    """The nearest equal text to a number of bytes is often another place."""
    context = "Ééé un, ééé un, ééé un"
    document = with_answer(context, "un", len("Ééé un, ééé ".encode()))
    [question] = (read_file := read(tmp_path / "en.json", document)).questions
    assert question.answers == (Answer("un", 12, 14),)
    assert read_file.moved_ids == []
    assert read_file.repairs() == "answer_start counts bytes, not characters"


def test_an_answer_does_not_begin_a_syllable_of_hangul():
    context = unicodedata.normalize("NFD", "각각 가나 각")
    assert find_span(context, "가", 3) == (7, 9)


def test_an_answer_that_is_not_there_is_counted(tmp_path):
    read_file = read(tmp_path / "en.json", with_answer("one two", "three", 4))
    assert read_file.questions[0].answers == (Answer("three", -1, -1),)
    assert read_file.questions[0].trained_answer is None
    assert (read_file.moved_ids, read_file.lost_ids) == ([], ["q"])
    assert "1 questions with an answer that is not in the context" in (
        read_file.repairs()
    )


@pytest.mark.parametrize("start, span", [(0, (0, 3)), (5, (8, 11)), (99, (16, 19))])
def test_the_nearest_of_several_places(start, span):
    assert find_span("one two one two one", "one", start) == span


def test_overlapping_places():
    assert find_span("aXaXa", "aXa", 2) == (2, 5)


@pytest.mark.parametrize(
    "context, text, found",
    [
        ("im Jahr １９４６ war", "1946", "１９４６"),
        ("im Jahr 1946 war", "１９４６", "1946"),
        ("le cafe\u0301 noir", "caf\u00e9", "cafe\u0301"),
        ("le caf\u00e9 noir", "cafe\u0301", "caf\u00e9"),
        ("the oﬃce of", "office", "oﬃce"),
        # Arabic: lam-alef as one character; shadda and fatha in either order.
        ("قال ﻻ نعم", "لا", "ﻻ"),
        ("كلمة مدر\u064e\u0651سة هنا", "مدر\u0651\u064eسة", "مدر\u064e\u0651سة"),
        # Thai: sara am as one character or as two.
        ("ดื่มน้\u0e33เย็น", "น้\u0e4d\u0e32", "น้\u0e33"),
        # Hindi: a letter with nukta, one character or two.
        ("\u095eल", "\u092b\u093cल", "\u095eल"),
        ("한국어", unicodedata.normalize("NFD", "국어"), "국어"),
        ("ｶﾞｽ 会社", "ガス", "ｶﾞｽ"),
        ("zero\u200bwidth here", "zerowidth", "zero\u200bwidth"),
        ("two  \n words", "two words", "two  \n words"),
        ("two words", " two ", "two"),
    ],
)
def test_an_answer_that_is_written_otherwise_is_found(context, text, found):
    start, end = find_span(context, text, 0)
    assert context[start:end] == found


@pytest.mark.parametrize(
    "context, text",
    [
        ("a caf\u00e9", "cafe"),
        ("oﬃce", "off"),
        ("１２", "3"),
        ("anything", "  "),
        ("anything", "\u200b"),
    ],
)
def test_no_part_of_a_character_is_an_answer(context, text):
    assert find_span(context, text, 0) is None


@given(st.text(max_size=20), st.text(max_size=10), st.text(max_size=20))
def test_an_answer_is_always_found_where_it_is(before, answer, after):
    context = before + answer + after
    span = find_span(context, answer, len(before))
    if answer.strip():
        stripped_at = len(before) + answer.index(answer.strip())
        assert span == (stripped_at, stripped_at + len(answer.strip()))
    else:
        assert span is None


@given(st.text(max_size=12), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_an_answer_in_another_normal_form_is_found(answer, form):
    """Between letters that do not combine with anything."""
    context = f"a {answer} b"
    normalized = unicodedata.normalize(form, answer)
    span = find_span(context, normalized, 2)
    if not normalized.strip() or not re.search(r"\w", normalized):
        return
    assert span is not None
    cut = unicodedata.normalize("NFKD", context[slice(*span)])
    letters = re.findall(r"[^\W_]", unicodedata.normalize("NFKD", normalized))
    assert sorted(re.findall(r"[^\W_]", cut)) == sorted(letters)


def paragraph(document):
    return document["data"][0]["paragraphs"][0]


def test_half_a_surrogate_pair_is_replaced_since_no_file_can_hold_it(tmp_path):
    """JSON can name one; predictions are written as UTF-8."""
    document = with_answer("on\ud83de two", "\ud83de two", 2)
    document["data"][0]["paragraphs"][0]["qas"][0]["question"] = "What\ud83d?"
    (asked,) = read(tmp_path / "en.json", document).questions
    assert (asked.context, asked.text) == ("on\ufffde two", "What\ufffd?")
    assert asked.answers == (Answer("\ufffde two", 2, 8),)


def drop(path, name):
    def change(document):
        del path(document)[name]

    return change


def put(path, name, value):
    def change(document):
        path(document)[name] = value

    return change


def qa(document):
    return paragraph(document)["qas"][1]


def answer(document):
    return qa(document)["answers"][0]


@pytest.mark.parametrize(
    "change, message",
    [
        (drop(lambda d: d, "data"), "the file has no 'data'"),
        (put(lambda d: d, "data", "x"), "'data' of the file is no list"),
        (put(lambda d: d["data"], 0, "x"), "article 1 is no object"),
        (drop(paragraph, "context"), "article 1, paragraph 1 has no 'context'"),
        (drop(paragraph, "qas"), "article 1, paragraph 1 has no 'qas'"),
        (drop(qa, "id"), "paragraph 1, question 2 has no 'id'"),
        (put(qa, "id", 7), "'id' of article 1, paragraph 1, question 2 is no string"),
        (put(qa, "id", "en-0"), "two questions with the id 'en-0'"),
        (put(qa, "id", "\ud83d"), "'id' of .* question 2 holds half a surrogate pair"),
        (drop(qa, "question"), "question 2 has no 'question'"),
        (put(qa, "answers", {}), "'answers' of .* question 2 is no list"),
        (drop(answer, "text"), "question 2, answer 1 has no 'text'"),
        (drop(answer, "answer_start"), "answer 1 has no 'answer_start'"),
        (put(answer, "answer_start", "3"), "is no whole number"),
        (put(lambda d: d, "data", []), "holds no question"),
    ],
)
def test_a_malformed_file_is_refused_by_its_place(tmp_path, change, message):
    document = json.loads(json.dumps(documents("en")))
    change(document)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / "bad.json", document)
    assert str(caught.value).startswith(f"{tmp_path / 'bad.json'} (language en): ")
    assert "\n" not in str(caught.value)


def test_a_number_is_no_file_of_questions(tmp_path):
    with pytest.raises(UserError, match="no object with 'data'"):
        read(tmp_path / "bad.json", 7)


@settings(max_examples=200)
@given(
    st.text("ab", max_size=12),
    st.text("ab", min_size=1, max_size=3),
    st.integers(-3, 15),
)
def test_the_place_is_the_nearest_of_all(context, text, start):
    places = [i for i in range(len(context)) if context.startswith(text, i)]
    nearest = min(places, key=lambda place: abs(place - start), default=None)
    expected = None if nearest is None else (nearest, nearest + len(text))
    assert find_span(context, text, start) == expected


@pytest.mark.parametrize(
    "context, text",
    [
        ("a" * 400_000, "a" * 200_000 + "b"),
        ("a" * 400_000, "a" * 200_000),
        ("a\u0301" * 100_000, "a" * 50_000),
        ("\ufb03" * 100_000, "f" * 3 + "i"),
    ],
)
def test_a_place_in_hostile_text_is_looked_for_in_bounded_time(context, text):
    begin = time.process_time()
    find_span(context, text, 7)
    assert time.process_time() - begin < 5


def test_ids_in_messages_are_short_and_without_control_characters(tmp_path):
    document = with_answer("one two", "three", 4)
    question = document["data"][0]["paragraphs"][0]["qas"][0]
    question["id"] = "\x1b[31m" + "q" * 100_000
    message = read(tmp_path / "en.json", document).repairs()
    assert message.isprintable() and len(message) < 200
