"""Sentences as the SentencePiece trainer takes them: nothing of them is skipped.

The trainer (0.2.3) silently leaves out lines of more bytes than its limit, and lines
with "▅" (U+2585), its own sign for an unknown character.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

# A longer line is cut. Long enough for any sentence; the trainer's memory for a line
# grows with its length.
MAX_LINE_CHARACTERS = 2000
# No character takes more than 4 bytes.
MAX_LINE_BYTES = 4 * MAX_LINE_CHARACTERS
RESERVED = "\u2585"

_SURROGATE = re.compile("[\ud800-\udfff]")
# Ends of sentences and of clauses, also in scripts without spaces.
_SENTENCE_ENDS = re.compile(r"[.!?…。！？｡।॥۔؟։።၊။។༎]")
_CLAUSE_ENDS = re.compile(r"[,;:，、；：،؛·–—)\]}」』]")
_JOINERS = "\u200c\u200d"


def valid_text(text: str) -> str:
    """Half surrogate pairs, which UTF-8 cannot write, become U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


class TrainingLines:
    """One pass over sentences, as lines of UTF-8 that the trainer reads whole.

    White space is one space, reserved characters (NUL, "▅") are white space, and long
    lines are cut where a sentence, a word or a clause ends, else between two characters
    that a reader sees as such.

    Attributes, complete after the pass:
      lines, characters, bytes: of what was yielded.
      cut: sentences that were cut. reserved: sentences that held "▅".
      empty: sentences without text, which are left out.
    """

    def __init__(self, sentences: Iterable[str], max_line: int = MAX_LINE_CHARACTERS):
        """Args:
        max_line: most characters of a line.
        """
        self._sentences = sentences
        self._max_line = max_line
        self.lines = self.characters = self.bytes = 0
        self.cut = self.reserved = self.empty = 0

    def __iter__(self) -> Iterator[bytes]:
        for sentence in self._sentences:
            if RESERVED in sentence:
                self.reserved += 1
            text = valid_text(sentence).replace("\0", " ").replace(RESERVED, " ")
            text = " ".join(text.split())
            if not text:
                self.empty += 1
                continue
            if len(text) > self._max_line:
                self.cut += 1
            for part in cut_text(text, self._max_line):
                line = part.encode("utf-8")
                self.lines += 1
                self.characters += len(part)
                self.bytes += len(line)
                yield line


def cut_text(text: str, max_line: int) -> Iterator[str]:
    """Cuts a text into parts of at most `max_line` characters; only spaces are lost."""
    while len(text) > max_line:
        place = _place_to_cut(text, max_line)
        yield text[:place].rstrip()
        text = text[place:].lstrip()
    if text:
        yield text


def _place_to_cut(text: str, max_line: int) -> int:
    """Where the part that is cut off ends, from 1 to `max_line`."""
    half = max_line // 2
    places = (
        _last_end(_SENTENCE_ENDS, text, half, max_line),
        text.rfind(" ", half, max_line + 1),
        _last_end(_CLAUSE_ENDS, text, half, max_line),
        *range(max_line, half, -1),
    )
    for place in places:
        if place > 0 and not _continues(text, place):
            return place
    return max_line


def _last_end(pattern: re.Pattern, text: str, first: int, last: int) -> int:
    """Where the last match in text[first:last] ends; -1 where there is none."""
    # One more character may be looked at, to see a space.
    ends = [match.end() for match in pattern.finditer(text, first, last + 1)]
    return max((end for end in ends if end <= last), default=-1)


def _continues(text: str, place: int) -> bool:
    """True where a cut would part what a reader sees as one character."""
    following, before = text[place : place + 1], text[place - 1]
    if not following:
        return False
    joined = before in _JOINERS or following in _JOINERS
    virama = unicodedata.combining(before) == 9
    return joined or virama or unicodedata.category(following).startswith("M")
