"""MediaWiki XML dumps -> articles, one at a time.

It reads `*-pages-articles*.xml.bz2` and similar files, local or remote. An article is
the last revision of a page of the main namespace that is neither a redirect nor a
disambiguation page.

The standard library's expat parses the whole file, also the pages of other workers. So
it finds damage anywhere. The encoding is the one that the XML declares: UTF-8, UTF-16
or one of 8 bits. A dump never has a document type. So document types, and with them
entities, are refused (CVE-2003-1564, "billion laughs"), and so are elements that the
export format (https://www.mediawiki.org/xml/export-0.11.xsd) does not have.
"""

import collections
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from xml.parsers import expat

from decoupled.core.errors import UserError
from decoupled.corpora.unpacking import Damaged, read_content
from decoupled.corpora.wikipedia import wiki_templates

# MediaWiki itself refuses wikitext above 2 MiB ($wgMaxArticleSize).
MAX_CHARACTERS = 16 << 20
# A tag or a comment; expat holds it as a whole.
_MAX_TOKEN = 8 << 20
# The deepest elements of an export are a revision's contributor and slots, at 5.
_MAX_DEPTH = 16

OTHER_NAMESPACES = "pages outside namespace 0"
REDIRECTS = "redirects"
DISAMBIGUATION = "disambiguation pages"
NO_TEXT = "pages without text"
NO_WIKITEXT = "pages that are not wikitext"
TOO_LARGE = f"pages above {MAX_CHARACTERS >> 20} million characters"

_ROOT = "mediawiki"
_NAMESPACE = f"{_ROOT}/siteinfo/namespaces/namespace"
_PAGE = f"{_ROOT}/page"
_REVISION = f"{_PAGE}/revision"
_TITLE, _NUMBER, _ID = f"{_PAGE}/title", f"{_PAGE}/ns", f"{_PAGE}/id"
_REDIRECT = f"{_PAGE}/redirect"
_TEXT, _MODEL = f"{_REVISION}/text", f"{_REVISION}/model"
_BEFORE_REVISIONS = (_TITLE, _NUMBER, _ID)
_FIELD_PATHS = (*_BEFORE_REVISIONS, _REDIRECT, _TEXT, _MODEL)
# Path of an element -> the elements that it may hold. Other paths are not checked.
_CHILDREN = {
    "": {_ROOT},
    _ROOT: {"siteinfo", "page"},
    _PAGE: set(
        "title ns id redirect restrictions revision upload DiscussionThreading "
        "discussionthreadinginfo".split()
    ),
    _REVISION: set(
        "id parentid timestamp contributor minor comment origin model format text sha1 "
        "content".split()
    ),
    **{path: set() for path in _FIELD_PATHS},
}
# "#REDIRECT [[...]]" in the wiki's own language.
_REDIRECT_TEXT = re.compile(r"\s*[#＃]\s*[^\W\d_][^\[\]#*\n]{2,30}\[\[[^\[\]\n]+\]\]")


class Article(NamedTuple):
    """A page of the main namespace: its title and its wikitext.

    In its links, the names of the namespaces of files and categories are replaced by
    the English names.
    """

    title: str
    wikitext: str


def read_articles(
    path: str, dropped: collections.Counter, part: int = 0, parts: int = 1
) -> Iterator[Article]:
    """Yields the articles of a dump; memory holds the pages of a megabyte of XML.

    Args:
      path: local or remote, plain or compressed.
      dropped: counts the pages that are no articles, by reason.
      part, parts: only every `parts`-th page, from page `part` on, is read.
    """
    reader = _Reader(part, parts)
    to_english = None
    try:
        for page in _pages(read_content(path), reader):
            to_english = to_english or _namespaces_to_english(reader.namespaces)
            namespace, title = _split_title(page, reader.namespaces)
            if reason := _fault(page, namespace, title):
                dropped[reason] += 1
            else:
                yield Article(title, to_english(page.text))
    except (Damaged, _BadXml) as error:
        raise UserError(f"{path}: {error}{reader.progress()}") from error


class _BadXml(Exception):
    """The XML is not well formed, or is no MediaWiki export; the message says why."""


class _Page(NamedTuple):
    """The fields of a page and of its last revision.

    title: with the name of its namespace, as in the XML. namespace: None if the dump is
    older than the element (export-0.5). text, model: None if they are missing or empty.
    """

    title: str
    namespace: int | None
    is_redirect: bool
    is_too_large: bool
    text: str | None
    model: str | None


def _pages(chunks: Iterator[bytes], reader: "_Reader") -> Iterator[_Page]:
    """Yields the pages, and then raises what is wrong with the XML after them."""
    # White space is not allowed before an XML declaration, but some wikis write it.
    first_chunk = next(chunks, b"").lstrip(b" \t\r\n")
    for chunk in itertools.chain([first_chunk], chunks, [None]):
        failure = None
        try:
            reader.feed(chunk)
        except _BadXml as xml_error:
            failure = xml_error
        yield from reader.take_pages()
        if failure is not None:
            raise failure


class _Reader:
    """Expat's handlers. They keep the path of the open element, and complete pages.

    namespaces: name -> number, from the head of the dump.
    """

    def __init__(self, part: int, parts: int):
        self.namespaces: dict[str, int] = {}
        self._part, self._parts = part, parts
        self._pages: list[_Page] = []
        self._page_count = 0  # The open page is included.
        self._last_page = ""
        self._path, self._depth, self._is_skipped = "", 0, False
        self._fields: dict[str, str] = {}
        self._text: list[str] | None = None
        self._text_size = self._start = self._offset = 0
        self._is_too_large = False
        self._namespace = 0
        self._encoding = None
        self._parser = parser = expat.ParserCreate()
        # Without the buffer, each line of text would be one call.
        parser.buffer_text, parser.buffer_size = True, 1 << 16
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = self._refuse
        parser.XmlDeclHandler = self._declare

    def feed(self, chunk: bytes | None) -> None:
        """Parses a chunk; None is the end of the file.

        Raises:
          _BadXml
        """
        try:
            self._parser.Parse(chunk or b"", chunk is None)
        except expat.ExpatError as error:
            if chunk is None:
                cause = f"the XML ends too soon, after {self._offset} bytes"
                raise _BadXml(cause if self._offset else "the file is empty") from error
            raise _BadXml(f"cannot read the XML ({error})") from error
        except (LookupError, ValueError) as error:
            # From expat's search for an encoding among those of Python.
            raise _BadXml(
                f"cannot read the encoding {self._encoding!r}; convert it to UTF-8, "
                "and change the encoding in the first line"
            ) from error
        self._offset += len(chunk or b"")
        if self._offset - max(self._parser.CurrentByteIndex, 0) > _MAX_TOKEN:
            raise _BadXml(f"a tag of more than {_MAX_TOKEN >> 20} MiB; this is no dump")
        if chunk is None and not self._page_count:
            raise _BadXml("holds no page")

    def take_pages(self) -> list[_Page]:
        """The complete pages that were not taken yet."""
        pages, self._pages = self._pages, []
        return pages

    def progress(self) -> str:
        """The last complete page and what to do, for a message; "" if there is none."""
        if not self._last_page:
            return ""
        return f"; the last complete page is {self._last_page}; download the file again"

    def _declare(self, version, encoding, standalone):
        self._encoding = encoding

    def _refuse(self, *_):
        raise _BadXml(
            "declares a document type or an entity, which no MediaWiki export does"
        )

    def _begin(self, name, attributes):
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _BadXml(f"elements lie in each other, deeper than {_MAX_DEPTH}")
        if self._is_skipped:
            return
        # Whatever the prefix of the name.
        name = name.rpartition(":")[2]
        if name not in _CHILDREN.get(self._path, (name,)):
            if self._depth == 1:
                raise _BadXml(f"no MediaWiki export: its first element is {name!r:.60}")
            parent = self._path.rpartition("/")[2]
            raise _BadXml(f"unexpected element {name!r:.60} in {parent}")
        self._path = f"{self._path}/{name}" if self._path else name
        if self._path == _PAGE:
            self._begin_page()
        elif self._path == _REVISION:
            self._fields[_REVISION] = ""
            self._fields.pop(_TEXT, None)
            self._fields.pop(_MODEL, None)
            self._is_too_large = False
        elif self._path in _BEFORE_REVISIONS and _REVISION in self._fields:
            raise _BadXml(f"unexpected element {name!r} after a revision")
        elif self._path == _NAMESPACE:
            self._text = []
            self._namespace = _integer(attributes.get("key", ""))
        elif self._path in _FIELD_PATHS:
            self._text, self._text_size = [], 0

    def _begin_page(self):
        self._fields = {}
        self._start = self._parser.CurrentByteIndex
        self._is_skipped = self._page_count % self._parts != self._part
        self._page_count += 1
        if self._is_skipped:
            self._parser.CharacterDataHandler = None

    def _data(self, text):
        if self._text is None:
            if self._path in (_ROOT, _PAGE, _REVISION) and text.strip():
                raise _BadXml(
                    f"unexpected text between elements ({text.strip()!r:.60})"
                )
            return
        self._text.append(text)
        self._text_size += len(text)
        if self._text_size > MAX_CHARACTERS:
            self._text.clear()
            self._is_too_large = True

    def _end(self, name):
        self._depth -= 1
        if self._is_skipped and self._depth > 1:
            return
        if self._path == _NAMESPACE:
            self.namespaces["".join(self._text)] = self._namespace
        elif self._path == _PAGE:
            self._end_page()
        elif self._text is not None:
            self._fields[self._path] = "".join(self._text)
        self._text = None
        self._path = self._path.rpartition("/")[0]

    def _end_page(self):
        title = ""
        if self._is_skipped:
            self._is_skipped = False
            self._parser.CharacterDataHandler = self._data
        else:
            title = self._fields.get(_TITLE)
            if not title:
                raise _BadXml(f"page {self._page_count} has no title")
            self._pages.append(self._page(title))
        label = f"{title!r:.80}, " if title else ""
        self._last_page = f"{self._page_count} ({label}byte {self._start} of the XML)"

    def _page(self, title) -> _Page:
        namespace = self._fields.get(_NUMBER)
        return _Page(
            title,
            None if namespace is None else _integer(namespace),
            _REDIRECT in self._fields,
            self._is_too_large,
            self._fields.get(_TEXT) or None,
            self._fields.get(_MODEL) or None,
        )


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise _BadXml(f"{text!r:.60} is no number of a namespace") from error


def _split_title(page: _Page, namespaces: Mapping[str, int]) -> tuple[int, str]:
    """The number of a page's namespace, and its title without the namespace's name."""
    title = page.title.replace("_", " ")
    if page.namespace is not None:
        return page.namespace, title
    # Exports before version 0.6 have the namespace in the title alone.
    name, colon, local_title = page.title.partition(":")
    if colon and name in namespaces and not local_title.startswith(" "):
        return namespaces[name], local_title.replace("_", " ")
    return 0, title


def _fault(page: _Page, namespace: int, title: str) -> str | None:
    if namespace != 0:
        return OTHER_NAMESPACES
    if page.is_redirect:
        return REDIRECTS
    if page.is_too_large:
        return TOO_LARGE
    if not page.text or not page.text.strip():
        return NO_TEXT
    if page.model not in (None, "wikitext"):
        return NO_WIKITEXT
    if _REDIRECT_TEXT.match(page.text):
        return REDIRECTS
    if wiki_templates.is_disambiguation(title, page.text):
        return DISAMBIGUATION
    return None


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
