"""The content of text files, plain or compressed, whatever their names say.

The first bytes of a file decide how it is unpacked. Archives and other files that hold
no text are refused, with a command that helps. Memory holds one chunk, even if a small
file unpacks to a huge one.
"""

import bz2
import functools
import gzip
import lzma
import shlex
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from decoupled.core import files, gfile, installed
from decoupled.core.errors import UserError

# This many bytes of the content tell the kind of a file.
HEAD = 1 << 18
_READ_BYTES = 1 << 18
_CHUNK_BYTES = 1 << 20
# A file of xz may ask for up to 4 GiB; its strongest usual setting needs 65 MiB.
_XZ_MEMORY = 1 << 29
_TAR_BLOCK = 512


class Damaged(Exception):
    """The file is truncated or cannot be unpacked; the message says where and why."""


class Compression(NamedTuple):
    """A compression.

    command: what writes a file's content to standard output.
    unpack: (handle, path) -> the content in chunks of at most `_CHUNK_BYTES`.
    """

    name: str
    command: str
    unpack: Callable[[IO[bytes], str], Iterator[bytes]]


def read_content(path: str) -> Iterator[bytes]:
    """Yields the content of a file in chunks.

    Raises:
      UserError: the file cannot be opened, holds no text that can be read as a stream
        (an archive, a PDF), or needs too much memory to unpack.
      Damaged: the file is damaged; everything before the damage was yielded.
    """
    files.check_regular(path)
    try:
        with gfile.GFile(path, "rb") as handle:
            packing = packing_of(handle.read(_READ_BYTES))
            handle.seek(0)
            chunks = packing.unpack(handle, path) if packing else _read_chunks(handle)
            yield from _text_chunks(chunks, path, packing)
    except gfile.OpError as error:
        raise UserError(f"{path}: cannot read ({files.reason(error)})") from error


def head_of(path: str) -> bytes:
    """The first `HEAD` bytes of a file's content, less if it is shorter or damaged."""
    head = b""
    try:
        for chunk in read_content(path):
            head += chunk
            if len(head) >= HEAD:
                break
    except Damaged:
        pass
    return head[:HEAD]


def packing_of(head: bytes) -> Compression | None:
    """The compression of a file, by its first bytes; None for all other files."""
    for packing, first_bytes in _PACKINGS.items():
        if head.startswith(first_bytes):
            return packing
    return None


def content_command(path: str) -> str:
    """A command that writes the content of a file to standard output."""
    with gfile.GFile(path, "rb") as handle:
        packing = packing_of(handle.read(16))
    return f"{packing.command if packing else 'cat'} {shlex.quote(path)}"


def _text_chunks(chunks, path, packing) -> Iterator[bytes]:
    """The chunks, after a look at the first bytes of the content."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _TAR_BLOCK:
            break
    _check_content(head, path, packing)
    yield head
    yield from chunks


def _check_content(head: bytes, path: str, packing: Compression | None) -> None:
    name = shlex.quote(path)
    if _is_tar(head):
        raise UserError(
            f"{path}: a tar archive; unpack it with mkdir FOLDER && tar -xf {name} -C "
            "FOLDER, and give its text files"
        )
    if packing and (inner_packing := packing_of(head)):
        raise UserError(
            f"{path}: packed twice, with {packing.name} and {inner_packing.name}; "
            f"unpack it once: {packing.command} {name} > NEW_FILE"
        )
    for signature, kind, advice in _OTHER_FORMATS:
        if head.startswith(signature):
            raise UserError(f"{path}: {kind}; {advice.format(name)}")


def _is_tar(head: bytes) -> bool:
    """Whether the first block is the header of a member: its sum has to be right."""
    try:
        tarfile.TarInfo.frombuf(head[:_TAR_BLOCK], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _read_chunks(handle) -> Iterator[bytes]:
    while chunk := handle.read(_READ_BYTES):
        yield chunk


def _streams(make_stream, kind: str, handle, path: str) -> Iterator[bytes]:
    """Unpacks consecutive streams; zero bytes after one of them are padding."""
    stream = None
    offset = 0
    for chunk in _read_chunks(handle):
        offset += len(chunk)
        while chunk:
            if stream is None:
                # At the beginning of a file, zero bytes are damage.
                chunk = chunk.lstrip(b"\0") if offset > len(chunk) else chunk
                if not chunk:
                    break
                stream = make_stream()
            yield from _outputs(stream, chunk, kind, offset, path)
            chunk = stream.unused_data if stream.eof else b""
            stream = None if stream.eof else stream
    if stream is not None:
        raise _ends_too_soon(kind, offset)


def _outputs(stream, chunk, kind, offset, path) -> Iterator[bytes]:
    while True:
        try:
            output = stream.decompress(chunk, _CHUNK_BYTES)
        except (OSError, lzma.LZMAError) as error:
            if "Memory usage limit" in str(error):
                raise _too_large(
                    path, f"{_XZ_MEMORY >> 20} MiB of memory", "xz -dc", "xz"
                ) from error
            raise _damage(kind, offset, error) from error
        if output:
            yield output
        if stream.eof or stream.needs_input:
            return
        chunk = b""


def _ends_too_soon(kind: str, offset: int) -> Damaged:
    return Damaged(f"{kind} data ends too soon, at byte {offset} of the file")


def _damage(kind: str, offset: int, error: Exception) -> Damaged:
    return Damaged(
        f"{kind} data is damaged before byte {offset} of the file "
        f"({files.reason(error)})"
    )


def _too_large(path: str, size: str, unpack: str, pack: str) -> UserError:
    ending = {"xz": "xz", "zstd": "zst"}[pack]
    return UserError(
        f"{path}: needs more than {size} to unpack; pack it again: {unpack} "
        f"{shlex.quote(path)} | {pack} > NEW_FILE.{ending}"
    )


def _gzip(handle, path: str) -> Iterator[bytes]:
    # As in `_streams`, zero bytes after a stream are padding.
    with gzip.GzipFile(fileobj=handle, mode="rb") as stream:
        while True:
            try:
                output = stream.read1(_CHUNK_BYTES)
            except EOFError as error:
                raise _ends_too_soon("gzip", handle.tell()) from error
            except (gzip.BadGzipFile, zlib.error) as error:
                raise _damage("gzip", handle.tell(), error) from error
            if not output:
                return
            yield output


def _zstandard(handle, path: str) -> Iterator[bytes]:
    installed.need("pyarrow", purpose="files packed with Zstandard")
    import pyarrow

    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(handle), "zstd")
    while True:
        try:
            output = stream.read(_CHUNK_BYTES)
        except OSError as error:
            # An error of the disk has a number, an error of pyarrow has none.
            if error.errno is not None:
                raise
            if "too much memory" in str(error):
                raise _too_large(
                    path,
                    "the 128 MiB of zstd's usual window (zstd --long)",
                    "zstd -dc --long=31",
                    "zstd",
                ) from error
            raise _damage("zstd", handle.tell(), error) from error
        if not output:
            return
        yield output


def _xz_stream():
    return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)


def _packing(name: str, command: str, make_stream: Callable) -> Compression:
    return Compression(name, command, functools.partial(_streams, make_stream, name))


# Compression -> the first bytes of its files.
_PACKINGS = {
    Compression("gzip", "gzip -dc", _gzip): (b"\x1f\x8b",),
    _packing("bzip2", "bzip2 -dc", bz2.BZ2Decompressor): tuple(
        b"BZh%d" % level + block
        for level in range(1, 10)
        for block in (b"1AY&SY", b"\x17rE8P\x90")
    ),
    _packing("xz", "xz -dc", _xz_stream): (b"\xfd7zXZ\0", b"\x5d\0\0"),
    # A frame, and the skippable frames that may precede it.
    Compression("zstd", "zstd -dc", _zstandard): (
        b"\x28\xb5\x2f\xfd",
        *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)),
    ),
}

_UNPACK = "unpack it, and give its text files"
# First bytes, what the file is, and what to do; {} is its path.
_OTHER_FORMATS = (
    (
        b"7z\xbc\xaf",
        "a 7z archive, which cannot be read as a stream",
        "convert it: 7z x -so {} | gzip > NEW_FILE.gz",
    ),
    (
        b"PK\3\4",
        "a zip archive",
        "unpack it with unzip {} -d FOLDER, and give its text files",
    ),
    (b"Rar!\x1a", "a RAR archive", _UNPACK),
    (b"\x1f\x9d", "packed with compress", "unpack it: gzip -dc {} > NEW_FILE"),
    (b"\x04\x22\x4d\x18", "packed with lz4", "unpack it: lz4 -dc {} > NEW_FILE"),
    (b"LZIP\1", "packed with lzip", "unpack it: lzip -dc {} > NEW_FILE"),
    (b"\x89LZO", "packed with lzop", "unpack it: lzop -dc {} > NEW_FILE"),
    (b"\xff\6\0\0sNaPpY", "packed with Snappy", _UNPACK),
    (b"!<arch>\n", "an archive of ar", _UNPACK),
    (b"%PDF-", "a PDF", "get its text: pdftotext {} NEW_FILE.txt"),
    (b"SQLite format 3\0", "an SQLite database", "write its text to a file"),
    (
        b"WARC/",
        "a WARC file of a web crawl",
        "write its texts as JSON lines, with warcio or a similar package",
    ),
)
