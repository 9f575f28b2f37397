"""Removes markup that spans lines: comments, tags with content, templates, tables.

Each kind takes one pass over the text. The time grows linearly with the length of the
text, even if markup is not closed. A parser that builds a tree is many times slower on
infoboxes, tables and references, all of which are removed anyway.
"""

import bisect
import collections
import re

from decoupled.corpora.wikipedia import wiki_templates
from decoupled.corpora.wikipedia.wiki_templates import APOSTROPHE, HOLE

UNCLOSED = "unclosed markup"
TABLES = "tables"

# The content of these tags is no prose.
_BLOCK_TAGS = (
    "ref|references|gallery|syntaxhighlight|source|pre|timeline|score|imagemap|graph"
    "|mapframe|templatedata|templatestyles|poem|includeonly|indicator|inputbox|categorytree"
    "|table|style|script|chart"
)
# These tags are parts of a sentence, which is incomplete without them.
_INLINE_TAGS = "math|chem|ce|code|hiero|maplink"
_TAG = re.compile(
    rf"<!--|<({_BLOCK_TAGS}|{_INLINE_TAGS}|nowiki)\b([^<>]*)>", re.IGNORECASE
)
_INLINE = frozenset(_INLINE_TAGS.split("|"))
# An attribute of syntaxhighlight that makes it a part of a sentence.
_INLINE_ATTRIBUTE = re.compile(
    r"\s(?:inline(?=[\s=/]|$)|enclose\s*=\s*[\"']?none)", re.IGNORECASE
)
_COMMENT = "--"
_CLOSING = {
    name: re.compile(rf"</{name}\s*>", re.IGNORECASE)
    for name in f"{_BLOCK_TAGS}|{_INLINE_TAGS}|nowiki".split("|")
} | {_COMMENT: re.compile("-->")}
_OPEN_REF = re.compile(r"<ref\b[^<>/]*>", re.IGNORECASE)
_NOWIKI_MARKUP = re.compile(r"[\[\]{}<>|=*#]|''")

# Each alternative starts with a literal character: the search skips all others fast.
_BRACES = re.compile(r"\{\{+|\{\|(?!\})|\}\}+|\n[ \t]*\|\}(?!\}(?!\}))")
_STARTS_LINE = re.compile(r"(?:\A|\n)[ \t:*#;]*\Z")
_HEADING = re.compile(r"\n==[^=\n][^\n]*==[ \t]*(?=\n)")
_ENDS_TABLE = re.compile(
    r"\{\{\s*(?:end|s-end|fin|koniec|end table|table end)\s*\}\}", re.I
)


def remove_blocks(wikitext: str, dropped: collections.Counter) -> str:
    """Wikitext with `HOLE` or `wiki_templates.GAP` for tags, templates and tables."""
    text = _remove_tags(wikitext, dropped)
    return _remove_braces(text, dropped) if "{" in text else text


def _remove_tags(text, dropped):
    if "<" not in text:
        return text
    closings = _Closings(text)
    parts = []
    position = 0
    for opening in _TAG.finditer(text):
        start = opening.start()
        if start < position:
            continue
        parts.append(text[position:start])
        name = (opening[1] or _COMMENT).lower()
        if name != _COMMENT and opening[2].endswith("/"):
            content_end = position = opening.end()
        else:
            content_end, position = closings.span_after(opening.end(), name)
        if position is None:
            dropped[UNCLOSED] += 1
            # An unclosed comment hides the rest of the page; an unclosed tag is removed
            # with the rest of its line.
            position = -1 if name == _COMMENT else text.find("\n", start)
            position = len(text) if position < 0 else position
        elif name == _COMMENT and text[start - 1] == text[position : position + 1]:
            # The line break is removed as well if the line holds only a comment.
            position += text[position] == "\n"
        elif name in _INLINE or _INLINE_ATTRIBUTE.search(opening[2] or ""):
            parts.append(HOLE)
        elif name == "nowiki":
            content = text[opening.end() : content_end]
            is_markup = _NOWIKI_MARKUP.search(content)
            parts.append(HOLE if is_markup else content.replace("'", APOSTROPHE))
        elif name != _COMMENT and content_end < position:
            parts.append(wiki_templates.nothing(text, start, position))
    parts.append(text[position:])
    return "".join(parts)


class _Closings:
    """Finds closing tags; each part of the text is searched once for each name."""

    def __init__(self, text: str):
        self._text = text
        self._spans = {}  # name -> (start, end) of its last closing tag, or None

    def span_after(self, start: int, name: str) -> tuple[int | None, int | None]:
        """Start and end of the closing tag for content that starts at `start`."""
        span = self._spans.get(name, (-1, -1))
        if span and span[0] < start:
            closing = _CLOSING[name].search(self._text, start)
            span = self._spans[name] = closing and closing.span()
        if not span:
            return None, None
        # A <ref> cannot hold another <ref>, so the first one was not closed.
        if name == "ref" and _OPEN_REF.search(self._text, start, span[0]):
            return None, None
        return span


def _remove_braces(text, dropped):
    parts = []
    position = 0
    for start, end, is_table in _outermost(_brace_spans(text, dropped)):
        if start < position:
            continue
        parts.append(text[position:start])
        is_template = is_table is False
        content = wiki_templates.replacement(text[start:end]) if is_template else ""
        next_line = not is_template
        parts.append(content or wiki_templates.nothing(text, start, end, next_line))
        dropped[TABLES] += is_table is True
        position = end
    parts.append(text[position:])
    return "".join(parts)


def _outermost(spans):
    end = 0
    for span in sorted(spans, key=lambda span: (span[0], -span[1])):
        if span[0] >= end:
            end = span[1]
            yield span


def _brace_spans(text, dropped):
    """(start, end, kind); kind: True a table, False a template, None unclosed."""
    spans = []
    stack = []  # of [start, number of braces, or 0 for a table]
    tables = 0
    headings = [heading.start() for heading in _HEADING.finditer(text)]
    for token in _BRACES.finditer(text):
        marks = token[0]
        if marks == "{|":
            if _STARTS_LINE.search(text, max(0, token.start() - 20), token.start()):
                stack.append([token.start(), 0])
                tables += 1
        elif marks[0] == "{":
            stack.append([token.start(), len(marks)])
        elif marks[0] == "}":
            tables -= _close_templates(text, stack, token, spans, headings)
        elif tables:
            tables -= _close_table(stack, token.end(), spans)
    if stack:
        dropped[UNCLOSED] += len(stack)
        spans += _unclosed_spans(text, stack, headings)
    return spans


def _close_templates(text, stack, token, spans, headings):
    """Closes templates; returns the number of tables that they close with them."""
    position, count = token.start(), len(token[0])
    while count >= 2 and stack and stack[-1][1]:
        opening = stack[-1]
        matched_count = min(count, opening[1])
        opening[1] -= matched_count
        start = opening[0] + opening[1]
        position += matched_count
        count -= matched_count
        if opening[1] < 2:
            stack.pop()
        heading = _next_position(headings, start)
        if heading is not None and heading < position:
            # Templates hold no sections. So this template was never closed, and these
            # braces close nothing.
            end = text.find("\n", start)
            spans.append((start, position if end < 0 else end, None))
            continue
        spans.append((start, position, False))
        if stack and not stack[-1][1] and _ENDS_TABLE.fullmatch(text, start, position):
            spans.append((stack.pop()[0], position, True))
            return 1
    return 0


def _close_table(stack, end, spans):
    """Closes the innermost table and forgets templates that it leaves open."""
    while stack:
        start, braces = stack.pop()
        if not braces:
            spans.append((start, end, True))
            return 1
    return 0


def _unclosed_spans(text, stack, headings):
    """An unclosed template ends with its line, an unclosed table at a heading."""
    covered_end = 0
    for start, braces in stack:
        if start < covered_end:
            continue
        end = text.find("\n", start) if braces else _next_position(headings, start)
        covered_end = len(text) if end is None or end < 0 else end
        yield start, covered_end, None


def _next_position(positions, start):
    index = bisect.bisect_left(positions, start)
    return positions[index] if index < len(positions) else None
