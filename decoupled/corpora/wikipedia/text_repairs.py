"""Mends paragraphs where markup was taken out: parentheses, punctuation, spaces."""

import re

from decoupled.corpora.wikipedia.wiki_templates import GAP, HOLE

_OPEN = "(（"
_SEPARATORS = ",;،؛，；、"
_FINAL = ".!?…。！？．؟۔।॥։።"
_CLOSING = r"\"'”’»›)）\]」』】》"
# Scripts that put no space before a parenthesis.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff"
)

# A character that can begin what is broken, then how it goes on. (In this form, and not
# as a choice of beginnings, the search skips all other characters fast.)
_BROKEN = re.compile(
    rf"[{GAP}{HOLE} (（\[“\"«{_SEPARATORS}](?:(?<=[{GAP}{HOLE}])"
    rf"|(?<= )(?:[)）]|[,.،۔।](?:\s|$))"
    rf"|(?<=[(（\[])(?:[\s{_SEPARATORS}:\]]|\W{{0,3}}[)）])"
    rf"|(?<=[{_SEPARATORS}]) ?[{_SEPARATORS})）.。]"
    rf"|(?<=[“\"«]) ?[”\"»])"
)
_PARENTHESIS = re.compile(r"\([^()（）]*\)|（[^()（）]*）|\[[^\[\]]*\]")
_BEFORE_PARENTHESIS = re.compile(rf"[\s{_UNSPACED}{_CLOSING}{GAP}]")
_DEPTH = 3
_START = re.compile(rf"[\s{GAP}]*{GAP}\s+")
_AFTER_SENTENCE = re.compile(rf"(?<=[{_FINAL}{_CLOSING}]) ?{GAP}[ {GAP}]*(?= |$)")
# Directly behind a word and not within one: a note.
_NOTE = re.compile(
    rf"(?<=[^\s{_OPEN}\[{HOLE}{GAP}]){GAP}+(?=[\s{_SEPARATORS}{_FINAL}{_CLOSING}:–—]|$)"
    rf"(?<![\"“«„']{GAP}(?=[\"”»’']))"
)

# White space is one space here, and no pattern can run on over what another one of its
# matches has seen: time must not grow with the square of a paragraph.
_REPAIRS = (
    # (; born 1900), (born 1900; ), ( ), (, )
    (re.compile(rf"([(（])[ {_SEPARATORS}:]+"), r"\1"),
    (re.compile(rf"(?<![ {_SEPARATORS}:])[ {_SEPARATORS}:]+([)）])"), r"\1"),
    (re.compile(rf" ?[(（](?:[^\w{HOLE}]|_){{0,3}}[)）]| ?\[ ?\]"), ""),
    (re.compile(r" ?“ ?”| ?«\s?»"), ""),
    (re.compile(rf"([{_SEPARATORS}])(?: ?[{_SEPARATORS}])+"), r"\1"),
    (re.compile(rf" ?[{_SEPARATORS}] ?([.。．।۔؟])(?![.\w])"), r"\1"),
    (re.compile(r" ([,.،۔।])(?=\s|$)"), r"\1"),
)


def mend(paragraph: str) -> str:
    """A paragraph in one line, mended where something was taken out.

    A parenthesis that lost a part goes; what is around an unknown template stays where
    the template looks like a note. Any other is left as `HOLE`: the sentence around it
    is incomplete.
    """
    paragraph = " ".join(paragraph.split())
    if not _BROKEN.search(paragraph):
        return paragraph
    if GAP in paragraph or HOLE in paragraph:
        paragraph = " ".join(_close_gaps(paragraph).split())
    for pattern, replacement in _REPAIRS:
        paragraph = pattern.sub(replacement, paragraph)
    return " ".join(paragraph.split())


def _close_gaps(paragraph):
    for _ in range(_DEPTH):
        without = _PARENTHESIS.sub(_parenthesis_text, paragraph)
        if without == paragraph:
            break
        paragraph = without
    if paragraph.startswith((GAP, " ")) and (start := _START.match(paragraph)):
        # Before a small letter the sentence has lost its beginning.
        if not paragraph[start.end() : start.end() + 1].islower():
            paragraph = paragraph[start.end() :]
    paragraph = _AFTER_SENTENCE.sub(_after_sentence, paragraph)
    paragraph = _NOTE.sub("", paragraph)
    return paragraph.replace(GAP, HOLE)


def _after_sentence(found):
    after = found.string[found.end() : found.end() + 2]
    return found[0] if after.lstrip()[:1].islower() else ""


def _parenthesis_text(found):
    """Nothing for one with a part lost.

    It stays, and the hole with it, where it is an argument, as in f(x), or the first
    letter of a word, as in "(F)undamental".
    """
    text = found[0]
    if GAP not in text and HOLE not in text:
        return text
    after = found.string[found.end() : found.end() + 1]
    if after.islower():
        return text
    before = found.string[found.start() - 1 : found.start()]
    return "" if not before or _BEFORE_PARENTHESIS.match(before) else text
