"""Reads the XML of a dump in chunks of UTF-8, from all compressions and encodings."""

import codecs
import re
from collections.abc import Iterator

from decoupled.core.errors import UserError
from decoupled.corpora.unpacking import Damaged, unpacked

_BYTE_ORDER_MARKS = (  # UTF-32's begin with UTF-16's.
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    # Without a byte order mark: "<" in two bytes.
    (b"<\0", "utf-16-le"),
    (b"\0<", "utf-16-be"),
)
_DECLARATION = re.compile(rb"\s*<\?xml[^<>]*?\?>")
_DECLARED_ENCODING = re.compile(rb"""encoding\s*=\s*["']([\w.:-]+)["']""")
# Python knows codecs that are no encodings of text ("zip", "rot13", "unicode_escape").
_ENCODINGS = re.compile(
    r"utf-(8|16|32)|ascii|iso8859-\d+|cp\d+|koi8-[a-z]|mac-[a-z]+|tis-620"
    r"|gbk?|gb2312|gb18030|big5(hkscs)?|euc_[a-z]+|shift_jis|johab|hz"
)
_FORMS_OF_TWO_BYTES = re.compile("utf-(16|32)")


def xml_chunks(path: str) -> Iterator[bytes]:
    """Yields a dump's XML as UTF-8, without the byte order mark and XML declaration.

    Args:
      path: local or remote, plain or compressed.

    Raises:
      UserError: the file cannot be opened or unpacked, or names an unknown encoding.
      Damaged: the file is damaged; everything before the damage was yielded.
    """
    return _as_utf8(unpacked(path), path)


def _as_utf8(chunks, path) -> Iterator[bytes]:
    first = next(chunks, b"")
    while len(first) < 1024 and (more := next(chunks, b"")):
        first += more
    mark, encoding = next(
        (known for known in _BYTE_ORDER_MARKS if first.startswith(known[0])),
        (b"", None),
    )
    if mark.startswith((b"<", b"\0<")):
        mark = b""
    encoding = encoding or _declared_encoding(first, path)
    chunks = _with_first(first.removeprefix(mark), chunks)
    if encoding != "utf-8":
        chunks = _recoded(chunks, encoding)
    yield from _without_declaration(chunks)


def _with_first(first, chunks):
    yield first
    yield from chunks


def _declared_encoding(first, path):
    declaration = _DECLARATION.match(first)
    declared = declaration and _DECLARED_ENCODING.search(declaration[0])
    if not declared:
        return "utf-8"
    name = declared[1].decode("ascii")
    try:
        encoding = codecs.lookup(name).name
    except LookupError:
        encoding = ""
    if not _ENCODINGS.fullmatch(encoding):
        raise UserError(f"{path}: encoding {name!r} is unknown; convert it to UTF-8")
    # The declaration was read byte by byte, so a claim of two-byte units is wrong.
    return "utf-8" if _FORMS_OF_TWO_BYTES.match(encoding) else encoding


def _recoded(chunks, encoding):
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = 0
    try:
        for chunk in chunks:
            yield decoder.decode(chunk).encode("utf-8")
            offset += len(chunk)
        decoder.decode(b"", final=True)
    except UnicodeError as error:
        raise Damaged(f"the text is not {encoding} after byte {offset}") from error


def _without_declaration(chunks):
    first = next(chunks, b"")
    while len(first) < 1024 and (more := next(chunks, b"")):
        first += more
    yield (
        first[declaration.end() :]
        if (declaration := _DECLARATION.match(first))
        else first
    )
    yield from chunks
