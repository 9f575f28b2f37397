"""Reads lines of text files, plain or compressed, and cleans single lines.

A line ends at LF, CRLF or CR, and at no other character.
"""

import codecs
import collections
import functools
import html
import io
import re
import unicodedata
from collections.abc import Iterator

from decoupled.configs.corpora import NORMALIZATION
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.corpora.unpacking import Damaged, content_command, head_of, read_content

NUL_CHARACTERS = "NUL characters"
# No text has a line that is longer; a compressed file of zeros has.
MAX_LINE = 32 << 20
# Marks that end a sentence, in all scripts.
SENTENCE_ENDS = ".!?…。！？．؟۔।॥։။።។៕།༎"
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONG_REFERENCE = re.compile(r"&#[0-9]{20,};?")
_JOINERS = "\u200c\u200d"
_LINE_END = re.compile(r"\r\n?|\n")


def clean_sentence(line: str) -> str:
    """A line in which each run of white space, line ends included, is one space."""
    # JSON can hold lone surrogates, which UTF-8 cannot.
    return _SURROGATE.sub("\ufffd", " ".join(line.split()))


def normal_form(line: str) -> str:
    """A line as `build_vocabulary` normalises it, in the same case.

    Lines with one normal form, such as a composed and a decomposed é, have equal ids.
    """
    # The normaliser changes nothing else of ASCII, and takes several times as long.
    if line.isascii() and line.isprintable():
        return " ".join(line.split())
    return _normalizer().normalize(line)


@functools.cache
def _normalizer():
    # Imported here: only texts that are compared need it.
    import sentencepiece

    return sentencepiece.SentencePieceNormalizer(
        rule_name=NORMALIZATION,
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=True,
    )


def is_small(letter: str) -> bool:
    """Whether it is lowercase, in a script whose sentences begin with capitals.

    To Unicode, Georgian's letters are lowercase. They are their own title case.
    """
    return letter.islower() and letter.title() != letter


def divides_character(text: str, place: int) -> bool:
    """Whether a cut before `place` (> 0) divides what readers see as one character."""
    right, left = text[place : place + 1], text[place - 1]
    if not right:
        return False
    is_joined = left in _JOINERS or right in _JOINERS
    has_virama = unicodedata.combining(left) == 9
    return is_joined or has_virama or unicodedata.category(right).startswith("M")


def unescape(text: str) -> str:
    """As `html.unescape`, which fails at a reference of thousands of digits; U+FFFD
    replaces these."""
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text))


def paragraphs(text: str, dropped: collections.Counter) -> list[str]:
    """The clean lines of a text; lines without text are left out.

    NUL characters are removed and counted: JSON and tables can hold them, and a file
    of millions of texts is not refused because one has them.
    """
    if "\0" in text:
        dropped[NUL_CHARACTERS] += text.count("\0")
        text = text.replace("\0", "")
    lines = [clean_sentence(line) for line in _LINE_END.split(text)]
    return [line for line in lines if line]


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and text of each line, without its end.

    The content decides how the file is unpacked. A byte order mark at the beginning of
    a line is skipped: files with one may have been joined.
    """
    head = head_of(path)
    if encoding := files.wide_encoding(head):
        raise UserError(
            f"{path}: {encoding}, not UTF-8; convert it: {_recoding(path, encoding)}"
        )
    if b"\0" in head and not _is_utf8(head):
        raise UserError(
            f"{path}: no text file (NUL bytes, and bytes that are not UTF-8)"
        )
    number = 0
    lines = io.TextIOWrapper(
        io.BufferedReader(_Chunks(read_content(path)), 1 << 16),
        encoding="utf-8",
        errors="surrogateescape",
    )
    try:
        while line := lines.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise UserError(
                    f"{path}:{number}: a line of more than {MAX_LINE:,} characters; "
                    "is this a text?"
                )
            if "\0" in line:
                raise UserError(
                    f"{path}:{number}: a NUL character; is this a text? Remove them "
                    f"with {content_command(path)} | tr -d '\\000' > NEW_FILE"
                )
            # `surrogateescape` keeps a bad byte, so that the message can name its line.
            if not line.isascii() and (byte := _SURROGATE.search(line)):
                raise UserError(
                    f"{path}:{number}: not UTF-8 (byte {ord(byte[0]) - 0xDC00:#x}); if "
                    f"it has another encoding, such as latin1, convert it: "
                    f"{_recoding(path, 'latin1')}"
                )
            yield number, line.removesuffix("\n").removeprefix(files.BYTE_ORDER_MARK)
    except Damaged as error:
        where = f"{path}:{number}" if number else path
        raise UserError(f"{where}: damaged; {error}") from error
    except MemoryError as error:
        raise UserError(f"{path}:{number + 1}: does not fit into memory") from error


def _recoding(path: str, encoding: str) -> str:
    return f"{content_command(path)} | iconv -f {encoding} -t UTF-8 > NEW_FILE"


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


class _Chunks(io.RawIOBase):
    """Chunks of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]):
        self._chunks = chunks
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._chunk = memoryview(chunk)
        count = min(len(buffer), len(self._chunk))
        buffer[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count
