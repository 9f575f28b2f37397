"""Paragraphs -> the sentences of a document, in any language.

The package sentencex splits the paragraphs. It has rules for some 300 languages; it
uses the rules of a related language for some others, and English rules for the rest.
"""

import collections
import re
from collections.abc import Iterable, Iterator

import sentencex

from decoupled.corpora.text_lines import SENTENCE_ENDS, divides_character, is_small
from decoupled.corpora.wikipedia.wiki_templates import HOLE

# Version of the rules that split and choose sentences. Every change of them adds 1, so
# that a corpus made with older rules is not reused.
RULES = 5

SHORT = "lines that are too short"
NO_TEXT = "lines of numbers and signs"
MARKUP = "lines with markup"
INCOMPLETE = "sentences around a formula or template"

_UNKNOWN = "en"
# The time of sentencex grows with the square of the number of quotation marks, so it
# sees this many characters at a time. Nothing is joined to a longer sentence.
_LONGEST = 4000
# Longer runs of marks are cut anywhere.
_MARKS = 50
_WORD = re.compile(rf"[^\W_]|{HOLE}")
# The wiki's name for a language -> a code that sentencex knows.
_CODES = {
    "simple": "en",
    "zh-yue": "yue",
    "zh-min-nan": "zh",
    "zh-classical": "zh",
    "be-x-old": "be",
    "be-tarask": "be",
    "bat-smg": "lt",
    "fiu-vro": "et",
    "roa-rup": "ro",
    "roa-tara": "it",
    "map-bms": "id",
    "cbk-zam": "es",
    "als": "de",
    "no": "nb",
}

# One character of these scripts holds about as much information as two letters.
_WIDE = re.compile(
    "[\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]"
)
# Digits of all scripts, ASCII and general punctuation, symbols. (Not \W, which includes
# the vowel signs of Indic scripts.)
_NOISE = re.compile(
    r"[\d!-/:-@\[-`{-~\xa1-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u2010-\u2bff\u3001-\u3020"
    r"\uff01-\uff20]+"
)
_MAX_NOISE = 0.5
# The beginning of a number with a point.
_NUMBER = re.compile(r"\d[.．]$")
# The first character of a mark, then the rest of the mark. In this form the search
# skips all other characters fast.
_MARKUP = re.compile(
    r"[\[\]{}|<>='&:_~](?:(?<=[{}|<>])|(?<=\[)(?:\[|\d*\])|(?<=\])\]|(?<==)=|(?<=')'"
    r"|(?<=:)//|(?<=&)#?\w+;|(?<=_)_|(?<=~)~~)"
)
_LEADING = " \t,;:،؛、，；。)]）*#•·-–—"
# Only round brackets: "[A] trial" and "[a]ny trial" begin a quoted sentence.
_SMALL_IN_BRACKETS = re.compile(r"[(（][\"'“„«‹”‘‚]*(?P<letter>[^\W\d_])")
_BRACKETS = re.compile(r"\([^()]*\)|（[^（）]*）")
_CLOSING_QUOTES = tuple('"”“’»«›」』】》')
# Ends of sentences that sentencex does not know: of Khmer and Tibetan, and two of the
# marks between words in Ethiopic, which many write for its full stop.
_END = "(?:[។៕།༎]|፡፡+)+"
_PART = re.compile(rf"(?:[^។៕།༎፡]+|፡(?!፡))+(?:{_END}[\"'”’»)]*\s*)?|{_END}\s*")


def split_sentences(paragraph: str, language: str) -> list[str]:
    """The sentences of a paragraph, one line, without white space around them.

    An unknown language gets the rules of its first part, `sr` for `sr-Latn`, or those
    of English.
    """
    sentences = []
    separator = ""
    for part in _segments(_known_code(language), paragraph):
        sentence = part.strip()
        if sentences and _goes_on(sentences[-1], separator, sentence):
            sentences[-1] = f"{sentences[-1]}{separator}{sentence}".rstrip()
        elif sentence:
            sentences.append(sentence)
        separator = " " if part[-1:].isspace() else ""
    return sentences


def clean_sentences(
    paragraphs: Iterable[str],
    language: str,
    min_characters: int,
    dropped: collections.Counter,
) -> list[str]:
    """The sentences of a document that are running text; counts the others by reason.

    `min_characters` is their least length; one of 漢字, かな or 한글 counts twice.
    """
    kept = []
    for paragraph in paragraphs:
        for sentence in split_sentences(paragraph, language):
            sentence = sentence.lstrip(_LEADING)
            reason = _fault(sentence, min_characters)
            if reason:
                dropped[reason] += 1
            else:
                kept.append(sentence)
    return kept


def _segments(code: str, paragraph: str) -> Iterator[str]:
    """The parts of a paragraph that sentencex finds; they together are the paragraph.

    It sees `_LONGEST` characters at a time, from the beginning of a part on. If no part
    ends among them, they are cut after their last space, or else between characters.
    """
    start = 0
    while start < len(paragraph):
        end = start + _LONGEST
        parts = list(sentencex.segment(code, paragraph[start:end]))
        if parts and end < len(paragraph):
            # The end of the last part is not known yet.
            *ended, last = parts
            head, space, _ = last.rpartition(" ")
            parts = ended or [head + space if head else _whole_characters(last)]
        for part in parts:
            yield from _PART.findall(part)
        start += sum(map(len, parts)) or _LONGEST


def _whole_characters(part: str) -> str:
    """`part` without a few characters at its end, so that what follows is no mark."""
    sizes = range(len(part) - 1, max(1, len(part) - _MARKS), -1)
    return part[: next((s for s in sizes if not divides_character(part, s)), len(part))]


def _goes_on(before: str, separator: str, part: str) -> bool:
    """True if `part` belongs to the sentence before, as after an abbreviation."""
    if len(before) > _LONGEST:
        return False
    # A number such as ३.५, of whose digits sentencex knows those of ASCII alone.
    if not separator and _NUMBER.search(before) and part[:1].isdecimal():
        return True
    if is_small(part[:1]) or not _WORD.search(part):
        return True
    if small := _SMALL_IN_BRACKETS.match(part):
        if is_small(small["letter"]):
            return True
    # Brackets without a whole sentence in them: „сл. Хр.“ (След Христа)
    brackets = _BRACKETS.match(part)
    if not (brackets and before.endswith(_CLOSING_QUOTES)):
        return False
    inside = brackets[0][1:-1].rstrip(" \"'“”’»")
    return not inside.endswith(tuple(SENTENCE_ENDS))


def _known_code(language):
    code = language.lower().replace("_", "-").replace("@", "-")
    return _CODES.get(code) or code.split("-")[0] or _UNKNOWN


def _fault(sentence, min_characters):
    if HOLE in sentence:
        return INCOMPLETE
    length = len(sentence)
    if length < min_characters and length + _wide(sentence) < min_characters:
        return SHORT
    if _MARKUP.search(sentence) or "www." in sentence or "ISBN" in sentence:
        return MARKUP
    noise = sum(map(len, _NOISE.findall(sentence)))
    if noise > _MAX_NOISE * (length - sentence.count(" ")) or not sentence:
        return NO_TEXT
    return None


def _wide(text):
    return len(_WIDE.findall(text))
