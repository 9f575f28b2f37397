"""The XML of one page, or of a dump's head -> what a corpus needs of it.

`dump_pages` has cut the page out of the dump. The standard library's expat reads it,
and only the fields below are kept; the rest takes no memory. Document types, entity
declarations, and elements that the export format
(https://www.mediawiki.org/xml/export-0.11.xsd) does not have are refused.
"""

from collections.abc import Mapping
from typing import NamedTuple
from xml.parsers import expat

_END = b"</mediawiki>"
# A revision's contributor and its further slots lie deepest, at 4.
_MAX_DEPTH = 16

_REVISION = "page/revision"
_PAGE_FIELDS = ("page/title", "page/ns", "page/id")
_REVISION_FIELDS = (f"{_REVISION}/text", f"{_REVISION}/model")
_REDIRECT = "page/redirect"
_READ = (*_PAGE_FIELDS, _REDIRECT, *_REVISION_FIELDS)
# Path of an element -> the elements that it may hold. Those of other paths are skipped.
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


class BadXml(Exception):
    """The XML is not well formed, or not that of a MediaWiki export; says why."""


class PageFields(NamedTuple):
    """What a page says about itself, and its last revision.

    title: with its namespace's name, as the XML has it. namespace: None where the dump
    is older than the element (export-0.5). page_id: None where there is none.
    text, model: None where they are missing, empty, or there is no revision.
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
      BadXml: the XML is damaged, has no title, or holds what no export has.
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
        """Called with text right below `path`; there may be several pieces of it."""

    def finish(self) -> None:
        """Called when `path` ends."""


class _PageReader(_Reader):
    """`fields`: path -> text, of the last element with that path."""

    def __init__(self):
        super().__init__(_CHILDREN)
        self.fields: dict[str, str] = {}
        self._pieces: list[str] | None = None

    def begin(self, attributes: dict[str, str]) -> None:
        if self.path == _REVISION:
            self.fields[_REVISION] = ""
            for field in _REVISION_FIELDS:
                self.fields.pop(field, None)
        elif self.path in _PAGE_FIELDS and _REVISION in self.fields:
            raise BadXml(f"unexpected element {self.path[5:]!r} after a revision")
        elif self.path in _READ:
            self._pieces = []

    def data(self, text: str) -> None:
        if self._pieces is not None:
            self._pieces.append(text)

    def finish(self) -> None:
        if self._pieces is not None:
            self.fields[self.path] = "".join(self._pieces)
            self._pieces = None


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
    # Else each line of text is a call.
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
