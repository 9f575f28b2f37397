"""Cuts the XML of a dump into its head and its pages, and parses them one by one.

Pages are cut without a parser, so that a page can be left out before it is parsed: a
page of another worker, a redirect, or a page that is too large. A dump never has a
document type. So document types, and with them entities, are refused before a parser
could act on them (CVE-2003-1564, "billion laughs").

The standard library's expat then reads a page, and only the fields of `PageFields` are
kept; the rest takes no memory. Elements that the export format
(https://www.mediawiki.org/xml/export-0.11.xsd) does not have are refused.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from xml.parsers import expat

from decoupled.corpora.unpacking import Damaged

# MediaWiki itself refuses wikitext above 2 MiB ($wgMaxArticleSize).
MAX_PAGE_BYTES = 64 << 20
_MAX_OTHER_BYTES = 4 << 20
# Longer than any token that the end of a chunk may cut.
_OVERLAP = 64

_NO_SPACE = re.compile(rb"\S")
_ROOT = re.compile(rb"<[^\s<>/]{1,40}[\s>/]")
_PAGE_OR_END = re.compile(rb"<page[\s>]|</mediawiki\s*>|<!")
_DUMP_END = re.compile(rb"</mediawiki\s*>")
_PAGE_END = re.compile(rb"</page\s*>|<!")
_COMMENT_END = re.compile(rb"-->")
_CDATA_END = re.compile(rb"\]\]>")
_TITLE = re.compile(rb"<title>([^<]*)</title>")

_END = b"</mediawiki>"
# The deepest elements of an export are a revision's contributor and slots, at 4.
_MAX_DEPTH = 16

_REVISION = "page/revision"
_PAGE_FIELDS = ("page/title", "page/ns", "page/id")
_REVISION_FIELDS = (f"{_REVISION}/text", f"{_REVISION}/model")
_REDIRECT = "page/redirect"
_READ = (*_PAGE_FIELDS, _REDIRECT, *_REVISION_FIELDS)
# Path of an element -> the elements that it may hold. Other paths are not checked.
_CHILDREN = {
    "": {"page"},
    "page": set(
        "title ns id redirect restrictions revision upload DiscussionThreading "
        "discussionthreadinginfo".split()
    ),
    _REVISION: set(
        "id parentid timestamp contributor minor comment origin model format text sha1 "
        "content".split()
    ),
    **{path: set() for path in _READ},
}
_NAMESPACE = "mediawiki/siteinfo/namespaces/namespace"


class NotADump(Exception):
    """The file is no MediaWiki export, or has something that no export has."""


class RawPage(NamedTuple):
    """The XML of a page, from <page> to </page>.

    number: from 1, among all pages of the dump. offset: its first byte in the XML.
    content: None if the page is larger than `MAX_PAGE_BYTES`.
    """

    number: int
    offset: int
    content: bytes | None

    def title(self) -> str:
        """The title as the XML has it; "" where there is none."""
        found = self.content and _TITLE.search(self.content, 0, 4096)
        return found[1].decode("utf-8", "replace") if found else ""


class PageCutter:
    """Reads a dump once, from front to back.

    Attributes:
      head: from <mediawiki> to the first page.
      last: the last complete page so far, or None.
    """

    def __init__(self, chunks: Iterator[bytes]):
        """Reads the head.

        Raises:
          NotADump, Damaged
        """
        self._chunks = chunks
        self._buffer = b""
        self._position = 0  # everything before it is finished
        self._offset = 0  # of the buffer's first byte in the XML
        self._in_page = False
        self._oversized = False
        self.last = None
        self._find_root()
        self._at_page = self._find_page()

    def pages(self) -> Iterator[RawPage]:
        """Yields all pages.

        Raises:
          NotADump, Damaged: after all pages before it were yielded.
        """
        while self._at_page:
            # Set before the yield, so that `last` is this page while it is processed.
            self.last = self._cut_page(self.last.number + 1 if self.last else 1)
            yield self.last
            self._at_page = self._find_page()

    def _find_root(self):
        at = self._after_space_and_comments(0, "the file is empty")
        if not self._buffer.startswith(b"<", at):
            raise NotADump("not XML")
        start, end, root = self._find(_ROOT, at)
        name = root[1:-1].decode("utf-8", "replace")
        if start != at or name != "mediawiki":
            raise NotADump(f"not a MediaWiki export (its first element is {name!r})")
        self._root_start, self._root_end = start, end

    def _find_page(self):
        """Moves to the next page; False at the end of the dump."""
        if self.last is None:
            at, _, token = self._find(_PAGE_OR_END, self._root_end)
            while token == b"<!":
                at, _, token = self._find(_PAGE_OR_END, self._skip_declaration(at))
            self._position = at
            self.head = self._buffer[self._root_start : at]
        else:
            at = self._after_space_and_comments(self._position)
            self._position = at
            found, end, token = self._find(_PAGE_OR_END, at)
            if found != at:
                raise NotADump(f"unexpected XML between pages, {self._where(at)}")
        if token.startswith(b"<page"):
            return True
        self._check_end(self._find(_DUMP_END, self._position)[1])
        return False

    def _check_end(self, at):
        """Reads the rest, which also checks the sums of compressed data."""
        while True:
            if self._buffer[at:].strip():
                raise NotADump(f"more than one dump: XML goes on {self._where(at)}")
            self._offset += at
            self._buffer = next(self._chunks, b"")
            at = 0
            if not self._buffer:
                return

    def _cut_page(self, number):
        offset = self._offset + self._position
        self._in_page, self._oversized = True, False
        at, end, token = self._find(_PAGE_END, self._position + 5)
        while token == b"<!":
            at, end, token = self._find(_PAGE_END, self._skip_declaration(at))
        content = None if self._oversized else self._buffer[self._position : end]
        self._position = end
        self._in_page = False
        return RawPage(number, offset, content)

    def _after_space_and_comments(self, at, at_end=None):
        while True:
            at, _, token = self._find(_NO_SPACE, at, at_end)
            if token != b"<":
                return at
            at = self._ensure(at, 2)
            if not self._buffer.startswith(b"<!", at):
                return at
            at = self._skip_declaration(at)

    def _skip_declaration(self, at):
        """The position after a comment or CDATA section; refuses other <! markup."""
        at = self._ensure(at, 9)
        if self._buffer.startswith(b"<!--", at):
            return self._find(_COMMENT_END, at + 4)[1]
        if self._buffer.startswith(b"<![CDATA[", at):
            return self._find(_CDATA_END, at + 9)[1]
        name = self._buffer[at : at + 9].decode("utf-8", "replace").split()[0]
        raise NotADump(
            f"declares a document type or an entity ({name}) {self._where(at)}, which "
            "no MediaWiki export does"
        )

    def _find(self, pattern, at, at_end=None):
        """Start, end and text of the next match from `at` on; reads more as needed."""
        while True:
            found = pattern.search(self._buffer, at)
            if found:
                return found.start(), found.end(), found[0]
            at = max(at, len(self._buffer) - _OVERLAP)
            at -= self._more(at_end)

    def _ensure(self, at, count):
        """Reads until `count` bytes follow `at`; returns the new position of `at`."""
        while len(self._buffer) < at + count:
            at -= self._more()
        return at

    def _more(self, at_end=None):
        """Reads a chunk; returns how many bytes were removed before the buffer."""
        chunk = next(self._chunks, b"")
        if not chunk:
            end = self._offset + len(self._buffer)
            raise Damaged(at_end or f"the XML ends too soon, after {end} bytes")
        cut = self._position
        waiting = len(self._buffer) - cut
        if self._in_page and waiting > MAX_PAGE_BYTES:
            self._oversized = True
            cut = len(self._buffer) - _OVERLAP
        elif not self._in_page and waiting > _MAX_OTHER_BYTES:
            raise NotADump(f"no <page> in {waiting} bytes {self._where(cut)}")
        self._buffer = self._buffer[cut:] + chunk
        self._offset += cut
        self._position = 0
        return cut

    def _where(self, at):
        return f"at byte {self._offset + at} of the XML"


class BadXml(Exception):
    """The XML is not well formed, or is no MediaWiki export; the message says why."""


class PageFields(NamedTuple):
    """The fields of a page and of its last revision.

    title: with the name of its namespace, as in the XML. namespace: None if the dump is
    older than the element (export-0.5). page_id: None if there is none.
    text, model: None if they are missing or empty, or if there is no revision.
    """

    title: str
    namespace: int | None
    page_id: int | None
    is_redirect: bool
    text: str | None
    model: str | None


def parse_page(content: bytes) -> PageFields:
    """Reads the XML of a page, from <page> to </page>, in UTF-8.

    Raises:
      BadXml: the XML is damaged, has no title, or has something that no export has.
    """
    reader = _PageReader()
    _parse(content, reader)
    title, namespace, page_id = map(reader.fields.get, _PAGE_FIELDS)
    text, model = map(reader.fields.get, _REVISION_FIELDS)
    if not title:
        raise BadXml("the page has no title")
    return PageFields(
        title,
        _integer(namespace),
        _integer(page_id),
        _REDIRECT in reader.fields,
        text or None,
        model or None,
    )


def parse_namespaces(head: bytes) -> dict[str, int]:
    """Reads the names of namespaces, and their numbers, in the head of a dump.

    Args:
      head: from <mediawiki> to the first page, in UTF-8.

    Raises:
      BadXml: the XML is damaged, or a namespace has no number.
    """
    reader = _NamespaceReader()
    _parse(head + _END, reader)
    return reader.namespaces


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError as error:
        raise BadXml(str(error)) from error


class _Reader:
    """Expat's handlers; keeps the path of the element that is open."""

    def __init__(self, children: Mapping[str, set[str]]):
        self.path = ""
        self.depth = 0
        self._children = children

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Enters an element, whatever the prefix of its name."""
        name = name.rpartition(":")[2]
        if name not in self._children.get(self.path, (name,)):
            inside = self.path.rpartition("/")[2] or "the dump"
            raise BadXml(f"unexpected element {name[:40]!r} in {inside}")
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise BadXml(f"elements lie in each other, deeper than {_MAX_DEPTH}")
        self.path = f"{self.path}/{name}" if self.path else name
        self.begin(attributes)

    def end(self, name: str) -> None:
        """Leaves an element."""
        self.finish()
        self.depth -= 1
        self.path = self.path.rpartition("/")[0]

    def begin(self, attributes: dict[str, str]) -> None:
        """Called when `path` has begun."""

    def data(self, text: str) -> None:
        """Called with text right below `path`; it may come in several chunks."""

    def finish(self) -> None:
        """Called when `path` ends."""


class _PageReader(_Reader):
    """`fields`: path -> text of the last element with that path."""

    def __init__(self):
        super().__init__(_CHILDREN)
        self.fields: dict[str, str] = {}
        self._chunks: list[str] | None = None

    def begin(self, attributes: dict[str, str]) -> None:
        if self.path == _REVISION:
            self.fields[_REVISION] = ""
            for field in _REVISION_FIELDS:
                self.fields.pop(field, None)
        elif self.path in _PAGE_FIELDS and _REVISION in self.fields:
            raise BadXml(f"unexpected element {self.path[5:]!r} after a revision")
        elif self.path in _READ:
            self._chunks = []

    def data(self, text: str) -> None:
        if self._chunks is not None:
            self._chunks.append(text)

    def finish(self) -> None:
        if self._chunks is not None:
            self.fields[self.path] = "".join(self._chunks)
            self._chunks = None


class _NamespaceReader(_Reader):
    """`namespaces`: name -> number."""

    def __init__(self):
        super().__init__({"": {"mediawiki"}})
        self.namespaces: dict[str, int] = {}
        self._name, self._number = "", 0

    def begin(self, attributes: dict[str, str]) -> None:
        if self.path == _NAMESPACE:
            self._name, number = "", _integer(attributes.get("key"))
            if number is None:
                raise BadXml("a namespace has no key")
            self._number = number

    def data(self, text: str) -> None:
        if self.path == _NAMESPACE:
            self._name += text

    def finish(self) -> None:
        if self.path == _NAMESPACE:
            self.namespaces[self._name] = self._number


def _parse(content: bytes, reader: _Reader) -> None:
    parser = expat.ParserCreate("utf-8")
    # Without the buffer, each line of text would be one call.
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = _refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise BadXml(str(error)) from error


def _refuse(*_):
    raise BadXml("declares a document type or an entity")
