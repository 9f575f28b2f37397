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
RULES = 8

SHORT = "lines that are too short"
NO_TEXT = "lines of numbers and signs"
MARKUP = "lines with markup"
INCOMPLETE = "sentences around a formula or template"

_DEFAULT_CODE = "en"
# The time of sentencex grows with the square of the number of quotation marks, so it
# gets this many characters at a time. Nothing is joined to a longer sentence.
_MAX_CHARACTERS = 4000
# Longer runs of marks are cut anywhere.
_MAX_MARKS = 50
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
    "[\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
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
# Languages in which a point ends abbreviations, but no sentence: พ.ศ.
_WITHOUT_POINTS = {"th", "lo", "km", "my", "bo", "dz"}
# These find what may be the first part of an abbreviation with points inside (TP.HCM,
# ई.पू.), and a whole one. Urdu often has no space after the mark of a sentence, and
# Japanese none after the wide point; there, only single letters are an abbreviation.
_LETTERS = r"(?:[^\s.\d\u200d]\u200d?){1,4}"
_ACRONYM_START = re.compile(
    rf"(?:^|[\s.(（“„«\"'])(?P<part>{_LETTERS})\.$"
    r"|(?<![A-Za-zＡ-Ｚａ-ｚ])[A-Za-zＡ-Ｚａ-ｚ]．$|(?:^|[\s۔])[^\W\d_]۔$"
)
_ACRONYM = re.compile(rf"(?:^|[\s(（])(?:(?:{_LETTERS}\.){{2,}}|(?:[^\W\d_]۔){{2,}})$")
# Titles before names: a single letter in Arabic and Hebrew, and these.
_TITLE = re.compile(
    r"(?:^|[\s(（\"“])(?:[\u05d0-\u05ea\u0621-\u064a]|डॉ|डा|प्रो|ডা|ড|Dk|Bw|Mhe)\.$"
)
# German writes a point after 20 in "im 20. Jahrhundert", and its nouns with capitals.
_GERMAN_ORDINAL = re.compile(
    r"(?:\b(?:[ai]m|[ai]ns|vo[mn]|zu[mr]?|beim|de[rsmn]|die|das|eine?[rsmn]?|seit|bis|ab"
    r"|und|oder|jede[rsmn]?|frühen|späten|mittleren|ausgehenden|beginnenden)|\d\.[/–-])"
    r"\s?\d{1,3}\.$",
    re.IGNORECASE,
)
# Longer numbers are years, which may end a sentence: IV. Béla, 1. Lig, 1920.
_SHORT_ORDINAL = r"\d{1,2}|[IVXLC]+"
_BEFORE_NAME = r"(?:^|[\s(（\"“])(?:{})\.$"
# Language -> after what its sentences go on with a capital.
_BEFORE_CAPITAL = {
    **dict.fromkeys(("de", "lb", "nds"), _GERMAN_ORDINAL),
    **dict.fromkeys(("az", "hu"), re.compile(_BEFORE_NAME.format(_SHORT_ORDINAL))),
    "tr": re.compile(_BEFORE_NAME.format(rf"{_SHORT_ORDINAL}|Doç|Yrd|Av|Sn")),
    "vi": re.compile(_BEFORE_NAME.format("TP|TX|GS|PGS|TS|ThS|BS")),
}
# The beginning of .NET, .PDF, with the character before it.
_NAME_WITH_POINT = re.compile(r"[ (]\.[A-Z]{2}")
# What follows a quotation in the same sentence: 「…。」と彼は言った。
_JAPANESE_PARTICLE = re.compile("と|など|って|の|を|が|は|に|も")
# Burmese: "of", and a comma; sentencex takes both for ends.
_BURMESE_INNER = ("၏", "၊")
# The first character of a mark, then the rest of the mark. In this form the search
# skips all other characters fast.
_MARKUP = re.compile(
    r"[\[\]{}|<>='&:_~](?:(?<=[{}|<>])|(?<=\[)(?:\[|\d*\])|(?<=\])\]|(?<==)=|(?<=')'"
    r"|(?<=:)//|(?<=&)#?\w+;|(?<=_)_|(?<=~)~~)"
)
# Bars that stand for dandas, in the scripts that have them.
_BAR = re.compile(r"(?<=[\u0900-\u0b7f])\s?\|{1,2}(?=[\s\"”’»]|$)")
# A dash before a digit is a minus sign.
_LEADING = re.compile(r"^(?:(?![-–]\d)[ \t,;:،؛、，；。)\]）*#•·\-–—])+")
# Only round brackets: "[A] trial" and "[a]ny trial" begin a quoted sentence.
_SMALL_IN_BRACKETS = re.compile(r"[(（][\"'“„«‹”‘‚]*(?P<letter>[^\W\d_])")
_BRACKETS = re.compile(r"\([^()]*\)|（[^（）]*）")
_CLOSING_QUOTES = tuple('"”“’»«›」』】》')
_MARKS_AROUND = f'{SENTENCE_ENDS}"“”„‘’«»‹›「」『』《》()（） '
_ENDS_OR_BAR = ("|", *SENTENCE_ENDS, *_CLOSING_QUOTES)
# Ends of sentences that sentencex does not know: of Khmer and Tibetan, and two of the
# marks between words in Ethiopic, which many write for its full stop.
_END = "(?:[។៕།༎]|፡፡+)+"
_PART = re.compile(rf"(?:[^។៕།༎፡]+|፡(?!፡))+(?:{_END}[\"'”’»)]*\s*)?|{_END}\s*")


def split_sentences(
    paragraph: str, language: str, min_characters: int = 0
) -> list[str]:
    """The sentences of a paragraph, one line, without white space around them.

    An unknown language gets the rules of its first part, `sr` for `sr-Latn`, or those
    of English. Text of fewer than `min_characters` stays with the sentence beside it.
    """
    sentences = []
    separator = ""
    code = _known_code(language)
    for part in _segments(code, paragraph):
        sentence = part.strip()
        if sentences and (
            _goes_on(code, sentences[-1], separator, sentence)
            or _is_short_text(sentences[-1], min_characters)
            or (
                _is_short_text(sentence, min_characters)
                and not _is_title(code, sentence)
            )
        ):
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

    `min_characters` is their least length; one of 漢字, かな or 한글 counts twice. What
    is shorter, such as "Yes.", stays with a sentence of its paragraph, or is left out.
    """
    sentences = []
    for paragraph in paragraphs:
        # A paragraph with bars and no end is a row of cells or headings.
        if "|" in paragraph and paragraph.endswith(_ENDS_OR_BAR):
            paragraph = _BAR.sub("।", paragraph)
        for sentence in split_sentences(paragraph, language, min_characters):
            sentence = _LEADING.sub("", sentence)
            reason = _fault(sentence, min_characters)
            if reason:
                dropped[reason] += 1
            else:
                sentences.append(sentence)
    return sentences


def _segments(code: str, paragraph: str) -> Iterator[str]:
    """The parts of a paragraph that sentencex finds; they together are the paragraph.

    It gets `_MAX_CHARACTERS` at a time, from the beginning of a part on. If no part
    ends among them, they are cut after their last space, or else between characters.
    """
    start = 0
    while start < len(paragraph):
        end = start + _MAX_CHARACTERS
        parts = list(sentencex.segment(code, paragraph[start:end]))
        if parts and end < len(paragraph):
            # The end of the last part is not known yet.
            *whole_parts, last = parts
            head, space, _ = last.rpartition(" ")
            parts = whole_parts or [head + space if head else _whole_characters(last)]
        for part in parts:
            yield from _PART.findall(part)
        start += sum(map(len, parts)) or _MAX_CHARACTERS


def _whole_characters(part: str) -> str:
    """`part` without a few characters at its end, so that what follows is no mark."""
    sizes = range(len(part) - 1, max(1, len(part) - _MAX_MARKS), -1)
    return part[: next((s for s in sizes if not divides_character(part, s)), len(part))]


def _goes_on(code: str, sentence: str, separator: str, part: str) -> bool:
    """True if `part` belongs to the sentence before it, as after an abbreviation."""
    if len(sentence) > _MAX_CHARACTERS:
        return False
    # A number such as ३.५, of whose digits sentencex knows those of ASCII alone.
    if not separator and _NUMBER.search(sentence) and part[:1].isdecimal():
        return True
    if is_small(part[:1]) or not _WORD.search(part):
        return True
    border = f" {sentence}"[-2:] + part[:2]
    if not separator and _NAME_WITH_POINT.match(border):
        return True
    if _is_abbreviated(code, sentence, separator, part[:1]):
        return True
    is_after_quote = not separator and sentence.endswith(_CLOSING_QUOTES)
    # A Korean particle follows a quotation directly; another sentence has a space.
    if code == "ko" and is_after_quote and part[:1].isalpha():
        return True
    if code == "my" and sentence.endswith(_BURMESE_INNER):
        return True
    if (
        code == "ja"
        and sentence.endswith(("」", "』"))
        and _JAPANESE_PARTICLE.match(part)
    ):
        return True
    if match := _SMALL_IN_BRACKETS.match(part):
        if is_small(match["letter"]):
            return True
    # Brackets without a whole sentence in them: „сл. Хр.“ (След Христа)
    brackets = _BRACKETS.match(part)
    if not (brackets and sentence.endswith(_CLOSING_QUOTES)):
        return False
    content = brackets[0][1:-1].rstrip(" \"'“”’»")
    return not content.endswith(tuple(SENTENCE_ENDS))


def _is_abbreviated(code: str, sentence: str, separator: str, letter: str) -> bool:
    """Whether `sentence` ends in an abbreviation, to which `letter` belongs."""
    # The last word and the one before it.
    ending = sentence[-40:]
    if code in _WITHOUT_POINTS and ending.endswith("."):
        return True
    if not separator:
        match = _ACRONYM_START.search(ending)
        # "It is.He" lacks a space.
        lacks_space = match and letter.isupper() and is_small((match["part"] or "")[:1])
        return bool(match) and letter.isalnum() and not lacks_space
    pattern = _BEFORE_CAPITAL.get(code)
    if pattern and letter.isupper() and pattern.search(ending):
        return True
    if letter.isalpha() and _TITLE.search(ending):
        return True
    has_case = letter.isupper() or is_small(letter)
    return letter.isalnum() and not has_case and _ACRONYM.search(ending) is not None


def _is_title(code, sentence):
    """Whether a sentence is a title or an ordinal alone, which awaits its name."""
    pattern = _BEFORE_CAPITAL.get(code)
    is_before_capital = pattern and pattern.fullmatch(sentence)
    return bool(is_before_capital or _TITLE.fullmatch(sentence))


def _known_code(language):
    code = language.lower().replace("_", "-").replace("@", "-")
    return _CODES.get(code) or code.split("-")[0] or _DEFAULT_CODE


def _fault(sentence, min_characters):
    if HOLE in sentence:
        return INCOMPLETE
    if _is_short(sentence, min_characters):
        return SHORT
    if _MARKUP.search(sentence) or "www." in sentence or "ISBN" in sentence:
        return MARKUP
    noise = sum(map(len, _NOISE.findall(sentence)))
    if noise > _MAX_NOISE * (len(sentence) - sentence.count(" ")) or not sentence:
        return NO_TEXT
    return None


def _is_short(text, min_characters):
    length = len(text)
    return (
        length < min_characters and length + len(_WIDE.findall(text)) < min_characters
    )


def _is_short_text(text, min_characters):
    # Without its quotation marks, which may be more than half of it: 「はい。」
    words = _LEADING.sub("", text).strip(_MARKS_AROUND)
    return _is_short(text, min_characters) and _fault(words, 0) is None
