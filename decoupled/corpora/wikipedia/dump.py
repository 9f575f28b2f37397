"""MediaWiki XML dumps -> articles, one at a time.

Reads `*-pages-articles*.xml.bz2` and similar files, local or remote. An article is the
last revision of a page of the main namespace that is neither a redirect nor a
disambiguation page. `dump_stream` unpacks the file. `dump_pages` cuts the XML into
pages and parses the pages that may be articles, one at a time.
"""

import collections
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from decoupled.core.errors import UserError
from decoupled.corpora.text_lines import unescape
from decoupled.corpora.unpacking import Damaged
from decoupled.corpora.wikipedia import wiki_names
from decoupled.corpora.wikipedia.dump_pages import (
    MAX_PAGE_BYTES,
    BadXml,
    NotADump,
    PageCutter,
    PageFields,
    RawPage,
    parse_namespaces,
    parse_page,
)
from decoupled.corpora.wikipedia.dump_stream import xml_chunks

OTHER_NAMESPACES = "pages outside namespace 0"
REDIRECTS = "redirects"
DISAMBIGUATION = "disambiguation pages"
NO_TEXT = "pages without text"
NO_WIKITEXT = "pages that are not wikitext"
TOO_LARGE = f"pages above {MAX_PAGE_BYTES >> 20} MiB"

# Both stand before a page's first revision.
_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_REVISION = re.compile(rb"<revision[\s>]")
# "#REDIRECT [[...]]" in the wiki's own language.
_REDIRECT = re.compile(r"\s*[#＃]\s*[^\W\d_][^\[\]#*\n]{2,30}\[\[[^\[\]\n]+\]\]")


class Article(NamedTuple):
    """A page of the main namespace: its title, its number in the wiki, its wikitext.

    The number is None if the dump has none. In the wikitext's links, the names of the
    namespaces of files and categories are replaced by the English names.
    """

    title: str
    page_id: int | None
    wikitext: str


def read_articles(
    path: str, dropped: collections.Counter, part: int = 0, parts: int = 1
) -> Iterator[Article]:
    """Yields the articles of a dump; memory holds one page and at most 64 MiB of XML.

    Args:
      path: local or remote, plain or compressed, in any encoding that the file's byte
        order mark or XML declaration names.
      dropped: counts the pages that are no articles, by reason.
      part, parts: every `parts`-th page, from page `part` on, is yielded or counted;
        the other pages are skipped without parsing. All parts together are the dump.

    Raises:
      UserError: the file is missing, empty, truncated, damaged, or no MediaWiki export.
        The message names the place and the last complete page. The articles before it
        were yielded.
    """
    cutter = None
    try:
        cutter = PageCutter(xml_chunks(path))
        namespaces = parse_namespaces(cutter.head)
        to_english = _namespaces_to_english(namespaces)
        for raw in itertools.islice(cutter.pages(), part, None, parts):
            if not _is_chosen(raw, dropped):
                continue
            page = parse_page(raw.content)
            number, title = _split_title(page, namespaces)
            if _is_article(page, number, title, dropped):
                yield Article(title, page.page_id, to_english(page.text))
        if cutter.last is None:
            raise NotADump("holds no page")
    except (Damaged, NotADump) as error:
        raise UserError(f"{path}: {error}{_progress(cutter)}") from error
    except BadXml as error:
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
    title = unescape(page.title())
    return f"{page.number} ({title!r}, byte {page.offset} of the XML)"


def _is_chosen(page: RawPage, dropped) -> bool:
    """False if a page can be left out without parsing it; the page is then counted."""
    if page.content is None:
        dropped[TOO_LARGE] += 1
        return False
    revision = _REVISION.search(page.content)
    start = page.content[: revision.start()] if revision else page.content
    namespace = _NAMESPACE.search(start)
    if namespace and namespace[1] != b"0":
        dropped[OTHER_NAMESPACES] += 1
    elif b"<redirect" in start:
        dropped[REDIRECTS] += 1
    else:
        return True
    return False


def _split_title(page: PageFields, namespaces: Mapping[str, int]) -> tuple[int, str]:
    """The number of a page's namespace, and its title without the namespace's name."""
    title = page.title.replace("_", " ")
    if page.namespace is not None:
        return page.namespace, title
    # Exports before version 0.6 have the namespace in the title alone.
    name, colon, rest = page.title.partition(":")
    if colon and name in namespaces and not rest.startswith(" "):
        return namespaces[name], rest.replace("_", " ")
    return 0, title


def _is_article(page: PageFields, namespace: int, title: str, dropped) -> bool:
    """False if a page is no article; the page is then counted."""
    if namespace != 0:
        reason = OTHER_NAMESPACES
    elif page.is_redirect:
        reason = REDIRECTS
    elif not page.text or not page.text.strip():
        reason = NO_TEXT
    elif page.model not in (None, "wikitext"):
        reason = NO_WIKITEXT
    elif _REDIRECT.match(page.text):
        reason = REDIRECTS
    elif wiki_names.is_disambiguation(title, page.text):
        reason = DISAMBIGUATION
    else:
        return True
    dropped[reason] += 1
    return False


def _namespaces_to_english(namespaces: Mapping[str, int]) -> Callable[[str], str]:
    """A function that makes names of namespaces English: `[[Datei:` -> `[[File:`."""
    english = {6: "File", 14: "Category", -2: "Media"}
    names = {
        name.casefold(): english[number]
        for name, number in namespaces.items()
        if number in english and name != english[number]
    }
    if not names:
        return lambda text: text
    pattern = re.compile(
        rf"\[\[[ _]*({'|'.join(map(re.escape, names))})[ _]*:", re.IGNORECASE
    )
    return lambda text: pattern.sub(
        lambda link: f"[[{names.get(link[1].casefold(), link[1])}:", text
    )
