"""Wikitext -> readable paragraphs.

It removes, in this order: markup that spans lines (`wiki_blocks`), sections of
references and links, markup within lines (`wiki_inline`), and remains of lists and
tables. Then it repairs the sentences around removed markup: parentheses, punctuation,
spaces.
"""

import collections
import re
import unicodedata

from decoupled.corpora.text_lines import SENTENCE_ENDS, is_small
from decoupled.corpora.wikipedia import wiki_blocks, wiki_inline, wiki_templates
from decoupled.corpora.wikipedia.wiki_templates import GAP, HOLE

# Version of the rules that make text from wikitext, a part of a corpus's fingerprint.
# Add 1 with every change that changes text.
RULES = 13

END_SECTIONS = "sections of references, links or works"
LIST_ITEMS = "list items that are no sentences"
LABELS = "short lines that are no sentences"
TABLE_LINES = "lines of tables"

_HEADING = re.compile(r"\n(=[^\n]*=)[ \t]*(?=\n)")
# Direction marks, soft hyphens, control characters. The joiners U+200C and U+200D are
# kept, because the spelling of Persian and Indic scripts needs them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f\xad\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
_LIST_MARKS = re.compile(r"[*#:;\s]*")
# A click, as in "!Kung", and no heading of a table, with attributes or several cells.
_CLICK = re.compile(r"![^\W\d_](?!.*(?:!!|\||[a-z]\s*=))", re.IGNORECASE)
_NO_PARAGRAPH = "*#:; |!{"
# A longer line without a full stop is an incomplete paragraph, not a label.
_MAX_LABEL = 60
_MIN_ITEM = 20
_LETTER = re.compile(r"[^\W\d_]")
_CLOSING = "\"'”’»›)）]」』】》 "
# Scripts whose sentences end with a space or without any mark.
_UNMARKED_SCRIPT = re.compile("[\u0e00-\u0eff]")
_CITATION = re.compile(r"(?:ISBN|ISSN|OCLC|DOI|doi|JSTOR|PMID|arXiv|Bibcode)\b")
_WIDE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")


def article_paragraphs(wikitext: str, dropped: collections.Counter) -> list[str]:
    """The readable paragraphs of an article, without markup, each in one line.

    `HOLE` (U+FFFC) replaces a formula or a template within a sentence, and
    `sentences.clean_sentences` leaves such sentences out. Broken markup damages only
    the text around it. `dropped` counts what was left out, by reason.
    """
    text = f"\n{wikitext}\n".replace("\r", "")
    if HOLE in text or GAP in text:
        text = text.replace(HOLE, "").replace(GAP, "")
    text = wiki_blocks.remove_blocks(text, dropped)
    text = _without_end_sections(text, dropped)
    text = wiki_inline.plain_links_and_tags(text)
    text = _INVISIBLE.sub("", text)
    paragraphs = []
    for line in wiki_inline.plain_lines(_joined_lines(text, dropped), dropped):
        paragraph = mend(_INVISIBLE.sub("", line))
        if not _LETTER.search(paragraph):
            continue
        if len(paragraph) <= _MAX_LABEL and not _has_end(paragraph):
            dropped[LABELS] += 1
        else:
            paragraphs.append(paragraph)
    return paragraphs


def _without_end_sections(text, dropped):
    """Removes headings, and sections of sources and links with their subsections.

    A part that is named Literature, say, stays if it has prose.
    """
    parts = []
    position = 0
    dropped_level = 7
    for heading in _HEADING.finditer(text):
        if dropped_level > 6:
            parts.append(text[position : heading.start()])
        position = heading.end()
        title = heading[1].lstrip("=")
        level = min(6, len(heading[1]) - len(title))
        if level <= dropped_level:
            title = _heading_text(title.rstrip("="))
            is_end = wiki_templates.is_end_section(title) and not (
                level > 2
                and wiki_templates.is_ambiguous_section(title)
                and _has_prose(text, position, level)
            )
            dropped_level = level if is_end else 7
            dropped[END_SECTIONS] += is_end
    if dropped_level > 6:
        parts.append(text[position:])
    return "\n\n".join(parts)


def _has_prose(text, start, level):
    """Whether a line of the section from `start` on is a sentence and no list item."""
    next_section = re.compile(rf"\n={{1,{level}}}[^=]").search(text, start)
    section = text[start : next_section.start() if next_section else len(text)]
    return any(
        line[:1] not in f"{_NO_PARAGRAPH}=" and _is_sentence(line)
        for line in wiki_inline.plain_links_and_tags(section).split("\n")
    )


def _heading_text(heading):
    return wiki_inline.plain_links_and_tags(heading).replace(HOLE, "").replace(GAP, "")


def _joined_lines(text, dropped):
    """Yields paragraphs in one line each; list items only if they are sentences."""
    open_lines = []
    for line in text.split("\n"):
        mark = line[:1]
        # An empty line ends a paragraph too: "" is in every string.
        if mark in _NO_PARAGRAPH or line.isspace() or line.startswith("----"):
            if open_lines:
                yield " ".join(open_lines)
                open_lines = []
            if line and (item := _item(line, dropped)):
                yield item
        else:
            open_lines.append(line)
    if open_lines:
        yield " ".join(open_lines)


def _item(line, dropped):
    """The text of a list item, a line that is indented or begins with "!", or ""."""
    if line[0] in "|!{" and not _CLICK.match(line):
        dropped[TABLE_LINES] += 1
        return ""
    text = line[_LIST_MARKS.match(line).end() :] if line[0] != "-" else line.lstrip("-")
    if not text or text.isspace():
        return ""
    if _is_sentence(text):
        return text
    dropped[LIST_ITEMS] += 1
    return ""


def _is_sentence(text):
    if len(text) < _MIN_ITEM and len(text) + 2 * len(_WIDE.findall(text)) < _MIN_ITEM:
        return False
    if _CITATION.search(text):
        return False
    return len(text) > _MAX_LABEL if _UNMARKED_SCRIPT.search(text) else _has_end(text)


def _has_end(text):
    return (
        text.rstrip(_CLOSING)[-1:] in SENTENCE_ENDS
        or _UNMARKED_SCRIPT.search(text) is not None
    )


_OPEN = "(（"
_SEPARATORS = ",;،؛，；、"
_CLOSING_CLASS = r"\"'”’»›)）\]」』】》"
# Scripts without spaces between words. (Korean has them, but not before a parenthesis.)
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
)

# A character that can begin broken text, then the rest of it. (In this form, unlike a
# choice of beginnings, the search skips all other characters fast.)
_BROKEN = re.compile(
    rf"[{GAP}{HOLE} (（\[“\"«{_SEPARATORS}](?:(?<=[{GAP}{HOLE}])"
    rf"|(?<= )(?:[)）]|[,.،۔।](?:\s|$))"
    rf"|(?<=[(（\[])(?:[\s{_SEPARATORS}:\]]|\W{{0,3}}[)）])"
    rf"|(?<=[{_SEPARATORS}]) ?[{_SEPARATORS})）.。]"
    rf"|(?<=[“\"«]) ?[”\"»])"
)
_PARENTHESIS = re.compile(r"\([^()（）]*\)|（[^()（）]*）|\[[^\[\]]*\]")
_BEFORE_PARENTHESIS = re.compile(rf"[\s{_UNSPACED}\uac00-\ud7af{_CLOSING_CLASS}{GAP}]")
_DEPTH = 3
_START = re.compile(rf"[\s{GAP}]*{GAP}\s+")
_AFTER_SENTENCE = re.compile(
    rf"(?<=[{SENTENCE_ENDS}{_CLOSING_CLASS}]) ?{GAP}[ {GAP}]*(?= |$)"
)
# A gap directly after a word, but not within a word, may be a note.
_NOTE = re.compile(
    rf"(?<=[^\s{_OPEN}\[{HOLE}{GAP}]){GAP}+"
    rf"(?=[\s{_SEPARATORS}{SENTENCE_ENDS}{_CLOSING_CLASS}:–—]|$)"
    rf"(?<![\"“«„']{GAP}(?=[\"”»’']))"
)
_BEFORE_NOTE = f"{SENTENCE_ENDS}{_SEPARATORS}{_CLOSING}"
# What the next word follows without a space, so that the gap may be this word: scripts
# without spaces, French and Italian elisions, Hebrew and Arabic words of one letter.
_BEFORE_WORD = re.compile(
    rf"(?:[{_UNSPACED}，；、]|\b(?:[cdjlmnst]|\w*qu|\w*ll|un)['’]"
    r"|(?<!\w)[\u05d0-\u05ea\u0621-\u064a])\Z",
    re.IGNORECASE,
)
_LONGEST_ELISION = 12

# All white space is single spaces here. No pattern can read the same text again in
# another match; otherwise the time would grow with the square of a paragraph's length.
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
    """A paragraph in one line, repaired around removed markup.

    A parenthesis that lost a part is removed. An unknown template that looks like a
    note is removed, and the text around it is kept. Any other unknown template becomes
    a `HOLE`, because the sentence around it is incomplete.
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
        text = _PARENTHESIS.sub(_parenthesis_text, paragraph)
        if text == paragraph:
            break
        paragraph = text
    if paragraph.startswith((GAP, " ")) and (start := _START.match(paragraph)):
        # Before a lowercase letter the sentence has lost its beginning.
        if not is_small(paragraph[start.end() : start.end() + 1]):
            paragraph = paragraph[start.end() :]
    paragraph = _AFTER_SENTENCE.sub(_after_sentence, paragraph)
    paragraph = _NOTE.sub(_note_text, paragraph)
    return paragraph.replace(GAP, HOLE)


def _after_sentence(match):
    right = match.string[match.end() : match.end() + 2]
    return match[0] if is_small(right.lstrip()[:1]) else ""


def _note_text(match):
    """Empty after a letter, a digit or the end of a part; "$" or "–" needs a number."""
    before = match.string[max(0, match.start() - _LONGEST_ELISION) : match.start()]
    if _BEFORE_WORD.search(before):
        return match[0]
    left = before[-1]
    is_in_word = unicodedata.category(left)[0] in "LMN"
    return "" if is_in_word or left in _BEFORE_NOTE else match[0]


def _parenthesis_text(match):
    """Empty for a parenthesis that lost a part.

    Those of arguments, as in f(x), and first letters, "(F)undamental", keep a hole.
    """
    text = match[0]
    if GAP not in text and HOLE not in text:
        return text
    right = match.string[match.end() : match.end() + 1]
    if is_small(right):
        return text
    left = match.string[match.start() - 1 : match.start()]
    return "" if not left or _BEFORE_PARENTHESIS.match(left) else text
