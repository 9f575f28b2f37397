"""Pieces of a text and the characters of the original that each of them stands for."""

import unicodedata
from typing import NamedTuple

import numpy as np

from decoupled.data.vocabulary import Vocabulary

# Scripts without spaces between words, by first and last code point.
WITHOUT_SPACES = (
    (0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF),
    (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip


class Pieces(NamedTuple):
    """Pieces of a context, int32 [pieces] each.

    ids; text[starts[i]:ends[i]] became ids[i]. Neither starts nor ends ever fall. A
    space that the vocabulary adds, as before the first word, has an empty span.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def context_pieces(vocabulary: Vocabulary, text: str) -> Pieces:
    """Pieces of a text and the characters that they stand for.

    Where one character becomes several pieces (½), each of them stands for all of it. A
    run of unknown characters is one piece in SentencePiece; in scripts without spaces
    it is one piece per character here, as answers begin and end within it.
    """
    encoding = vocabulary.encode_with_offsets(text)
    ids = np.array(encoding.ids, np.int32)
    starts = np.array(encoding.starts, np.int32)
    ends = np.array(encoding.ends, np.int32)
    empty = (starts == ends) & (ids != vocabulary.piece_to_id("▁"))
    ends[empty] = np.minimum(starts[empty] + 1, len(text))
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
    """Places between two letters where one is of a script without spaces."""
    alone = [_has_no_spaces(character) for character in text[start:end]]
    return [
        start + place
        for place in range(1, end - start)
        if (alone[place - 1] or alone[place]) and not _is_mark(text[start + place])
    ]


def _has_no_spaces(character):
    return any(first <= ord(character) <= last for first, last in WITHOUT_SPACES)


def _is_mark(character):
    return unicodedata.category(character).startswith("M")
