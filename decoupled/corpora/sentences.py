"""Paragraphs -> the sentences of a document, in any language.

sentencex splits: rules of some 300 languages, with the rules of a related language for
others and those of English for the rest.
"""

import collections
import re
from collections.abc import Iterable

import sentencex

from decoupled.corpora.wikipedia.wiki_templates import HOLE

# Version of the rules that split and choose sentences, counted up with every change of
# them; a corpus of other rules is not taken for one of these.
RULES = 1

SHORT = "lines that are too short"
NO_TEXT = "lines of numbers and signs"
MARKUP = "lines with markup"
INCOMPLETE = "sentences around a formula or template"

_UNKNOWN = "en"
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

# One character of these says about as much as two letters.
_WIDE = re.compile(
    "[\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]"
)
# Digits of all scripts, ASCII and general punctuation, symbols. (Not \W: it has the
# vowel signs of Indic scripts.)
_NOISE = re.compile(
    r"[\d!-/:-@\[-`{-~\xa1-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u2010-\u2bff\u3001-\u3020"
    r"\uff01-\uff20]+"
)
_MAX_NOISE = 0.5
# A character that can begin a mark, then how it goes on: the search skips all others.
_MARKUP = re.compile(
    r"[\[\]{}|<>='&:_~](?:(?<=[{}|<>])|(?<=\[)(?:\[|\d*\])|(?<=\])\]|(?<==)=|(?<=')'"
    r"|(?<=:)//|(?<=&)#?\w+;|(?<=_)_|(?<=~)~~)"
)
_LEADING = " \t,;:،؛、，；。)]）*#•·-–—"
# Round ones only: "[A] trial" and "[a]ny trial" begin a sentence that is quoted.
_SMALL_IN_BRACKETS = re.compile(r"[(（][\"'“„«‹”‘‚]*(?P<letter>[^\W\d_])")
_BRACKETS = re.compile(r"\([^()]*\)|（[^（）]*）")
_CLOSING_QUOTES = tuple('"”“’»«›」』】》')
_SENTENCE_END = tuple(".!?…。！？．؟۔।॥։።")


def split_sentences(paragraph: str, language: str) -> list[str]:
    """The sentences of a paragraph, without white space around them.

    A part belongs to the sentence before, where an abbreviation was taken for its end,
    if it begins with a small letter, also one in brackets; if it has neither letter nor
    digit; or if it begins, after a closing quotation mark, with brackets that hold no
    whole sentence: `„сл. Хр.“ (След Христа)`.

    Args:
      paragraph: one line.
      language: any code; the rules of an unknown one are those of its first part, as
        `sr` for `sr-Latn`, or of English.
    """
    sentences = []
    separator = ""
    for part in sentencex.segment(_known_code(language), paragraph):
        sentence = part.strip()
        if sentences and _goes_on(sentences[-1], sentence):
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
    """The sentences of a document that are text.

    Args:
      paragraphs: of one document, as from `wikitext.article_paragraphs`.
      language: as for `split_sentences`.
      min_characters: of a sentence; one of a script without letters (漢字, かな, 한글)
        counts twice.
      dropped: counts the sentences left out, by reason.
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


def _goes_on(before: str, part: str) -> bool:
    """True where `part` is no sentence of its own but belongs to the one before."""
    if part[:1].islower() or not _WORD.search(part):
        return True
    if small := _SMALL_IN_BRACKETS.match(part):
        if small["letter"].islower():
            return True
    brackets = _BRACKETS.match(part)
    if not (brackets and before.endswith(_CLOSING_QUOTES)):
        return False
    inside = brackets[0][1:-1].rstrip(" \"'“”’»")
    return not inside.endswith(_SENTENCE_END)


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
