"""Reads lines of text files, plain or compressed, and cleans single lines."""

import codecs
import contextlib
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import IO

from decoupled.core import files, gfile
from decoupled.core.errors import UserError

Unpack = Callable[[IO[bytes]], AbstractContextManager[IO[bytes]]]
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_sentence(line: str) -> str:
    """A line without line breaks of any kind; each run of white space is one space.

    Lone surrogates, which JSON can hold and UTF-8 cannot, become U+FFFD.
    """
    return _SURROGATE.sub("\ufffd", " ".join(line.split()))


def read_lines(path: str, unpack: Unpack | None = None) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and text of each line; a byte order mark is skipped.

    Args:
      path: of the file; .gz is unpacked.
      unpack: opens the contents of a file with another compression.

    Raises:
      UserError: the file is missing, damaged, or not UTF-8, or a line does not fit into
        memory.
    """
    number = 0
    try:
        with _open(path, unpack) as handle:
            for number, line in enumerate(handle, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                yield number, line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number}: not UTF-8") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        where = f"{path}:{number}" if number else path
        raise UserError(
            f"{where}: damaged, or not gzip ({files.reason(error)})"
        ) from error
    except MemoryError as error:
        raise UserError(f"{path}:{number + 1}: does not fit into memory") from error
    except gfile.OpError as error:
        if is_damage(error):
            where = f"{path}:{number}" if number else path
            raise UserError(f"{where}: damaged ({error})") from error
        raise UserError(f"{path}: cannot read ({files.reason(error)})") from error


def is_damage(error: Exception) -> bool:
    """Whether pyarrow read a file but could not unpack it: its error has no errno."""
    return isinstance(error, OSError) and error.errno is None


@contextlib.contextmanager
def _open(path: str, unpack: Unpack | None) -> Iterator[IO[bytes]]:
    with gfile.GFile(path, "rb") as handle:
        if path.endswith(".gz"):
            with gzip.GzipFile(fileobj=handle, mode="rb") as unpacked:
                yield unpacked
        elif unpack is not None:
            with unpack(handle) as unpacked:
                yield unpacked
        else:
            yield handle
