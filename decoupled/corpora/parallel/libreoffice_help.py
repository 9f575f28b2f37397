"""LibreOffice's help as Debian packages it: HTML pages, a folder for each language.

    apt-get download libreoffice-help-en-us libreoffice-help-de ...    (no root needed)
    for package in libreoffice-help-*.deb; do dpkg-deb -x $package data/help; done
    --source=libreoffice_help:data/help

The pages are in usr/share/libreoffice/help/LANGUAGE/text/. A paragraph or heading has
an id that is the same in every language, `<p id="par_id3147762" ...>`. It becomes a
sentence with the id PAGE#par_id3147762, and the page is its group. Pages embed
paragraphs of other pages. Only the first copy in the order of the pages is kept, so
that no paragraph is held out with one page and trained on with another. A paragraph
that is still in English in another language is left out there; for some languages that
is most of the help. All packages must be of one release. The help is under the MPL 2.0.

The pages are not trusted: links are not followed, and large pages are refused.
"""

import collections
import hashlib
import html.parser
import os
import re
from collections.abc import Iterator

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora import locales
from decoupled.corpora.parallel.parallel_text import Line, ParallelText
from decoupled.corpora.text_lines import clean_sentence, without_long_references

RULES = 1
# The page of an id.
GROUP = "[^#]+"
TITLE, LICENCE = "LibreOffice help", "MPL-2.0"
EMBEDDED = "paragraph of another page"
REPEATED_ID = "paragraph with an id that its page had before"
UNTRANSLATED = "paragraph left in English"
CODE = "paragraph of program code"
_FLAG = "--source=libreoffice_help:"
_DEBIAN = "usr/share/libreoffice/help"
# English is called en-US there; en-GB is another language of its own.
_ENGLISH = "en-US"
_ID = re.compile(r"(?:par|hd)_\w{1,60}", re.ASCII)
_TAGS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
_CODE = re.compile(r"\b(?:code|codeintable|smathcode|bascode|pycode)\b")
_MAX_BYTES = 4 << 20


def find(place: str, settings: ParallelTextConfig) -> list[ParallelText]:
    """The help in each language.

    Args:
      place: the folder into which the packages were unpacked, or its
        usr/share/libreoffice/help. settings: unused.

    Raises:
      UserError: there is no help, or a page cannot be read.
    """
    for folder in (os.path.join(place, _DEBIAN), place):
        names = sorted(gfile.listdir(folder)) if gfile.isdir(folder) else []
        names = [name.rstrip("/") for name in names]
        found = [n for n in names if gfile.isdir(os.path.join(folder, n, "text"))]
        if found:
            return _describe(folder, found)
    raise UserError(
        f"{_FLAG}{place}: no {_DEBIAN}/LANGUAGE/text here; get the packages with "
        "apt-get download libreoffice-help-en-us libreoffice-help-de ..., and unpack "
        "each with dpkg-deb -x PACKAGE.deb FOLDER"
    )


def _describe(folder: str, names: list[str]) -> list[ParallelText]:
    if _ENGLISH not in names:
        raise UserError(
            f"{folder}: has no {_ENGLISH}, which says what others left in English; "
            "get libreoffice-help-en-us"
        )
    english, _ = _fingerprint(os.path.join(folder, _ENGLISH))
    found = []
    for name in names:
        language = locales.ENGLISH if name == _ENGLISH else name
        locales.check_language(language, f"{_FLAG}{folder}")
        path = os.path.join(folder, name)
        own, size = _fingerprint(path)
        # The text of other languages also depends on the English pages.
        sha256 = own if name == _ENGLISH else files.fingerprint(f"{own} {english}")
        found.append(ParallelText(language, path, sha256, size, TITLE, LICENCE))
    return found


def _fingerprint(path: str) -> tuple[str, int]:
    """SHA-256 and bytes of a language's pages."""
    digest, size = hashlib.sha256(), 0
    for page, file in _pages(path):
        try:
            digest.update(f"{page} {files.file_fingerprint(file)}\n".encode())
            size += gfile.size(file)
        except gfile.OpError as error:
            raise UserError(f"{file}: cannot read ({files.reason(error)})") from error
    return digest.hexdigest(), size


def _pages(path: str) -> list[tuple[str, str]]:
    """Name and path of each page of a language, by name: text/shared/find_toolbar."""
    found = []
    for folder, _, names in gfile.walk(os.path.join(path, "text")):
        for name in names:
            file = os.path.join(folder, name)
            page = os.path.relpath(file, path).removesuffix(".html")
            if not name.endswith(".html") or "#" in page or not page.isprintable():
                continue
            if gfile.is_remote(file) or not os.path.islink(file):
                found.append((page.replace(os.sep, "/"), file))
    return sorted(found)


def read(text: ParallelText, dropped: collections.Counter) -> Iterator[Line]:
    """Yields the paragraphs and headings, page by page, in the order of each page.

    Args:
      text: one that `find` found. dropped: counts what is left out, by reason.

    Raises:
      UserError: a page cannot be read, is too large, or is not UTF-8.
    """
    english = os.path.join(os.path.dirname(text.path), _ENGLISH)
    originals = _originals(english)
    for page, path in _pages(text.path):
        parser = _parse(path)
        dropped[CODE] += parser.code
        own = set()
        for identifier, line, content in parser.paragraphs:
            original = originals.get((page, identifier))
            if identifier in own:
                dropped[REPEATED_ID] += 1
            elif original is None:
                dropped[EMBEDDED] += 1
            elif original == content and text.path != english:
                dropped[UNTRANSLATED] += 1
            else:
                yield Line(f"{page}#{identifier}", content, f"{path}:{line}")
            own.add(identifier)


def _originals(english: str) -> dict[tuple[str, str], str]:
    """(page, id) -> English text, for the paragraphs that belong to the page.

    The English pages decide for all languages. In another language the copies of a
    paragraph may be translated differently, and would not be recognised as copies.
    """
    seen: set[bytes] = set()
    found: dict[tuple[str, str], str] = {}
    for page, path in _pages(english):
        own: dict[str, str] = {}
        for identifier, _, content in _parse(path).paragraphs:
            own.setdefault(identifier, content)
        for identifier, content in own.items():
            key = hashlib.sha256(f"{identifier} {content}".encode()).digest()[:8]
            if key not in seen:
                found[page, identifier] = content
            seen.add(key)
    return found


def _parse(path: str) -> "_Page":
    # If the page no longer exists, reading it raises the error.
    if files.exists(path) and gfile.size(path) > _MAX_BYTES:
        raise UserError(
            f"{path}: more than {_MAX_BYTES >> 20} MiB, no page of the help"
        )
    content = files.read_text(path)
    if "\0" in content:
        raise UserError(f"{path}: a NUL character, no page of the help")
    parser = _Page()
    parser.feed(without_long_references(content))
    parser.close()
    return parser


class _Page(html.parser.HTMLParser):
    """Collects the paragraphs and headings with an id.

    A word that differs between systems or programs is there in all its forms, each in a
    hidden `span`. The form without a class is the default; only this one is kept.

    Attributes:
      paragraphs: id, line and clean text. code: paragraphs of code, which are left out.
    """

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[tuple[str, int, str]] = []
        self.code = 0
        # Tag, id, line and pieces of the open paragraph.
        self._open: tuple[str, str, int, list[str]] | None = None
        # Number of open spans within a form that is left out.
        self._skipped = 0

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in _TAGS:
            self._end_paragraph()
            identifier = given.get("id") or ""
            if _CODE.search(given.get("class") or ""):
                self.code += 1
            elif _ID.fullmatch(identifier):
                self._open = (tag, identifier, self.getpos()[0], [])
        elif tag == "span" and self._open:
            if self._skipped or ("hidden" in given and given.get("class")):
                self._skipped += 1
        elif tag == "br":
            self.handle_data(" ")

    def handle_endtag(self, tag):
        if tag == "span" and self._skipped:
            self._skipped -= 1
        elif self._open and tag == self._open[0]:
            self._end_paragraph()

    def handle_data(self, data):
        if self._open and not self._skipped:
            self._open[3].append(data)

    def close(self):
        super().close()
        self._end_paragraph()

    def _end_paragraph(self):
        if self._open:
            _, identifier, line, pieces = self._open
            content = clean_sentence("".join(pieces))
            self.paragraphs.append((identifier, line, content))
        self._open, self._skipped = None, 0
