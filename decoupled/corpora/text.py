"""Plain text and JSON lines -> documents by language.

A document is a list of lines without line breaks: sentences, or paragraphs where they
are split later.

* `NAME.jsonl`: one object a line; its `text` is a document, one of them a line.
* every other name: one of them a line, an empty line between documents.

Either may be compressed: `NAME.gz`.
"""

import codecs
import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from typing import IO

from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora import locales

# A comma separates inputs only before a language: paths may have commas.
_BETWEEN_INPUTS = re.compile(rf",(?={locales.CODE}=)")

_DUMP = re.compile(r"\.xml(-[\w-]+)?(\.bz2|\.gz|\.7z)?$")
_SURROGATE = re.compile("[\ud800-\udfff]")


def find_inputs(inputs: list[str]) -> dict[str, list[str]]:
    """Language -> sorted files, from inputs such as `en=/en/*.txt,de=/de/*.jsonl`.

    Raises:
      UserError: an input is no LANGUAGE=GLOB, its language is no code
        (`locales.check_language`), it matches no file, or matches one again.
    """
    found: dict[str, list[str]] = {}
    for value in (part for given in inputs for part in _BETWEEN_INPUTS.split(given)):
        language, separator, pattern = value.partition("=")
        if not (separator and pattern and language):
            raise UserError(f"--input={value}: not of the form LANGUAGE=GLOB")
        locales.check_language(language, "--input")
        try:
            paths = [p for p in gfile.glob(pattern) if _is_file(p)]
        except gfile.OpError as error:
            raise UserError(f"--input={value}: {files.reason(error)}") from error
        if not paths:
            raise UserError(f"--input={value}: no file matches {pattern}")
        known = found.setdefault(language, [])
        again = sorted(set(known) & set(paths))
        if again:
            raise UserError(f"--input={value}: {again[0]} is given twice")
        known += paths
    return {language: sorted(paths) for language, paths in sorted(found.items())}


def is_dump(path: str) -> bool:
    """True where the name is that of a MediaWiki dump, or of a part of one.

    Packed or not: `swwiki-latest-pages-articles.xml.bz2`; large wikis come in parts,
    `enwiki-latest-pages-articles1.xml-p1p41242.bz2`.
    """
    return _DUMP.search(path) is not None


def is_json(path: str) -> bool:
    """True where the name is that of JSON lines: .jsonl or .jsonl.gz."""
    return path.endswith((".jsonl", ".jsonl.gz"))


def read_documents(path: str, part: int = 0, parts: int = 1) -> Iterator[list[str]]:
    """Yields the documents of a file; memory holds one at a time.

    Args:
      path: of the file.
      part, parts: only each `parts`-th document from number `part` on.

    Raises:
      UserError: the file is missing, damaged, not UTF-8, or a line is not the JSON it
        should be; file and line are named.
    """
    if is_json(path):
        return _read_json_lines(path, part, parts)
    documents = enumerate(_read_plain_text(path))
    return (document for number, document in documents if number % parts == part)


def clean_sentence(line: str) -> str:
    """A line without line breaks of any kind, white space in runs of one space.

    Half surrogate pairs, which JSON can hold and UTF-8 cannot, become U+FFFD.
    """
    return _SURROGATE.sub("\ufffd", " ".join(line.split()))


def _read_plain_text(path: str) -> Iterator[list[str]]:
    document = []
    for _, line in _lines(path):
        sentence = clean_sentence(line)
        if sentence:
            document.append(sentence)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _read_json_lines(path: str, part: int, parts: int) -> Iterator[list[str]]:
    for number, line in _lines(path):
        if (number - 1) % parts != part or not line.strip():
            continue
        try:
            value = files.parse_json(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON ({error.msg})") from error
        text = value.get("text") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise UserError(f'{path}:{number}: not an object with a string "text"')
        document = [clean_sentence(part) for part in text.split("\n")]
        if document := [sentence for sentence in document if sentence]:
            yield document


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and text of each line; a byte order mark is skipped."""
    number = 0
    try:
        with _open(path) as handle:
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
    except gfile.OpError as error:
        raise UserError(f"{path}: cannot read ({files.reason(error)})") from error


@contextlib.contextmanager
def _open(path: str) -> Iterator[IO[bytes]]:
    with gfile.GFile(path, "rb") as handle:
        if not path.endswith(".gz"):
            yield handle
            return
        with gzip.GzipFile(fileobj=handle, mode="rb") as unpacked:
            yield unpacked


def _is_file(path: str) -> bool:
    return not gfile.isdir(path) and not files.is_temporary(path)
