"""MediaWiki XML dumps -> articles, one at a time.

Reads `*-pages-articles*.xml.bz2` and what is like it, local or remote. An article is
the last revision of a page of the main namespace that is neither a redirect nor a
disambiguation page. mwxml parses the XML; `dump_pages` gives it one page after another,
so that it sees only pages that may be articles and its tree does not grow.
"""

import collections
import html
import re
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from typing import NamedTuple

import mwxml
from mwxml.element_iterator import ElementIterator
from mwxml.errors import MalformedXML

from decoupled.corpora import wiki_names
from decoupled.corpora.dump_pages import (
    MAX_PAGE_BYTES,
    NotADump,
    PageCutter,
    RawPage,
)
from decoupled.corpora.dump_stream import Damaged, xml_pieces
from decoupled.errors import UserError

OTHER_NAMESPACES = "pages outside namespace 0"
REDIRECTS = "redirects"
DISAMBIGUATION = "disambiguation pages"
NO_TEXT = "pages without text"
NO_WIKITEXT = "pages that are not wikitext"
TOO_LARGE = f"pages above {MAX_PAGE_BYTES >> 20} MiB"

# What mwxml needs around pages where a dump has no <siteinfo>.
_HEAD = b"<mediawiki><siteinfo></siteinfo>"
_END = b"</mediawiki>"
# Both stand before a page's first revision.
_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_REVISION = re.compile(rb"<revision[\s>]")
# "#REDIRECT [[...]]" in the wiki's own language.
_REDIRECT = re.compile(r"\s*[#＃]\s*[^\W\d_][^\[\]#*\n]{2,30}\[\[[^\[\]\n]+\]\]")


class Article(NamedTuple):
    """A page of the main namespace: its title, its number in the wiki, its wikitext.

    Names of the namespaces of files and categories are English in the wikitext's links,
    whatever the dump calls them.
    """

    title: str
    page_id: int
    wikitext: str


def read_articles(
    path: str, dropped: collections.Counter, part: int = 0, parts: int = 1
) -> Iterator[Article]:
    """Yields the articles of a dump; memory holds one page and at most 64 MiB of XML.

    Args:
      path: local or remote; `.xml`, `.xml.bz2` or `.xml.gz`, in any encoding that the
        file's byte order mark or XML declaration names.
      dropped: counts the pages that are no articles, by reason.
      part, parts: every `parts`-th page, from page `part` on, is yielded or counted;
        the other pages are skipped without parsing. All parts together are the dump.

    Raises:
      UserError: the file is missing, empty, truncated, damaged, or no MediaWiki export;
        where, and which page was the last complete one. Articles before were yielded.
    """
    cutter = None
    try:
        cutter = PageCutter(xml_pieces(path))
        reader = _Reader(cutter, dropped, part, parts)
        yield from reader.articles()
        if cutter.last is None:
            raise NotADump("holds no page")
    except (Damaged, NotADump) as error:
        raise UserError(f"{path}: {error}{_progress(cutter)}") from error
    except (
        xml.etree.ElementTree.ParseError,
        MalformedXML,
        # mwxml on values that are no numbers, or missing.
        AttributeError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(
            f"{path}: cannot read the XML of page {_name(cutter)} ({error})"
        ) from error


def _progress(cutter):
    if cutter is None or cutter.last is None:
        return ""
    return f"; the last complete page is {_name(cutter)}; download the file again"


def _name(cutter):
    if cutter is None or cutter.last is None:
        return "0 (the head of the dump)"
    page = cutter.last
    title = html.unescape(page.title())
    return f"{page.number} ({title!r}, byte {page.offset} of the XML)"


class _Reader:
    """Chosen pages as one XML file, which mwxml reads; and what mwxml makes of them."""

    def __init__(self, cutter: PageCutter, dropped, part: int, parts: int):
        self._pages = cutter.pages()
        self._head = cutter.head
        self._dropped = dropped
        self._part = part
        self._parts = parts
        self._error = None
        self._ended = False

    def read(self, size: int) -> bytes:
        """The next page, whatever its size; for `xml.etree.ElementTree.iterparse`.

        The XML also ends well where the dump does not: mwxml then gets to the last
        complete page before `articles` raises.
        """
        if self._head is not None:
            head, self._head = self._head, None
            return head if b"<siteinfo" in head else _HEAD
        try:
            for page in self._pages:
                if self._is_chosen(page):
                    return page.content
        except (Damaged, NotADump) as error:
            self._error = error
        end = b"" if self._ended else _END
        self._ended = True
        return end

    def articles(self) -> Iterator[Article]:
        """Yields the articles, then raises what ended the reading too soon."""
        root = ElementIterator.from_file(self)
        dump = mwxml.Dump.from_element(root)
        to_english = _namespaces_to_english(dump.site_info)
        for page in dump.pages:
            text = self._wikitext(page)
            if text is not None:
                yield Article(page.title, page.id, to_english(text))
            # Else the tree keeps an empty element for each page.
            del root.element[:]
        if self._error:
            raise self._error

    def _is_chosen(self, page: RawPage) -> bool:
        if (page.number - 1) % self._parts != self._part:
            return False
        if page.content is None:
            self._dropped[TOO_LARGE] += 1
            return False
        revision = _REVISION.search(page.content)
        start = page.content[: revision.start()] if revision else page.content
        namespace = _NAMESPACE.search(start)
        if namespace and namespace[1] != b"0":
            self._dropped[OTHER_NAMESPACES] += 1
        elif b"<redirect" in start:
            self._dropped[REDIRECTS] += 1
        else:
            return True
        return False

    def _wikitext(self, page) -> str | None:
        """The text of the last revision; None, and counted, where it is no article."""
        revision = collections.deque(page, maxlen=1)
        text = revision[0].text if revision else None
        model = revision[0].model if revision else None
        if page.namespace != 0:
            reason = OTHER_NAMESPACES
        elif page.redirect is not None:
            reason = REDIRECTS
        elif not text or not text.strip():
            reason = NO_TEXT
        elif model not in (None, "wikitext"):
            reason = NO_WIKITEXT
        elif _REDIRECT.match(text):
            reason = REDIRECTS
        elif wiki_names.is_disambiguation(page.title, text):
            reason = DISAMBIGUATION
        else:
            return text
        self._dropped[reason] += 1
        return None


def _namespaces_to_english(site_info) -> Callable[[str], str]:
    """What replaces a wiki's names of namespaces in links: `[[Datei:` -> `[[File:`."""
    english = {6: "File", 14: "Category", -2: "Media"}
    names = {
        namespace.name.casefold(): english[namespace.id]
        for namespace in site_info.namespaces or ()
        if namespace.id in english and namespace.name != english[namespace.id]
    }
    if not names:
        return lambda text: text
    pattern = re.compile(
        rf"\[\[[ _]*({'|'.join(map(re.escape, names))})[ _]*:", re.IGNORECASE
    )
    return lambda text: pattern.sub(
        lambda link: f"[[{names.get(link[1].casefold(), link[1])}:", text
    )
