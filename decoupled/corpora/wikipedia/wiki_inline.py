"""Wikitext within lines -> text: links, emphasis, tags, and other markup.

Plain links, emphasis and formatting tags are most of the markup in running text.
Regular expressions replace them in the whole article at once. mwparserfromhell parses
the lines that still have other markup.
"""

import collections
import re
from collections.abc import Iterable, Iterator

import mwparserfromhell
from mwparserfromhell import nodes

from decoupled.corpora.text_lines import is_small, unescape
from decoupled.corpora.wikipedia import wiki_templates
from decoupled.corpora.wikipedia.wiki_templates import GAP, HOLE

TOO_MUCH = "lines with too much markup"
UNPARSED = "lines that cannot be parsed"
# Marks of a line times its characters: mwparserfromhell's time grows with this number
# where marks are not closed, by 0.1 s for the first limit. Lines of English Wikipedia
# have up to 14,000.
_MAX_LINE_WORK = 300_000
_MAX_PAGE_WORK = 6_000_000

_SIMPLE_LINK = re.compile(r"\[\[(?:[^\[\]|:\n]*\|)?([^\[\]|:#\n]+)\]\]")
_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_LINK_DEPTH = 4

_EMPHASIS = re.compile("('{2,})")
_ARTICLE = re.compile(r"[^\W\d_]{1,4}")
# The part of a title that MediaWiki leaves out if a link's label is empty.
_BEHIND_TITLE = re.compile(r"\s*(?:[(（][^()（）]*[)）]|,.*)\s*\Z")
# A picture with one of these options is beside the text, not within it. A picture of an
# initial, without a frame, may still be to the left of its word.
_FRAMED = frozenset("thumb thumbnail frame framed".split())
_BESIDE = _FRAMED | frozenset("frameless left right center".split())

_FORMATTING = re.compile(
    r"</?(?:small|big|span|div|center|u|s|b|i|em|strong|font|abbr|cite|q|bdi|bdo|del|ins"
    r"|strike|tt|var|kbd|samp|dfn|mark|blockquote|noinclude|onlyinclude|includeonly|p|nobr"
    r"|section|time|data|rp|rb|ruby|languages|translate|tvar|wbr|hr|ol|ul|li|dl|dd|dt|h\d)"
    r"\b[^<>]*>",
    re.IGNORECASE,
)
_BREAK = re.compile(r"</?br\b[^<>]*>|</?(?:p|li|div|blockquote|dd|h\d)\s*>", re.I)
# An initial before its word, or the mark that replaces it. (Only a few nested tags are
# matched, so that the time does not grow with the square of their number.)
_INITIAL = re.compile(
    r"<(?:div|p|center|blockquote|li|dd|h\d)\b[^<>]*>\s*(?:<\w+\b[^<>]*>\s*){0,4}"
    rf"([^\W\d_]|[{HOLE}{GAP}])\s*(?:</\w+\s*>\s*){{1,5}}"
    r"(?=(?:<\w+\b[^<>]*>){0,4}([^\W\d_]))",
    re.IGNORECASE,
)
_RAISED = re.compile(r"<(sub|sup)\b[^<>]*>([^<>\n]{0,40})</\1\s*>", re.IGNORECASE)
# Nested, unclosed, or with a long text.
_UNREAD_RAISED = re.compile(r"</?su[bp]\b[^<>]*>", re.IGNORECASE)
# A power, "2<sup>k</sup>"; but ordinals are "2<sup>e</sup>" and "n<sup>o</sup>".
_BEFORE_POWER = re.compile(r"[\d)]|(?<![^\W\d_])[^\W\d_]")
_BEFORE_ORDINAL = re.compile(r"[\dIVXNnM]")
_RUBY_TEXT = re.compile(r"<(rt|rp)\b[^<>]*>[^<>\n]*</\1\s*>", re.IGNORECASE)
_SUPERSCRIPT = str.maketrans("0123456789+-−–=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻⁼⁽⁾ⁿ")
_SUBSCRIPT = str.maketrans("0123456789+-−–=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₋₌₍₎")
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")
_MAGIC_WORD = re.compile(r"__[^\W\d_]{2,}(?:_[^\W\d_]+)*__")

_MARKUP = re.compile(r"[\[\]<{}]")
# Marks without their counterparts. (Marks with a bar are kept: the text that they show
# is unknown.)
_STRAY = re.compile(r"\[\[|\]\]|\{\{|\}\}|</?[a-z]+ ?/?>", re.IGNORECASE)


def plain_links_and_tags(text: str) -> str:
    """Text without links, emphasis and formatting tags, as far as they are simple."""
    text = _SIMPLE_LINK.sub(r"\1", text)
    for _ in range(_LINK_DEPTH):
        if "[[" not in text:
            break
        text, count = _LINK.subn(_link_or_initial, text)
        if not count:
            break
    if "''" in text:
        text = _plain_emphasis(text)
    if "<" in text:
        text = _RUBY_TEXT.sub("", text)
        text = _INITIAL.sub(_joined_initial, text)
        text = _BREAK.sub("\n", text)
        text = _FORMATTING.sub("", text)
        text = _RAISED.sub(_raised_text, text)
        text = _UNREAD_RAISED.sub(HOLE, text)
    if "-{" in text:
        text = _VARIANTS.sub(
            lambda variants: _first_variant(variants[1]) or _nothing(variants), text
        )
    if "__" in text:
        text = _MAGIC_WORD.sub(
            lambda word: "" if word[0].upper() == word[0] else word[0], text
        )
    return text


def plain_lines(lines: Iterable[str], dropped: collections.Counter) -> Iterator[str]:
    """Yields the lines of a page without any markup.

    A line that cannot be parsed, or has so much markup that this could take long, is
    left out and counted. mwparserfromhell fails on markup that is nested too deeply.
    Its time grows with the square of the number of marks if they are not closed.
    """
    remaining_work = _MAX_PAGE_WORK
    for line in lines:
        if not _MARKUP.search(line) and "://" not in line:
            yield unescape(line) if "&" in line else line
            continue
        marks = sum(map(line.count, ("<", "[", "{", "://")))
        work = marks * len(line)
        if work > min(remaining_work, _MAX_LINE_WORK):
            dropped[TOO_MUCH] += 1
            continue
        remaining_work -= work
        try:
            text = _nodes_text(mwparserfromhell.parse(line, skip_style_tags=True))
        except (mwparserfromhell.parser.ParserError, RecursionError):
            dropped[UNPARSED] += 1
            continue
        yield _STRAY.sub("", text) if "|" not in text else text


def _nodes_text(code):
    return "".join(map(_node_text, code.nodes))


def _node_text(node):
    if isinstance(node, nodes.Text):
        return node.value
    if isinstance(node, nodes.Wikilink):
        return _link_text(
            str(node.title)
            + ("" if node.text is None else "|" + _nodes_text(node.text))
        )
    if isinstance(node, nodes.HTMLEntity):
        return _entity_text(node)
    if isinstance(node, nodes.ExternalLink):
        if node.brackets:
            return _nodes_text(node.title) if node.title is not None else ""
        return HOLE
    if isinstance(node, nodes.Tag):
        return _tag_text(node)
    if isinstance(node, nodes.Comment):
        return ""
    return HOLE


def _tag_text(tag):
    name = str(tag.tag).strip().lower()
    if name in ("ref", "references", "gallery"):
        return ""
    if tag.contents is None or name in ("table", "math", "code", "td", "tr", "th"):
        return HOLE
    return _nodes_text(tag.contents)


def _entity_text(entity):
    try:
        return entity.normalize()
    except (ValueError, OverflowError):
        return ""


def _link_or_initial(link):
    """The text of a link; for a picture of an initial, its letter or a `HOLE`.

    `[[File:Initial F.png|20px|alt=F]]undamental`
    """
    text = _link_text(link[1])
    if text:
        return text
    target, *options = (option.strip() for option in link[1].split("|"))
    if not _is_file(target):
        return _nothing(link)
    if wiki_templates.starts_line(link.string, link.start()):
        beside_options = _FRAMED
        begins_word = wiki_templates.is_before_small(link.string, link.end(), True)
    else:
        beside_options = _BESIDE
        begins_word = is_small(link.string[link.end() : link.end() + 1])
    if not begins_word or beside_options.intersection(options):
        return ""
    letters = [option.removeprefix("alt=").strip() for option in options]
    return next((x for x in letters if len(x) == 1 and x.isalpha()), HOLE)


def _nothing(match):
    return wiki_templates.nothing(match.string, *match.span())


def _joined_initial(match):
    return match[1] if is_small(match[2]) else match[0]


def _is_file(target):
    prefix, colon, _ = target.partition(":")
    return (
        bool(colon)
        and wiki_templates.normal_form(prefix) in wiki_templates.FILE_NAMESPACES
    )


def _link_text(content):
    target, bar, text = content.partition("|")
    target = target.strip()
    prefix, colon, page = target.partition(":")
    if colon and prefix:
        if wiki_templates.is_beside_text(prefix):
            return ""
        name = wiki_templates.normal_form(prefix)
        if name in wiki_templates.SISTER_PROJECTS:
            target = page
        elif prefix == name and wiki_templates.LANGUAGE_PREFIX.fullmatch(prefix):
            return ""
    if bar and text.strip():
        return text.rpartition("|")[2] if "|" in text else text
    target = target.lstrip(":#")
    return _BEHIND_TITLE.sub("", target) if bar else target


def _plain_emphasis(text):
    return "\n".join(
        _without_emphasis(line) if "''" in line else line for line in text.split("\n")
    )


def _without_emphasis(line):
    """A line without the marks of bold and italics, which end with the line.

    Three apostrophes after a letter close open bold text. Otherwise, if two apostrophes
    follow later, they are an apostrophe and the beginning of italics: "l'''Odyssée''".
    If else both bold and italics stayed open, they end open italics: "''Titanic'''s".
    """
    parts = _EMPHASIS.split(line)
    counts = [len(mark) for mark in parts[1::2]]
    # If both bold and italics stay open, MediaWiki also looks for an apostrophe.
    italics = sum(n not in (3, 4) for n in counts)
    bolds = sum(n != 2 for n in counts)
    unbalanced = italics % 2 == bolds % 2 == 1
    bold = italic = False
    for index, count in enumerate(counts):
        text = parts[2 * index]
        apostrophe = count in (4, 6)
        if count == 3:
            if bold:
                is_before_word = parts[2 * index + 2][:1].isalpha()
                is_article = is_before_word and _ARTICLE.fullmatch(text)
                apostrophe = bool(unbalanced and is_article)
            elif italic and unbalanced:
                apostrophe = not text[-1:].isspace()
            else:
                follow = counts[index + 1 : index + 2]
                apostrophe = text[-1:].isalpha() and follow == [2]
            if apostrophe:
                count = 2
                unbalanced = not unbalanced
        bold ^= count != 2
        italic ^= count not in (3, 4)
        parts[2 * index + 1] = "'" if apostrophe else ""
    return "".join(parts)


def _raised_text(match):
    text = match[2].strip()
    if not text or text[0] == "[":
        return _nothing(match)  # a note such as [1]
    if text.isalpha() and text != "n":
        # 1st, CO as a name's index
        return HOLE if match[1].lower() == "sup" and _is_power(match, text) else text
    signs = text.translate(_SUPERSCRIPT if match[1].lower() == "sup" else _SUBSCRIPT)
    has_ascii = any(sign.isascii() and not sign.isspace() for sign in signs)
    return HOLE if has_ascii else signs


def _is_power(match, letter):
    if len(letter) > 1 or not match.start():
        return False
    index = match.start() - 1
    if letter in "aeo" and _BEFORE_ORDINAL.match(match.string, index):
        return False
    return _BEFORE_POWER.match(match.string, index) is not None


def _first_variant(content):
    """The first of several spellings in Chinese: `-{zh-hans:软;zh-hant:軟}-`."""
    flags, bar, rules = content.rpartition("|")
    if bar and not {"A", "R"} & set(flags.replace(" ", "").split(";")):
        if re.fullmatch(r"[HT\-D; ]*", flags):
            return ""
    rule = rules.split(";")[0]
    language, colon, text = rule.partition(":")
    return text.strip() if colon and re.fullmatch(r"\s*[a-z-]+\s*", language) else rule
