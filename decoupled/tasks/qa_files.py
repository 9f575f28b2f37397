"""Questions, contexts and answers in SQuAD's JSON.

A file contains contexts, questions about each, and answers that are parts of it.
`answer_start` counts characters (code points), or the bytes of UTF-8 if more answers of
the file fit so. The text at that index may differ from the answer, if the file counts
otherwise or was normalised later. The nearest equal text is then used (`find_span`).
Half a surrogate pair, which JSON can contain but no file of predictions can, becomes
U+FFFD.
"""

import bisect
import functools
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

from decoupled.core.errors import quoted
from decoupled.data.vocabulary import valid_text
from decoupled.xtreme.files import LanguageFile

_SHOWN_IDS = 3
# Places of an answer that may begin or end inside a letter with its accents.
_MOST_PLACES = 100
# Vowels and last consonants of decomposed syllables.
_JAMO = frozenset(map(chr, range(0x1160, 0x1200)))


class Answer(NamedTuple):
    """A right answer: the file's text, and the context's characters [start, end).

    start and end are -1 if the context does not contain the answer.
    """

    text: str
    start: int
    end: int


class Question(NamedTuple):
    """One question; questions of a paragraph share the same `context` object.

    answers: empty where the file has no labels.
    """

    identifier: str
    text: str
    context: str
    answers: tuple[Answer, ...]

    @property
    def trained_answer(self) -> Answer | None:
        """The first answer that is in the context, which is trained on."""
        return next((answer for answer in self.answers if answer.start >= 0), None)


class QuestionFile(NamedTuple):
    """The questions of a file, in its order.

    moved_ids: of questions with an answer that was not at its `answer_start`.
    lost_ids: of questions with an answer that is nowhere in the context.
    in_bytes: whether `answer_start` counts bytes of UTF-8.
    """

    questions: list[Question]
    moved_ids: list[str]
    lost_ids: list[str]
    in_bytes: bool

    def repairs(self) -> str:
        """One line about moved and lost answers; empty if there are none."""
        notes = ["answer_start counts bytes, not characters"] * self.in_bytes
        notes += [
            f"{len(ids)} questions with an answer {problem}, as {_first_ids(ids)}"
            for ids, problem in (
                (self.moved_ids, "that is not at its answer_start, found elsewhere"),
                (self.lost_ids, "that is not in the context"),
            )
            if ids
        ]
        return "; ".join(notes)


def read_questions(file: LanguageFile, ids_may_repeat: bool = False) -> QuestionFile:
    """All questions of a file.

    Ids may repeat in the training file of TyDi QA: XTREME's script keeps only the last
    part of its ids.
    """
    document = file.json()
    articles = document
    if isinstance(document, dict):
        articles = _part(file, document, "data", list, "the file")
    elif not isinstance(document, list):
        raise file.error("not in SQuAD's form: no object with 'data'")
    content = _read_articles(file, articles, ids_may_repeat, in_bytes=False)
    if content.moved_ids:
        by_bytes = _read_articles(file, articles, ids_may_repeat, in_bytes=True)
        content = min(content, by_bytes, key=lambda each: len(each.moved_ids))
    if not content.questions:
        raise file.error("holds no question")
    return content


def _read_articles(file, articles, ids_may_repeat, in_bytes) -> QuestionFile:
    content = QuestionFile([], [], [], in_bytes)
    seen = set()
    for question, is_moved in _walk(file, articles, in_bytes):
        if question.identifier in seen and not ids_may_repeat:
            name = quoted(question.identifier)
            raise file.error(f"two questions with the id {name}")
        seen.add(question.identifier)
        content.questions.append(question)
        if is_moved:
            content.moved_ids.append(question.identifier)
        if any(answer.start < 0 for answer in question.answers):
            content.lost_ids.append(question.identifier)
    return content


def find_span(context: str, text: str, start: int) -> tuple[int, int] | None:
    """The characters of an answer in the context, nearest to `start`; or None.

    The text is the same, or has the same compatibility decomposition (Unicode's NFKD:
    full-width digits, ligatures, composed and decomposed accents) but for white space
    and invisible format characters. White space around the answer is no part of it.
    """
    answer = text.strip()
    if not answer:
        return None
    start += text.find(answer)
    if start >= 0 and context.startswith(answer, start):
        return start, start + len(answer)
    places = _on_both_sides(context, answer, start)
    spans = [(place, place + len(answer)) for place in places]
    spans = spans or _spans_that_read_the_same(context, answer, start)
    return min(spans, key=lambda span: abs(span[0] - start), default=None)


def _on_both_sides(text, part, start, fits=lambda place: True) -> list[int]:
    """The last place of `part` before `start`, and the first from there on, that fit.

    On each side at most `_MOST_PLACES` places are tried.
    """
    start = min(max(start, 0), len(text))
    left, right = _last_before(text, part, start), text.find(part, start)
    for _ in range(_MOST_PLACES):
        if right < 0 or fits(right):
            break
        right = text.find(part, right + 1)
    for _ in range(_MOST_PLACES):
        if left < 0 or fits(left):
            break
        left = _last_before(text, part, left)
    return [place for place in (left, right) if place >= 0 and fits(place)]


def _last_before(text, part, end) -> int:
    # str.rfind takes the product of both lengths in the worst case, str.find the sum.
    head = text[: max(end + len(part) - 1, 0)] if end else ""
    place = head[::-1].find(part[::-1])
    return place if place < 0 else len(head) - place - len(part)


def _spans_that_read_the_same(context, text, start) -> list[tuple[int, int]]:
    joined, origins = _readable(context)
    answer = _readable(text)[0].strip()
    if not answer:
        return []
    places = _on_both_sides(
        joined,
        answer,
        bisect.bisect_left(origins, start),
        lambda place: _is_whole(joined, origins, place, place + len(answer)),
    )
    return [(origins[place], origins[place + len(answer) - 1] + 1) for place in places]


def _is_whole(joined, origins, first, end) -> bool:
    """Whether [first, end) consists of whole characters with all of their accents."""
    if first > 0 and origins[first - 1] == origins[first]:
        return False
    if end == len(joined):
        return True
    # A vowel sign or the rest of a syllable of Hangul belongs to the letter before it.
    is_inner = unicodedata.category(joined[end])[0] == "M" or joined[end] in _JAMO
    return origins[end] != origins[end - 1] and not is_inner


@functools.lru_cache(maxsize=2)
def _readable(text: str) -> tuple[str, list[int]]:
    """The characters of the decomposition, and the index of the original of each."""
    result: list[tuple[str, int]] = []
    marks: list[tuple[str, int]] = []
    for index, original in enumerate(text):
        if unicodedata.category(original) == "Cf":
            continue
        for character in unicodedata.normalize("NFKD", original):
            if unicodedata.combining(character):
                marks.append((character, index))
                continue
            result += _in_order(marks)
            marks = []
            if not character.isspace():
                result.append((character, index))
            elif not result or result[-1][0] != " ":
                result.append((" ", index))
    result += _in_order(marks)
    return "".join(c for c, _ in result), [origin for _, origin in result]


def _in_order(marks):
    return sorted(marks, key=lambda mark: unicodedata.combining(mark[0]))


def _walk(
    file: LanguageFile, articles: list, in_bytes: bool
) -> Iterator[tuple[Question, bool]]:
    for article_number, article in enumerate(articles, start=1):
        article_place = f"article {article_number}"
        paragraphs = _part(file, article, "paragraphs", list, article_place)
        for number, paragraph in enumerate(paragraphs, start=1):
            place = f"{article_place}, paragraph {number}"
            context = valid_text(_part(file, paragraph, "context", str, place))
            questions = _part(file, paragraph, "qas", list, place)
            for question_number, fields in enumerate(questions, start=1):
                question_place = f"{place}, question {question_number}"
                yield _question(file, fields, context, question_place, in_bytes)


def _question(file, fields, context, where, in_bytes) -> tuple[Question, bool]:
    identifier = _part(file, fields, "id", str, where)
    if identifier != valid_text(identifier):
        raise file.error(
            f"not in SQuAD's form: 'id' of {where} holds half a surrogate pair"
        )
    text = valid_text(_part(file, fields, "question", str, where))
    answers, is_moved = [], False
    # Test files without labels have no "answers", or empty ones.
    items = _part(file, fields, "answers", list, where) if "answers" in fields else []
    for number, answer in enumerate(items, start=1):
        place = f"{where}, answer {number}"
        answer_text = valid_text(_part(file, answer, "text", str, place))
        if not answer_text:
            continue
        start = _part(file, answer, "answer_start", int, place)
        if in_bytes:
            start = len(context.encode()[: max(start, 0)].decode(errors="ignore"))
        span = find_span(context, answer_text, start)
        answers.append(Answer(answer_text, *(span or (-1, -1))))
        is_in_place = context.startswith(answer_text, max(start, 0))
        is_moved |= span is not None and not is_in_place
    return Question(identifier, text, context, tuple(answers)), is_moved


_KINDS = {list: "list", str: "string", int: "whole number"}


def _part(file, fields: Any, name: str, kind: type, where: str) -> Any:
    """A field of a JSON object, which must have the type of SQuAD's form."""
    if not isinstance(fields, dict):
        raise file.error(f"not in SQuAD's form: {where} is no object")
    if name not in fields:
        raise file.error(f"not in SQuAD's form: {where} has no {name!r}")
    if type(fields[name]) is not kind:
        raise file.error(
            f"not in SQuAD's form: {name!r} of {where} is no {_KINDS[kind]}"
        )
    return fields[name]


def _first_ids(ids: list[str]) -> str:
    names = [quoted(name)[1:-1] for name in ids[:_SHOWN_IDS]]
    return ", ".join(names) + (", ..." if len(ids) > _SHOWN_IDS else "")
