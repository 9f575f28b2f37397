"""Files are read by their content: all compressions, several streams, and damage."""

import bz2
import gzip
import io
import lzma
import os
import subprocess
import tarfile

import pyarrow
import pytest

from decoupled.core.errors import UserError
from decoupled.corpora import text_lines, unpacking
from decoupled.corpora.text_lines import read_lines

LINES = [f"Line {number} of a text that is read." for number in range(200)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()


def zstandard(content):
    return pyarrow.Codec("zstd").compress(content).to_pybytes()


def lzma_alone(content):
    return lzma.compress(content, lzma.FORMAT_ALONE)


STREAMS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard,
}
PACKED = {**STREAMS, "lzma": lzma_alone, "plain": bytes}


def write(path, content):
    path.write_bytes(content)
    return str(path)


def lines_of(path):
    return [line for _, line in read_lines(path)]


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.jsonl.zst", "a"])
@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
def test_the_content_and_not_the_name_decides(tmp_path, name, pack):
    assert lines_of(write(tmp_path / name, pack(TEXT))) == LINES


@pytest.mark.parametrize("padding", [b"", bytes(4)])
@pytest.mark.parametrize("cut", [0, 1, len(TEXT) // 2, len(TEXT)])
@pytest.mark.parametrize("kind", STREAMS)
def test_several_streams_are_read_whole(tmp_path, kind, cut, padding):
    if kind == "zstd" and padding:
        padding = b"\x50\x2a\x4d\x18\4\0\0\0skip"
    pack = STREAMS[kind]
    content = pack(TEXT[:cut]) + padding + pack(TEXT[cut:]) + padding
    assert lines_of(write(tmp_path / "a.txt", content)) == LINES


@pytest.mark.parametrize("kind", [kind for kind in PACKED if kind != "plain"])
@pytest.mark.parametrize("damage", ["truncated", "last bytes", "changed", "more"])
def test_damage_is_named_and_nothing_is_cut_off_in_silence(tmp_path, kind, damage):
    content = bytearray(PACKED[kind](os.urandom(1 << 16).hex().encode() + b"\n" + TEXT))
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "last bytes":
        content = content[:-5]
    elif damage == "changed":
        content[len(content) // 2] ^= 0xFF
    elif kind in STREAMS or kind == "lzma":
        # A second stream with a damaged beginning.
        content += b"\1" + PACKED[kind](TEXT)[1:]
    else:
        content = content[: -len(content) // 3]
    if (kind, damage) == ("zstd", "changed"):
        # pyarrow writes no sums; the size of the content is damaged instead.
        content[5] ^= 1
    message = r"a\.txt.* (is damaged|ends too soon)"
    with pytest.raises(UserError, match=message):
        lines_of(write(tmp_path / "a.txt", bytes(content)))


def tar_of(mode, names=("a/one.txt", "a/two.txt")):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{mode}") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(TEXT)
            archive.addfile(member, io.BytesIO(TEXT))
    return packed.getvalue()


@pytest.mark.parametrize("packing", ["", "gz", "bz2", "xz", "zst", "v7"])
def test_the_command_for_a_tar_archive_works(tmp_path, packing):
    if packing == "v7":
        # Without the magic of later formats.
        content = bytearray(tar_of(""))
        content[257:265] = bytes(8)
        content[148:156] = b"%06o\0 " % (
            sum(content[:148]) + 8 * 32 + sum(content[156:512])
        )
    elif packing == "zst":
        content = zstandard(tar_of(""))
    else:
        content = tar_of(packing)
    path = write(tmp_path / ("a b" if packing == "v7" else "a.gz"), bytes(content))
    with pytest.raises(UserError, match="a tar archive; unpack it with ") as error:
        lines_of(path)
    command = str(error.value).partition("with ")[2].rpartition(", and")[0]
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "FOLDER/a/two.txt").read_bytes() == TEXT


def advised(path, message, words):
    """The lines of the new file, once the command is run that stands behind `words`."""
    with pytest.raises(UserError, match=message) as error:
        lines_of(path)
    command, folder = str(error.value).partition(words)[2], os.path.dirname(path)
    subprocess.run(["sh", "-c", command], cwd=folder, check=True)
    return lines_of(os.path.join(folder, "NEW_FILE"))


@pytest.mark.parametrize("first", ["gzip", "zstd"])
@pytest.mark.parametrize("second", ["gzip", "xz", "bzip2"])
def test_the_command_for_a_file_that_is_packed_twice_works(tmp_path, first, second):
    path = write(tmp_path / "a.gz", PACKED[first](PACKED[second](TEXT)))
    message = f"packed twice, with {first} and {second}; unpack it once: "
    assert advised(path, message, "once: ") == LINES


@pytest.mark.parametrize(
    "content, message",
    [
        (b"7z\xbc\xaf\x27\x1c\0\4", r"a 7z archive.* 7z x -so \S+a\.txt \| gzip"),
        (b"PK\3\4\x14\0", r"a zip archive; unpack it with unzip \S+a\.txt -d FOLDER"),
        (b"Rar!\x1a\7\0", "a RAR archive; unpack it"),
        (b"\x1f\x9d\x90abc", r"packed with compress; unpack it: gzip -dc \S+a\.txt >"),
        (b"%PDF-1.7\n", r"a PDF; get its text: pdftotext \S+a\.txt NEW_FILE\.txt$"),
        (b"SQLite format 3\0abc", "an SQLite database"),
        (b"WARC/1.0\r\nWARC-Type: warcinfo\r\n", "a WARC file of a web crawl"),
        (b"!<arch>\ndebian-binary", "an archive of ar"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", r"a\.txt: no text file \(NUL bytes, and"),
    ],
)
def test_files_that_hold_no_text_are_refused(tmp_path, content, message):
    for packed in (content, gzip.compress(content)):
        with pytest.raises(UserError, match=message):
            lines_of(write(tmp_path / "a.txt", packed))


@pytest.mark.parametrize("text", ["070701 was a Sunday.", "LZIP is a format."])
def test_a_text_may_begin_like_the_name_of_a_format(tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_text(f"{text}\n")
    assert list(read_lines(str(path))) == [(1, text)]


def test_what_needs_too_much_memory_says_how_to_pack_it_again(tmp_path, monkeypatch):
    # The frame's header asks for a window of 2 GiB; no content follows.
    path = write(tmp_path / "a.zst", b"\x28\xb5\x2f\xfd\x00\xa8\1\0\0")
    message = (
        r"more than the 128 MiB .*zstd -dc --long=31 \S+a\.zst \| zstd > NEW_FILE\.zst$"
    )
    with pytest.raises(UserError, match=message):
        lines_of(path)
    monkeypatch.setattr(unpacking, "_XZ_MEMORY", 1 << 20)
    path = write(tmp_path / "a.xz", lzma.compress(TEXT))
    message = r"more than 1 MiB of memory .*: xz -dc \S+a\.xz \| xz > NEW_FILE\.xz$"
    with pytest.raises(UserError, match=message):
        lines_of(path)


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_a_small_file_of_a_large_content_comes_in_small_chunks(tmp_path, kind):
    path = write(tmp_path / "a.txt", PACKED[kind](bytes(8 << 20)))
    sizes = [len(chunk) for chunk in unpacking.read_content(path)]
    assert sum(sizes) == 8 << 20 and max(sizes) <= 2 << 20


def test_lines_end_at_lf_crlf_and_cr_only(tmp_path):
    separators = "\u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e"
    path = write(tmp_path / "a.txt", f"a\r\n\rb{separators}c\nd\r".encode())
    assert lines_of(path) == ["a", "", f"b{separators}c", "d"]


def test_a_byte_order_mark_is_skipped_where_files_were_joined(tmp_path):
    one = gzip.compress("\ufeffa\n".encode())
    two = gzip.compress("\ufeffb \ufeff c\n".encode())
    assert lines_of(write(tmp_path / "a.gz", one + two)) == ["a", "b \ufeff c"]


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_command_for_utf16_works(tmp_path, encoding, pack):
    path = write(tmp_path / "a.txt", pack("Größe \u4e16\nb\n".encode(encoding)))
    message = r"UTF-(16|32)([LB]E)?, not UTF-8; convert it: .*iconv"
    assert advised(path, message, "it: ") == ["Größe \u4e16", "b"]


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path):
    path = write(tmp_path / "a.txt", "One.\nStraße\n".encode("latin1"))
    message = r"a\.txt:2: not UTF-8 \(byte 0xdf\); .*iconv -f latin1"
    assert advised(path, message, "it: ") == ["One.", "Straße"]


def test_a_nul_is_named_with_its_line_and_the_command_removes_it(tmp_path):
    path = write(tmp_path / "a.txt.gz", gzip.compress(TEXT + b"a\0b\n"))
    message = r"a\.txt\.gz:201: a NUL character"
    assert advised(path, message, "them with ") == [*LINES, "ab"]


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    for path in (tmp_path / "a.txt", "/dev/zero"):
        with pytest.raises(UserError, match="a pipe or a device, .* to a file first"):
            lines_of(str(path))


def test_a_line_of_zeros_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_LINE", 1 << 20)
    path = write(tmp_path / "a.txt.xz", lzma.compress(b"0" * (8 << 20)))
    with pytest.raises(UserError, match=r":1: a line of more than 1,048,576 charac"):
        lines_of(path)
