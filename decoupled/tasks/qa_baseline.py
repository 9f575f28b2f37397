"""Answers without a model: the words around which most words of the question stand.

The sliding window of Richardson et al. 2013 (MCTest), which SQuAD's paper also has as
its simplest baseline, with spans of one length instead of candidates.
"""

import re
import statistics
from collections.abc import Iterable

import numpy as np

from decoupled.tasks.questions import Question

# Words on either side of the span that are compared with the question.
_AROUND = 10
# A character of a script without spaces, or a word with its marks.
_WORD = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    r"|\w[\w\u0300-\u036f\u0900-\u0dff]*"
)


def usual_length(questions: Iterable[Question]) -> int:
    """The median number of words of the answers; 1 where there are none."""
    lengths = [
        len(_WORD.findall(answer.text))
        for question in questions
        for answer in question.answers
    ]
    return max(1, round(statistics.median(lengths))) if lengths else 1


def sliding_window_answer(question: Question, length: int) -> str:
    """The span of `length` words, none of them in the question, in the best place.

    That is where the words around it hold most of the question's; of equally good
    places the first. "" where the context has no words.
    """
    words = list(_WORD.finditer(question.context))
    if not words:
        return ""
    length = min(length, len(words))
    asked = {word.lower() for word in _WORD.findall(question.text)}
    hits = np.array([word.group().lower() in asked for word in words])
    before = np.concatenate([[0], np.cumsum(hits)])
    first = np.arange(len(words) - length + 1)
    begin = np.maximum(first - _AROUND, 0)
    end = np.minimum(first + length + _AROUND, len(words))
    repeats_question = before[first + length] - before[first] > 0
    score = np.where(repeats_question, -1, before[end] - before[begin])
    best = int(score.argmax())
    return question.context[words[best].start() : words[best + length - 1].end()]
