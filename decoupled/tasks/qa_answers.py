"""From logits of starts and ends to answers: the likeliest span of all windows."""

import string
from typing import NamedTuple

import numpy as np

from decoupled.configs import QuestionAnsweringConfig
from decoupled.configs.finetuning import AUTO
from decoupled.tasks.qa_files import Question

# The rules of `trim`: the characters that an answer does not end with, and pairs of
# brackets.
_CLOSING_SIGNS = string.whitespace + ".,;:!?。，、；：！？،؛؟।॥۔։።፧፣፤፥၊။។៕།-–—"
_PARTNERS = dict(zip("([{（［｛「『《〈【", ")]}）］｝」』》〉】", strict=True))
_OPENING = {closing: opening for opening, closing in _PARTNERS.items()}
# The features of windows that determine where a span may be.
_SPAN_FEATURES = ("character_starts", "character_ends", "max_context")
# Windows whose pairs of starts and ends are in memory at once.
_WINDOWS_AT_ONCE = 4096


class ScoredAnswer(NamedTuple):
    """A text, the character of the context at which it begins, and its score."""

    text: str
    start: int
    score: float


def scored_answers(
    questions: list[Question],
    features: dict[str, np.ndarray],
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    settings: QuestionAnsweringConfig,
    max_characters: int | None = None,
) -> list[ScoredAnswer]:
    """The trimmed answer to each question, cut from the original text of its context.

    A span's score is the sum of the logits of its first and last piece (Devlin et al.
    2019, section 4.2). In each window the `n_best` starts are combined with the
    `n_best` ends. Only the window that shows most context around the middle of a span
    may give it; BERT takes the span's start, and loses long answers. If a context has
    no text, the answer is "" with the score of [CLS].

    The logits are float [windows, sequence]. `max_characters` limits an answer if
    `settings.max_answer_length` is "auto".
    """
    answers = [ScoredAnswer("", 0, 0.0)] * len(questions)
    has_text = _has_text(questions, features)
    spans = best_spans(
        features, has_text, start_logits, end_logits, settings, max_characters
    )
    owners = features["example_index"]
    # The best window of each question comes last; of equal windows the first is best.
    order = np.lexsort((-np.arange(len(owners)), spans[:, 2], owners))
    best_rows = order[np.flatnonzero(np.diff(owners[order], append=-1))]
    for row in best_rows:
        first, last, score = int(spans[row, 0]), int(spans[row, 1]), spans[row, 2]
        text, start = "", 0
        if np.isfinite(score):
            question = questions[owners[row]]
            text = span_text(question, features, row, first, last)
            start = int(features["character_starts"][row, first])
            start = question.context.index(text, start) if text else start
        else:
            score = start_logits[row, 0] + end_logits[row, 0]
        answers[owners[row]] = ScoredAnswer(text, start, float(score))
    return answers


def _has_text(questions: list[Question], features: dict[str, np.ndarray]) -> np.ndarray:
    """Whether pieces have more than white space of their context, bool [windows,
    sequence]. The space that the vocabulary adds before a text has no characters."""
    starts, ends = features["character_starts"], features["character_ends"]
    has_text, previous_owner, counts = ends > starts, None, np.zeros(1)
    for row, owner in enumerate(features["example_index"]):
        if owner != previous_owner:
            previous_owner, context = owner, questions[owner].context
            counts = np.cumsum([0, *(not sign.isspace() for sign in context)])
        mask = has_text[row]
        mask[mask] = counts[ends[row, mask]] > counts[starts[row, mask]]
    return has_text


def span_text(
    question: Question, features: dict[str, np.ndarray], row: int, first: int, last: int
) -> str:
    """The text of the pieces first..last of a window, as an answer; see `trim`."""
    starts, ends = features["character_starts"][row], features["character_ends"][row]
    text = question.context[starts[first] : ends[last]]
    return trim(text, int(ends[first] - starts[first]), int(ends[last] - starts[last]))


def trim(text: str, head: int, tail: int) -> str:
    """Removes from both ends of a text what belongs to pieces but not to an answer.

    Pieces such as " (2", " Inc)." and "的。" contain more than a word. White space is
    removed, and so are closing signs, and brackets that enclose the whole text or whose
    partner is not in it. Signs and brackets are kept if their piece, of `head` or
    `tail` characters, contains nothing else, so that a model can still choose them.
    """
    text, tail = _without_closing_signs(text, tail)
    blanks = len(text) - len(text.lstrip())
    text, head = text[blanks:], max(head - blanks, 0)
    tail = min(tail, len(text))
    opening, closing = text[:1], text[-1:]
    may_open = opening in _PARTNERS and text[1:head].strip() != ""
    may_close = closing in _OPENING and text[len(text) - tail : -1].strip() != ""
    encloses = may_open and may_close and _PARTNERS[opening] == closing
    if encloses or (may_open and _PARTNERS[opening] not in text):
        text = text[1:]
    if encloses or (may_close and _OPENING[closing] not in text):
        text, tail = text[:-1], tail - 1
    # The first piece can also be the last.
    return _without_closing_signs(text, min(tail, len(text)))[0].strip()


def _without_closing_signs(text: str, tail: int) -> tuple[str, int]:
    head, piece = text[: len(text) - tail], text[len(text) - tail :]
    stem = piece.rstrip(_CLOSING_SIGNS)
    return (head + stem, len(stem)) if stem.strip() else (text, tail)


def best_spans(
    features: dict[str, np.ndarray],
    has_text: np.ndarray,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    settings: QuestionAnsweringConfig,
    max_characters: int | None = None,
) -> np.ndarray:
    """The best span of each window, whose first and last piece have text; for the other
    arguments see `scored_answers`.

    float64 [windows, 3]: first piece, last piece, score; -inf without a context.
    """
    if settings.max_answer_length == AUTO and max_characters is None:
        raise ValueError("max_answer_length is auto: max_characters must be given")
    parts = [np.zeros([0, 3])]
    for begin in range(0, len(start_logits), _WINDOWS_AT_ONCE):
        rows = slice(begin, begin + _WINDOWS_AT_ONCE)
        starts = np.where(has_text[rows], start_logits[rows], -np.inf)
        ends = np.where(has_text[rows], end_logits[rows], -np.inf)
        block = {name: features[name][rows] for name in _SPAN_FEATURES}
        spans = _best_of_windows(starts, ends, block, settings, max_characters)
        parts.append(spans)
    return np.concatenate(parts)


def _best_of_windows(
    starts: np.ndarray,
    ends: np.ndarray,
    features: dict[str, np.ndarray],
    settings: QuestionAnsweringConfig,
    max_characters: int | None,
) -> np.ndarray:
    """As `best_spans`; logits outside of the context are -inf."""
    rows = np.arange(len(starts))
    first_places, first_scores = _largest(starts, settings.n_best)
    last_places, last_scores = _largest(ends, settings.n_best)
    scores = first_scores[:, :, np.newaxis] + last_scores[:, np.newaxis, :]
    firsts, lasts = first_places[:, :, np.newaxis], last_places[:, np.newaxis, :]
    is_possible = lasts >= firsts
    is_possible &= _are_short(firsts, lasts, features, settings, max_characters)
    # Rounded up, so that the best window for the middle contains the whole span if any
    # window does (see `qa_features.most_context`).
    middles = (firsts + lasts + 1) // 2
    # See `scored_answers`.
    may_be_middle = features["max_context"] > 0
    is_possible &= may_be_middle[rows[:, np.newaxis, np.newaxis], middles]
    scores = np.where(is_possible, scores, -np.inf).reshape(len(starts), -1)
    best_pairs = scores.argmax(axis=1)
    # If no pair is possible, the best single piece is the answer.
    sums = np.where(may_be_middle, starts + ends, -np.inf)
    best_pieces = sums.argmax(axis=1)
    is_pair = np.isfinite(scores[rows, best_pairs])
    width = last_places.shape[1]
    first = np.where(is_pair, first_places[rows, best_pairs // width], best_pieces)
    last = np.where(is_pair, last_places[rows, best_pairs % width], best_pieces)
    score = np.where(is_pair, scores[rows, best_pairs], sums[rows, best_pieces])
    return np.stack([first, last, score], axis=1)


def _are_short(
    firsts: np.ndarray,
    lasts: np.ndarray,
    features: dict[str, np.ndarray],
    settings: QuestionAnsweringConfig,
    max_characters: int | None,
) -> np.ndarray:
    if settings.max_answer_length != AUTO:
        return lasts - firsts < settings.max_answer_length
    rows = np.arange(len(firsts))[:, np.newaxis, np.newaxis]
    ends, starts = features["character_ends"], features["character_starts"]
    return ends[rows, lasts] - starts[rows, firsts] <= max_characters


def _largest(logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    # As `tf.math.top_k`: equal logits keep their order, which numpy's default sort does
    # not promise.
    places = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    return places, np.take_along_axis(logits, places, axis=1)
