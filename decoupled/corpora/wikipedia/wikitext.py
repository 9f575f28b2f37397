"""Wikitext -> readable paragraphs.

It removes, in this order: what spans lines (`wiki_blocks`); sections of references and
links; markup within lines (`wiki_inline`); remains of lists and tables. At the end
`text_repairs` mends sentences around removed markup.
"""

import collections
import re

from decoupled.corpora.wikipedia import (
    text_repairs,
    wiki_blocks,
    wiki_inline,
    wiki_names,
)
from decoupled.corpora.wikipedia.wiki_templates import GAP, HOLE

# Version of the rules that make text from wikitext: part of a corpus's fingerprint.
# Count up with every change that changes text.
RULES = 3

END_SECTIONS = "sections of references, links or works"
LIST_ITEMS = "list items that are no sentences"
LABELS = "short lines that are no sentences"
TABLE_LINES = "lines of tables"

_HEADING = re.compile(r"\n(=[^\n]*=)[ \t]*(?=\n)")
# Marks of direction, soft hyphens, control characters. The joiners U+200C and U+200D
# stay: Persian and Indic scripts spell with them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f\xad\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
_LIST_MARKS = re.compile(r"[*#:;\s]+")
_NO_PARAGRAPH = "*#:; |!{"
# What is longer and has no full stop is still a paragraph, if an incomplete one.
_MAX_LABEL = 60
_MIN_ITEM = 20
_LETTER = re.compile(r"[^\W\d_]")
_FINAL = ".!?…。！？．؟۔।॥։။።"
_CLOSING = "\"'”’»›)）]」』】》 "
# Scripts whose sentences end with a space, or with nothing.
_NO_FINAL = re.compile("[\u0e00-\u0eff]")
_CITED = re.compile(r"(?:ISBN|ISSN|OCLC|DOI|doi|JSTOR|PMID|arXiv|Bibcode)\b")
_WIDE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")


def article_paragraphs(wikitext: str, dropped: collections.Counter) -> list[str]:
    """The readable paragraphs of an article, without markup, each in one line.

    Args:
      wikitext: of any wiki; broken markup costs its surroundings only.
      dropped: counts what was left out, by reason.

    Returns:
      Paragraphs. Where a formula or a template stood within a sentence they hold `HOLE`
      (U+FFFC); `sentences.clean_sentences` leaves those sentences out.
    """
    text = f"\n{wikitext}\n".replace("\r", "")
    if HOLE in text or GAP in text:
        text = text.replace(HOLE, "").replace(GAP, "")
    text = wiki_blocks.remove_blocks(text, dropped)
    text = _without_end_sections(text, dropped)
    text = wiki_inline.plain_links_and_tags(text)
    text = _INVISIBLE.sub("", text)
    paragraphs = []
    for line in _joined_lines(text, dropped):
        line = _INVISIBLE.sub("", wiki_inline.plain_line(line, dropped))
        paragraph = text_repairs.mend(line)
        if not _LETTER.search(paragraph):
            continue
        if len(paragraph) <= _MAX_LABEL and not _has_end(paragraph):
            dropped[LABELS] += 1
        else:
            paragraphs.append(paragraph)
    return paragraphs


def _without_end_sections(text, dropped):
    """Without headings, and without sections of sources and links and their parts."""
    kept = []
    position = 0
    dropped_level = 7
    for heading in _HEADING.finditer(text):
        if dropped_level > 6:
            kept.append(text[position : heading.start()])
        position = heading.end()
        title = heading[1].lstrip("=")
        level = min(6, len(heading[1]) - len(title))
        if level <= dropped_level:
            ends = wiki_names.is_end_section(_heading_text(title.rstrip("=")))
            dropped_level = level if ends else 7
            dropped[END_SECTIONS] += ends
    if dropped_level > 6:
        kept.append(text[position:])
    return "\n\n".join(kept)


def _heading_text(heading):
    return wiki_inline.plain_links_and_tags(heading).replace(HOLE, "").replace(GAP, "")


def _joined_lines(text, dropped):
    """Yields paragraphs in one line each; list items only where they are sentences."""
    open_lines = []
    for line in text.split("\n"):
        first = line[:1]
        # Also an empty line ends a paragraph: "" is in every text.
        if first in _NO_PARAGRAPH or line.isspace() or line.startswith("----"):
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
    """The text of a list item, an indented or a preformatted line, or ""."""
    if line[0] in "|!{":
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
    if _CITED.search(text):
        return False
    return len(text) > _MAX_LABEL if _NO_FINAL.search(text) else _has_end(text)


def _has_end(text):
    return text.rstrip(_CLOSING)[-1:] in _FINAL or _NO_FINAL.search(text) is not None
