"""Small MediaWiki exports for tests."""

import bz2
import gzip
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

ENGLISH = {-2: "Media", 0: "", 1: "Talk", 6: "File", 14: "Category"}
GERMAN = {-2: "Medium", 0: "", 1: "Diskussion", 6: "Datei", 14: "Kategorie"}


class Page(NamedTuple):
    """A page to write; `revisions` are wikitexts, the oldest first."""

    title: str
    revisions: list[str]
    namespace: int = 0
    redirect: str | None = None
    model: str = "wikitext"


def page(title: str, *revisions: str, **fields) -> Page:
    return Page(title, list(revisions), **fields)


def prose(index: int) -> str:
    return f"'''Article {index}''' is about the [[number]] {index}."


def dump_xml(
    pages: list[Page], namespaces: dict[int, str] | None = None, encoding: str = ""
) -> str:
    """An export of these pages; their ids are 10, 20, 30 ..."""
    declaration = f'<?xml version="1.0" encoding="{encoding}"?>\n' if encoding else ""
    names = "".join(
        f'<namespace key="{key}" case="first-letter">{name}</namespace>'
        for key, name in (namespaces or ENGLISH).items()
    )
    head = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" '
        'xml:lang="en">\n  <siteinfo><sitename>Test</sitename><dbname>testwiki</dbname>'
        f"<namespaces>{names}</namespaces></siteinfo>\n"
    )
    body = "".join(_page_xml(10 * n, each) for n, each in enumerate(pages, start=1))
    return f"{declaration}{head}{body}</mediawiki>\n"


def _page_xml(number, page):
    redirect = f"<redirect title={quoteattr(page.redirect)} />" if page.redirect else ""
    revisions = "".join(
        f"    <revision><id>{number + n}</id><timestamp>2024-01-01T00:00:0{n}Z"
        "</timestamp><contributor><username>A</username><id>1</id></contributor>"
        f"<comment>c</comment><origin>{number}</origin><model>{page.model}</model>"
        "<format>text/x-wiki</format>"
        f'<text bytes="{len(text)}" sha1="x" xml:space="preserve">{escape(text)}</text>'
        "<sha1>x</sha1></revision>\n"
        for n, text in enumerate(page.revisions)
    )
    return (
        f"  <page>\n    <title>{escape(page.title)}</title><ns>{page.namespace}</ns>"
        f"<id>{number}</id>{redirect}\n{revisions}  </page>\n"
    )


def write(path, content: str | bytes) -> str:
    """Writes XML as its name says, .bz2 or .gz; returns the path as a string."""
    if isinstance(content, str):
        content = content.encode("utf-8")
    if path.name.endswith(".bz2"):
        content = bz2.compress(content)
    elif path.name.endswith(".gz"):
        content = gzip.compress(content)
    path.write_bytes(content)
    return str(path)
