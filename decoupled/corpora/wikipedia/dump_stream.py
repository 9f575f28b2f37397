"""Reads the XML of a dump in chunks of UTF-8, from all compressions and encodings.

Memory holds one chunk, even if a small file unpacks to a huge one.
"""

import bz2
import codecs
import re
import zlib
from collections.abc import Iterator

from decoupled.core import files, gfile
from decoupled.core.errors import UserError

_READ = 1 << 18
_CHUNK = 1 << 20

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


class Damaged(Exception):
    """The file is truncated or cannot be unpacked; the message says where and why."""


def xml_chunks(path: str) -> Iterator[bytes]:
    """Yields a dump's XML as UTF-8, without the byte order mark and XML declaration.

    Args:
      path: local or remote; `.bz2` (also of several streams), `.gz`, or plain XML.

    Raises:
      UserError: the file cannot be opened, has a format that cannot be read as a stream
        (.7z), or names an unknown encoding.
      Damaged: the file is damaged; everything before the damage was yielded.
    """
    if path.endswith(".7z"):
        raise UserError(
            f"{path}: .7z cannot be read as a stream; take the dump's .bz2, or convert "
            f"it: 7z x -so {path} | bzip2 > {path.removesuffix('.7z')}.bz2"
        )
    chunks = _file_chunks(path)
    if path.endswith(".bz2"):
        chunks = _unpacked(chunks, _Bzip2, "bzip2")
    elif path.endswith(".gz"):
        chunks = _unpacked(chunks, _Gzip, "gzip")
    return _as_utf8(chunks, path)


def _file_chunks(path) -> Iterator[bytes]:
    try:
        with gfile.GFile(path, "rb") as handle:
            while chunk := handle.read(_READ):
                yield chunk
    except gfile.OpError as error:
        raise UserError(f"{path}: cannot read ({files.reason(error)})") from error


class _Bzip2:
    """One bzip2 stream."""

    def __init__(self):
        self._decompressor = bz2.BZ2Decompressor()

    def unpack(self, data: bytes) -> bytes:
        """At most `_CHUNK` bytes; b"" if more data is needed or the stream ended."""
        return self._decompressor.decompress(data, _CHUNK)

    @property
    def hungry(self) -> bool:
        """True if further output needs further data."""
        return self._decompressor.needs_input

    @property
    def ended(self) -> bool:
        """True after the stream's last byte."""
        return self._decompressor.eof

    @property
    def rest(self) -> bytes:
        """The given data that lies after the stream's end."""
        return self._decompressor.unused_data


class _Gzip:
    """One gzip member; the methods are those of `_Bzip2`."""

    def __init__(self):
        self._decompressor = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self._full = False

    def unpack(self, data: bytes) -> bytes:
        output = self._decompressor.decompress(
            self._decompressor.unconsumed_tail + data, _CHUNK
        )
        self._full = len(output) == _CHUNK
        return output

    @property
    def hungry(self) -> bool:
        return not self._full and not self._decompressor.unconsumed_tail

    @property
    def ended(self) -> bool:
        return self._decompressor.eof

    @property
    def rest(self) -> bytes:
        return self._decompressor.unused_data


def _unpacked(chunks, make_stream, kind) -> Iterator[bytes]:
    """Unpacks consecutive streams; zero bytes after the last one are padding."""
    stream = None
    offset = 0
    for chunk in chunks:
        offset += len(chunk)
        while chunk:
            if stream is None:
                chunk = chunk.lstrip(b"\0") if offset > len(chunk) else chunk
                if not chunk:
                    break
                stream = make_stream()
            yield from _outputs(stream, chunk, kind, offset)
            chunk = stream.rest if stream.ended else b""
            stream = None if stream.ended else stream
    if stream is not None:
        raise Damaged(f"{kind} data ends too soon, at byte {offset} of the file")


def _outputs(stream, chunk, kind, offset) -> Iterator[bytes]:
    while True:
        try:
            output = stream.unpack(chunk)
        except (OSError, zlib.error) as error:
            raise Damaged(
                f"{kind} data is damaged before byte {offset} of the file ({error})"
            ) from error
        if output:
            yield output
        if stream.ended or stream.hungry:
            return
        chunk = b""


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
