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

    moved: ids of questions with an answer that was not at its `answer_start`.
    lost: ids of questions with an answer that is nowhere in the context.
    in_bytes: whether `answer_start` counts bytes of UTF-8.
    """

    questions: list[Question]
    moved: list[str]
    lost: list[str]
    in_bytes: bool

    def repairs(self) -> str:
        """One line about answers moved and lost; empty where there are none."""
        notes = ["answer_start counts bytes, not characters"] * self.in_bytes
        notes += [
            f"{len(ids)} questions with an answer {what}, as {_some(ids)}"
            for ids, what in (
                (self.moved, "that is not at its answer_start, found elsewhere"),
                (self.lost, "that is not in the context"),
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
    read = _read_articles(file, articles, ids_may_repeat, in_bytes=False)
    if read.moved:
        as_bytes = _read_articles(file, articles, ids_may_repeat, in_bytes=True)
        read = min(read, as_bytes, key=lambda each: len(each.moved))
    if not read.questions:
        raise file.error("holds no question")
    return read


def _read_articles(file, articles, ids_may_repeat, in_bytes) -> QuestionFile:
    read = QuestionFile([], [], [], in_bytes)
    known = set()
    for question, moved in _walk(file, articles, in_bytes):
        if question.identifier in known and not ids_may_repeat:
            name = quoted(question.identifier)
            raise file.error(f"two questions with the id {name}")
        known.add(question.identifier)
        read.questions.append(question)
        if moved:
            read.moved.append(question.identifier)
        if any(answer.start < 0 for answer in question.answers):
            read.lost.append(question.identifier)
    return read


def find_span(context: str, text: str, start: int) -> tuple[int, int] | None:
    """The characters of an answer in the context, nearest to `start`; or None.

    The text is the same, or has the same compatibility decomposition (Unicode's NFKD:
    full-width digits, ligatures, composed and decomposed accents) but for white space
    and invisible format characters. White space around the answer is no part of it.
    """
    stripped = text.strip()
    if not stripped:
        return None
    start += text.find(stripped)
    if start >= 0 and context.startswith(stripped, start):
        return start, start + len(stripped)
    places = [
        (place, place + len(stripped))
        for place in _on_both_sides(context, stripped, start)
    ]
    places = places or _places_that_read_the_same(context, stripped, start)
    return min(places, key=lambda place: abs(place[0] - start), default=None)


def _on_both_sides(text, part, start, fits=lambda place: True) -> list[int]:
    """The last place of `part` before `start`, and the first from there on, that fit.

    On each side at most `_MOST_PLACES` places are tried.
    """
    start = min(max(start, 0), len(text))
    after, before = text.find(part, start), _last_before(text, part, start)
    for _ in range(_MOST_PLACES):
        if after < 0 or fits(after):
            break
        after = text.find(part, after + 1)
    for _ in range(_MOST_PLACES):
        if before < 0 or fits(before):
            break
        before = _last_before(text, part, before)
    return [place for place in (before, after) if place >= 0 and fits(place)]


def _last_before(text, part, end) -> int:
    # str.rfind takes the product of both lengths in the worst case, str.find the sum.
    head = text[: max(end + len(part) - 1, 0)] if end else ""
    place = head[::-1].find(part[::-1])
    return place if place < 0 else len(head) - place - len(part)


def _places_that_read_the_same(context, text, start) -> list[tuple[int, int]]:
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
        where = f"article {article_number}"
        paragraphs = _part(file, article, "paragraphs", list, where)
        for number, paragraph in enumerate(paragraphs, start=1):
            place = f"{where}, paragraph {number}"
            context = valid_text(_part(file, paragraph, "context", str, place))
            questions = _part(file, paragraph, "qas", list, place)
            for question_number, fields in enumerate(questions, start=1):
                asked = f"{place}, question {question_number}"
                yield _question(file, fields, context, asked, in_bytes)


def _question(file, fields, context, where, in_bytes) -> tuple[Question, bool]:
    identifier = _part(file, fields, "id", str, where)
    if identifier != valid_text(identifier):
        raise file.error(
            f"not in SQuAD's form: 'id' of {where} holds half a surrogate pair"
        )
    text = valid_text(_part(file, fields, "question", str, where))
    answers, moved = [], False
    # Test files without labels have no "answers", or empty ones.
    listed = _part(file, fields, "answers", list, where) if "answers" in fields else []
    for number, answer in enumerate(listed, start=1):
        place = f"{where}, answer {number}"
        answer_text = valid_text(_part(file, answer, "text", str, place))
        if not answer_text:
            continue
        start = _part(file, answer, "answer_start", int, place)
        if in_bytes:
            start = len(context.encode()[: max(start, 0)].decode(errors="ignore"))
        span = find_span(context, answer_text, start)
        answers.append(Answer(answer_text, *(span or (-1, -1))))
        moved |= span is not None and not context.startswith(answer_text, max(start, 0))
    return Question(identifier, text, context, tuple(answers)), moved


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


def _some(ids: list[str]) -> str:
    shown = [quoted(name)[1:-1] for name in ids[:_SHOWN_IDS]]
    return ", ".join(shown) + (", ..." if len(ids) > _SHOWN_IDS else "")
