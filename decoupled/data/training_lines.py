"""Sentences in a form of which the SentencePiece trainer skips nothing.

The trainer (0.2.3) silently skips lines with more bytes than its limit, and lines with
"▅" (U+2585), its own sign for an unknown character.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

# Longer lines are cut. This is long enough for any sentence, and short enough for the
# trainer's memory, which grows with the length of a line.
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
    """Replaces halves of surrogate pairs, which UTF-8 cannot encode, by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


class TrainingLines:
    """One pass over sentences, as lines of UTF-8 that the trainer does not skip.

    Reserved characters (NUL, "▅") become white space, and white space becomes one
    space. Long lines are cut at the end of a sentence, a word or a clause, else between
    two characters, but not within what a reader sees as one character.

    Attributes, complete after the pass:
      lines, characters, bytes: of the yielded lines.
      cut: sentences that were cut. reserved: sentences that contained "▅".
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
    """Cuts a text into parts of at most `max_line` characters; loses only spaces."""
    while len(text) > max_line:
        place = _place_to_cut(text, max_line)
        yield text[:place].rstrip()
        text = text[place:].lstrip()
    if text:
        yield text


def _place_to_cut(text: str, max_line: int) -> int:
    """The index at which to cut, from 1 to `max_line`."""
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
    """The end of the last match in text[first:last]; -1 if there is none."""
    # The search includes one more character; a match must not end after `last`.
    ends = [match.end() for match in pattern.finditer(text, first, last + 1)]
    return max((end for end in ends if end <= last), default=-1)


def _continues(text: str, place: int) -> bool:
    """Whether a cut would divide what a reader sees as one character."""
    following, before = text[place : place + 1], text[place - 1]
    if not following:
        return False
    joined = before in _JOINERS or following in _JOINERS
    virama = unicodedata.combining(before) == 9
    return joined or virama or unicodedata.category(following).startswith("M")
