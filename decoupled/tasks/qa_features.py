"""Questions to windows: [CLS] question [SEP] part of the context [SEP].

XLM-R has a second [SEP] after the question, and one type.

A context that does not fit is cut into overlapping windows (Devlin et al. 2019, section
4.2). The features record which characters of the original text every piece of a context
stands for, so that an answer can be cut from the original text.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.configs import QuestionAnsweringConfig
from decoupled.core.console import track
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import WORDPIECE, Vocabulary
from decoupled.tasks.qa_files import Question

# Changes whenever the features of the same questions change.
FEATURES_VERSION = 2
# Small enough to decide only between windows whose smaller sides are equal.
_LENGTH_WEIGHT = 1e-5
_QUESTIONS_AT_ONCE = 2048
# Scripts without spaces between words, by first and last code point. They are not quite
# those of whole-word masking: another range here needs another FEATURES_VERSION.
_WITHOUT_SPACES = (
    (0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF),
    (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip


class Pieces(NamedTuple):
    """Pieces of a context, int32 [pieces] each.

    ids: of pieces. starts, ends: text[starts[i]:ends[i]] became ids[i]. Both are
    non-decreasing. A space that the vocabulary adds, as before the first word, has an
    empty span.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class _Windows(NamedTuple):
    """Windows of a block of questions.

    question: int64 [windows], index in the block. first, length: int64 [windows], first
    piece and number of pieces of the context. is_best: for each window bool [length],
    the pieces for which it shows most context; None if it is the only window.
    """

    question: np.ndarray
    first: np.ndarray
    length: np.ndarray
    is_best: list[np.ndarray | None]


class _QuestionBlock(NamedTuple):
    """Questions that are packed at once, with the pieces of question and context."""

    questions: list[Question]
    queries: list[list[int]]
    contexts: list[Pieces]


def question_features(
    vocabulary: Vocabulary,
    questions: list[Question],
    sequence_length: int,
    settings: QuestionAnsweringConfig,
) -> dict[str, np.ndarray]:
    """Windows of all questions, in the order of the questions and of the text.

    `example_index` int32 [windows] is the question. Of pieces of the context, [windows,
    sequence]: `character_starts`, `character_ends` int32 (else -1), and `max_context`,
    1 if no other window shows more context around the piece. `start_positions` and
    `end_positions` int32 [windows] are 0 if a window lacks a part of the first answer.
    """
    special = vocabulary.pairs.special
    check_room(sequence_length, settings, special)
    parts = [
        _pack(vocabulary, block, sequence_length, settings.doc_stride, first)
        for first, block in _blocks(vocabulary, questions, settings)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def check_room(
    sequence_length: int, settings: QuestionAnsweringConfig, special: int
) -> None:
    """Refuses windows of so many special pieces that would skip a part of a context."""
    room = sequence_length - special - settings.max_question_length
    if settings.doc_stride > room:
        raise UserError(
            f"QuestionAnsweringConfig.doc_stride: {settings.doc_stride} would skip "
            f"text; a window of max_sequence_length = {sequence_length} has "
            f"{max(room, 0)} pieces of context beside a question of "
            f"{settings.max_question_length} (XTREME's scripts: "
            "FinetuningConfig.max_sequence_length = 384)"
        )


def window_starts(pieces: int, room: int, stride: int) -> range:
    """First pieces of windows of `room` pieces over a context."""
    return range(0, max(pieces - room, 0) + stride, stride)


def most_context(starts: np.ndarray, lengths: np.ndarray, pieces: int) -> np.ndarray:
    """For each piece of a context, the index of the window that shows most context.

    The smaller side of the piece counts; ties go to the longer window, then the first.
    """
    # If any window has the pieces i to k, the best one for their middle has them, too.
    scores, windows = np.full(pieces, -np.inf), np.zeros(pieces, np.int64)
    for window, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        span, left = slice(start, start + length), np.arange(length)
        score = np.minimum(left, left[::-1]) + _LENGTH_WEIGHT * length
        windows[span] = np.where(score > scores[span], window, windows[span])
        scores[span] = np.maximum(score, scores[span])
    return windows


def _blocks(vocabulary, questions, settings) -> Iterator[tuple[int, _QuestionBlock]]:
    """Blocks with the index of their first question; a context is encoded once."""
    pieces: dict[str, Pieces] = {}
    starts = range(0, max(len(questions), 1), _QUESTIONS_AT_ONCE)
    for first in track(starts, "windows of questions", len(starts)):
        block = questions[first : first + _QUESTIONS_AT_ONCE]
        contexts = {question.context: None for question in block}
        new_texts = [context for context in contexts if context not in pieces]
        pieces |= zip(new_texts, context_pieces(vocabulary, new_texts), strict=True)
        ids = vocabulary.encode_batch([question.text for question in block])
        queries = [query[: settings.max_question_length] for query in ids]
        yield first, _QuestionBlock(block, queries, [pieces[q.context] for q in block])


def _pack(vocabulary, block, sequence_length, stride, first_index):
    special = vocabulary.pairs.special
    windows = _cut(block, sequence_length - special, stride)
    queries, lengths = _join(block.queries)
    contexts, begins = _join_contexts(block.contexts)
    owners = windows.question
    columns = np.arange(sequence_length)
    query_lengths = lengths[owners, np.newaxis]
    # Columns of the first piece of the context and of the [SEP] after the last.
    begin = query_lengths + special - 1
    end = begin + windows.length[:, np.newaxis]
    in_query = (columns > 0) & (columns <= query_lengths)
    in_context = (columns >= begin) & (columns < end)
    query_places = (np.cumsum(lengths) - lengths)[owners, np.newaxis] + columns - 1
    places = (begins[owners] + windows.first)[:, np.newaxis] + columns - begin
    context_places = places[in_context]
    word_ids = np.where(columns <= end, vocabulary.sep_id, vocabulary.pad_id)
    word_ids[:, 0] = vocabulary.cls_id
    word_ids[in_query] = queries[query_places[in_query]]
    word_ids[in_context] = contexts.ids[context_places]
    positions = _positions(block, windows, lengths + special - 1)
    types = vocabulary.pairs.second_type * ((columns >= begin) & (columns <= end))
    return {
        "example_index": (first_index + owners).astype(np.int32),
        "input_word_ids": word_ids.astype(np.int32),
        "input_mask": (columns <= end).astype(np.int32),
        "input_type_ids": types.astype(np.int32),
        "start_positions": positions[:, 0],
        "end_positions": positions[:, 1],
        "character_starts": _scatter(in_context, contexts.starts[context_places]),
        "character_ends": _scatter(in_context, contexts.ends[context_places]),
        "max_context": _max_context(windows, in_context),
    }


def _scatter(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    result = np.full(mask.shape, -1, np.int32)
    result[mask] = values
    return result


def _cut(block, places, stride) -> _Windows:
    question, first, length = [], [], []
    is_best: list[np.ndarray | None] = []
    pairs = zip(block.queries, block.contexts, strict=True)
    for number, (query, context) in enumerate(pairs):
        room = places - len(query)
        pieces = len(context.ids)
        starts = np.array(window_starts(pieces, room, stride))
        lengths = np.minimum(pieces - starts, room)
        question += [number] * len(starts)
        first += starts.tolist()
        length += lengths.tolist()
        if len(starts) == 1:
            is_best.append(None)
            continue
        windows = most_context(starts, lengths, pieces)
        is_best += [
            windows[start : start + size] == window
            for window, (start, size) in enumerate(zip(starts, lengths, strict=True))
        ]
    return _Windows(np.array(question), np.array(first), np.array(length), is_best)


def _join(lists: Iterable[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lists = list(lists)
    joined = np.concatenate([np.array(x, np.int32) for x in [*lists, []]])
    return joined, np.array([len(x) for x in lists], np.int64)


def _join_contexts(contexts: list[Pieces]) -> tuple[Pieces, np.ndarray]:
    """The concatenation of all distinct contexts, and where each question's begins."""
    by_id = {id(context): context for context in contexts}
    lengths = np.array([len(context.ids) for context in by_id.values()], np.int64)
    begins = dict(zip(by_id, np.cumsum(lengths) - lengths, strict=True))
    fields = zip(*by_id.values(), strict=True)
    joined = Pieces(*(np.concatenate(field) for field in fields))
    return joined, np.array([begins[id(context)] for context in contexts])


def _positions(
    block: _QuestionBlock, windows: _Windows, offsets: np.ndarray
) -> np.ndarray:
    """Positions of the first and the last piece of the answer."""
    pairs = zip(block.questions, block.contexts, strict=True)
    spans = np.array([_gold_span(question, context) for question, context in pairs])
    owners = windows.question
    is_inside = (spans[owners, 0] >= windows.first) & (
        spans[owners, 1] < windows.first + windows.length
    )
    positions = spans[owners] + (offsets[owners] - windows.first)[:, np.newaxis]
    return np.where(is_inside[:, np.newaxis], positions, 0).astype(np.int32)


def _gold_span(question, context) -> tuple[int, int]:
    answer = question.trained_answer
    if answer is None:
        return -1, -1
    return gold_pieces(context, answer.start, answer.end) or (-1, -1)


def _max_context(windows: _Windows, in_context: np.ndarray) -> np.ndarray:
    result = in_context.astype(np.int8)
    for row, is_best in enumerate(windows.is_best):
        if is_best is not None:
            result[row, in_context[row]] = is_best
    return result


def context_pieces(vocabulary: Vocabulary, texts: Sequence[str]) -> Iterator[Pieces]:
    """Pieces of each text and the characters that they stand for.

    A piece ends after the accents that were stripped from its last letter, which
    answers have. If one character becomes several pieces (½), each of them stands for
    the whole character. SentencePiece makes one piece of a run of unknown characters.
    Here, in scripts without spaces, each of these characters is a piece, because
    answers can begin or end within the run.
    """
    encodings = vocabulary.encode_with_offsets(texts)
    for text, encoding in zip(texts, encodings, strict=True):
        yield _context_pieces(vocabulary, text, encoding)


def _context_pieces(vocabulary, text, encoding) -> Pieces:
    ids = np.array(encoding.ids, np.int32)
    starts = np.array(encoding.starts, np.int32)
    ends = np.array(encoding.ends, np.int32)
    if vocabulary.kind == WORDPIECE:
        # The first place from each one whose character does not become nothing.
        places = np.arange(len(text) + 1, dtype=np.int32)
        places[:-1][vocabulary.vanishes(text)] = len(text)
        next_places = np.minimum.accumulate(places[::-1])[::-1]
        return Pieces(ids, starts, next_places[ends])
    is_empty = (starts == ends) & (ids != vocabulary.blank_id)
    ends[is_empty] = np.minimum(starts[is_empty] + 1, len(text))
    pieces = Pieces(ids, starts, np.maximum.accumulate(ends))
    runs = np.flatnonzero((ids == vocabulary.unk_id) & (ends - starts > 1))
    return _cut_unknown(pieces, runs, text) if len(runs) else pieces


def gold_pieces(pieces: Pieces, start: int, end: int) -> tuple[int, int] | None:
    """First and last piece that touch the characters [start, end); None without any."""
    first = int(np.searchsorted(pieces.ends, start, side="right"))
    last = int(np.searchsorted(pieces.starts, end, side="left")) - 1
    return (first, last) if first <= last else None


def _cut_unknown(pieces, runs, text) -> Pieces:
    cuts = {int(run): _cuts(text, pieces.starts[run], pieces.ends[run]) for run in runs}
    repeats = np.ones(len(pieces.ids), np.int64)
    for run, places in cuts.items():
        repeats[run] += len(places)
    ids, starts, ends = (np.repeat(field, repeats) for field in pieces)
    shifts = np.cumsum(repeats) - repeats
    for run, places in cuts.items():
        first, last = shifts[run], shifts[run] + len(places)
        starts[first + 1 : last + 1] = places
        ends[first:last] = places
    return Pieces(ids, starts, ends)


def _cuts(text, start, end) -> list[int]:
    """Indices between two letters of which at least one has a script without spaces."""
    is_spaceless = [_has_no_spaces(character) for character in text[start:end]]
    return [
        start + place
        for place in range(1, end - start)
        if (is_spaceless[place - 1] or is_spaceless[place])
        and not _is_mark(text[start + place])
    ]


def _has_no_spaces(character):
    return any(first <= ord(character) <= last for first, last in _WITHOUT_SPACES)


def _is_mark(character):
    return unicodedata.category(character).startswith("M")
