"""The kinds of files that a corpus is built from: an entry of `SOURCES` for each.

A source reads a file into documents. A document is a list of lines. A line is a
paragraph if `Source.splits` is set, and a sentence otherwise.

To read another kind of file, add an entry before the last one, which matches every
name.
"""

import collections
import contextlib
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO

from decoupled.configs.corpora import TextSettings
from decoupled.core import files, gfile, installed
from decoupled.core.errors import UserError
from decoupled.corpora.text_lines import (
    clean_sentence,
    is_damage,
    read_lines,
)

NO_TEXT = "row without text"
NO_LANGUAGE = "row without language"
OTHER_LANGUAGE = "row in another language"
# At most this many rows of a table are in memory as texts; a message names at most this
# many columns or values; it takes the values from this many rows.
_ROWS = 256
_SHOWN = 12
_SEEN_ROWS = 10_000


@dataclasses.dataclass(frozen=True)
class Source:
    """A kind of file.

    Attributes:
      name: for people, with the endings of file names. pattern: a regular expression
        that is searched in a path to tell the kind.
      reads: (path, language, settings, dropped, part, parts) -> the documents of a file
        in a language, each a list of lines. It yields every `parts`-th document from
        number `part` on, holds a few in memory, and counts in `dropped` what it leaves
        out, by reason. For a bad file it raises a UserError that names the file and the
        place of the error.
      splits: whether lines are paragraphs, which are split into sentences. Large files
        are then cut into parts, because cleaning takes longer than reading.
      needs: packages that read the file. A corpus also depends on their versions.
      rules: versions of the rules that turn the file into lines. Add 1 with every
        change of the lines that a file gives, so that a corpus made with older rules is
        refused. A new source needs a version too, because an older corpus may have read
        the same file as plain text.
    """

    name: str
    pattern: str
    reads: Callable[
        [str, str, TextSettings, collections.Counter, int, int], Iterator[list[str]]
    ]
    splits: Callable[[TextSettings], bool]
    needs: tuple[installed.Package, ...] = ()
    rules: Callable[[], tuple[int, ...]] = tuple


def source_of(path: str) -> Source:
    """The source that reads a file, by its path."""
    return next(source for source in SOURCES if re.search(source.pattern, path))


def language_values(path: str, settings: TextSettings) -> list[str]:
    """Some values of the language column in the first rows of a file, for a message."""
    # The language column is read as if it were the text column.
    columns = {"text_column": settings.language_column}
    columns |= {"language_column": None, "language_values": None}
    as_texts = dataclasses.replace(settings, **columns)
    rows = source_of(path).reads(path, "", as_texts, collections.Counter(), 0, 1)
    seen = itertools.islice(rows, _SEEN_ROWS)
    return sorted({value for lines in seen for value in lines})[:_SHOWN]


def read_dump(
    path: str,
    language: str,
    settings: TextSettings,
    dropped: collections.Counter,
    part: int,
    parts: int,
) -> Iterator[list[str]]:
    """As `Source.reads`: a document is an article of a wiki."""
    # Imported here: only dumps need mwparserfromhell.
    from decoupled.corpora.wikipedia import dump, wikitext

    for article in dump.read_articles(path, dropped, part, parts):
        yield wikitext.article_paragraphs(article.wikitext, dropped)


def _dump_rules() -> tuple[int, ...]:
    from decoupled.corpora.wikipedia import wikitext

    return (wikitext.RULES,)


def read_json_lines(
    path: str,
    language: str,
    settings: TextSettings,
    dropped: collections.Counter,
    part: int,
    parts: int,
) -> Iterator[list[str]]:
    """As `Source.reads`: a document is the text of an object, a paragraph is a line.

    Raises:
      UserError: a line is not the expected JSON; or as `read_plain_text`.
    """
    rows = _json_rows(path, _columns(settings), part, parts)
    return _row_documents(rows, language, settings, dropped)


def _columns(settings: TextSettings) -> dict[str, str]:
    """Setting -> the column that it names; the text first."""
    columns = {"text_column": settings.text_column}
    if settings.language_column is not None:
        columns["language_column"] = settings.language_column
    return columns


def _row_documents(
    rows: Iterable[Sequence[str | None]],
    language: str,
    settings: TextSettings,
    dropped: collections.Counter,
) -> Iterator[list[str]]:
    """The documents of rows, which are values of the columns of `_columns`."""
    wanted = settings.language_value(language)
    for text, *languages in rows:
        if languages and not languages[0]:
            dropped[NO_LANGUAGE] += 1
        elif languages and languages[0] != wanted:
            dropped[OTHER_LANGUAGE] += 1
        elif text is None:
            dropped[NO_TEXT] += 1
        elif document := _paragraphs(text):
            yield document


def _paragraphs(text: str) -> list[str]:
    lines = [clean_sentence(line) for line in text.split("\n")]
    return [line for line in lines if line]


def _json_rows(
    path: str, columns: Mapping[str, str], part: int, parts: int
) -> Iterator[Sequence[str | None]]:
    unpack = _zstandard if path.endswith(".zst") else None
    for number, line in read_lines(path, unpack):
        if (number - 1) % parts != part or not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = files.parse_json(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{where}: not JSON ({error.msg})") from error
        if not isinstance(row, dict):
            raise UserError(f"{where}: not a JSON object")
        for setting, column in columns.items():
            if column not in row:
                raise _missing(where, setting, column, list(row))
            if not isinstance(row[column], str | None):
                raise UserError(f"{where}: {column!r} is not a string")
        yield [row[column] for column in columns.values()]


def _missing(where: str, setting: str, column: str, names: list[str]) -> UserError:
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return UserError(
        f"{where}: no column {column!r} (build_corpus.{setting}); it has "
        f"{shown or 'none'}"
    )


@contextlib.contextmanager
def _zstandard(handle: IO[bytes]) -> Iterator[IO[bytes]]:
    import pyarrow

    with pyarrow.CompressedInputStream(handle, "zstd") as unpacked:
        yield io.BufferedReader(unpacked)


def read_parquet(
    path: str,
    language: str,
    settings: TextSettings,
    dropped: collections.Counter,
    part: int,
    parts: int,
) -> Iterator[list[str]]:
    """As `Source.reads`: a document is the text of a row, a paragraph is a line.

    Raises:
      UserError: the file is missing or damaged, or lacks a text column of that name.
    """
    rows = _table_rows(path, _columns(settings), part, parts)
    return _row_documents(rows, language, settings, dropped)


def _table_rows(
    path: str, columns: Mapping[str, str], part: int, parts: int
) -> Iterator[Sequence[str | None]]:
    # Imported here: only tables need it.
    import pyarrow
    from pyarrow import parquet

    names = list(columns.values())
    number = -1
    try:
        with gfile.GFile(path, "rb") as handle:
            # Damaged text may go unnoticed if the checksums (if any) are not verified.
            table = parquet.ParquetFile(
                pyarrow.PythonFile(handle, mode="r"), page_checksum_verification=True
            )
            for setting, column in columns.items():
                _check_column(path, table.schema_arrow, setting, column)
            rows = (
                row
                for batch in table.iter_batches(_ROWS, columns=names)
                # A batch has the order of the table.
                for row in zip(
                    *(batch.column(name).to_pylist() for name in names), strict=True
                )
            )
            for number, row in enumerate(rows):
                if number % parts == part:
                    yield row
    except gfile.OpError as error:
        if is_damage(error):
            raise _damaged(path, number, error) from error
        raise UserError(f"{path}: cannot read ({files.reason(error)})") from error
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise _damaged(path, number, error) from error


def _damaged(path, row, error):
    where = f"{path}: after row {row}" if row >= 0 else path
    return UserError(f"{where}: damaged, or not Parquet ({files.reason(error)})")


def _check_column(path, schema, setting, column):
    import pyarrow

    if schema.names.count(column) != 1:
        raise _missing(path, setting, column, schema.names)
    kind = schema.field(column).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    texts = (pyarrow.types.is_string, pyarrow.types.is_large_string)
    if not any(is_text(kind) for is_text in texts):
        raise UserError(f"{path}: column {column!r} holds {kind}, not texts")


def read_plain_text(
    path: str,
    language: str,
    settings: TextSettings,
    dropped: collections.Counter,
    part: int,
    parts: int,
) -> Iterator[list[str]]:
    """As `Source.reads`: a sentence a line, an empty line between documents.

    Raises:
      UserError: the file is missing, damaged, or not UTF-8.
    """
    for number, document in enumerate(_plain_text_documents(path)):
        if number % parts == part:
            yield document


def _plain_text_documents(path: str) -> Iterator[list[str]]:
    document = []
    for _, line in read_lines(path):
        sentence = clean_sentence(line)
        if sentence:
            document.append(sentence)
        elif document:
            yield document
            document = []
    if document:
        yield document


SOURCES = (
    Source(
        # Large wikis come in parts: enwiki-latest-pages-articles1.xml-p1p41242.bz2.
        # `dump_stream` says why .7z cannot be read.
        name="MediaWiki dumps (.xml, .xml.bz2, .xml.gz)",
        pattern=r"\.xml(-[\w-]+)?(\.bz2|\.gz|\.7z)?$",
        reads=read_dump,
        splits=lambda settings: True,
        needs=(installed.Package("mwparserfromhell", purpose="MediaWiki dumps"),),
        rules=_dump_rules,
    ),
    Source(
        name='JSON lines with a "text" in every line (.jsonl, .jsonl.gz)',
        pattern=r"\.jsonl(\.gz)?$",
        reads=read_json_lines,
        splits=lambda settings: settings.split_json,
    ),
    Source(
        # As mC4 names them.
        name="the same under other names (.json, .json.gz)",
        pattern=r"\.json(\.gz)?$",
        reads=read_json_lines,
        splits=lambda settings: settings.split_json,
        rules=lambda: (1,),
    ),
    Source(
        # As OSCAR has them.
        name="the same, packed with Zstandard (.jsonl.zst, .json.zst)",
        pattern=r"\.jsonl?\.zst$",
        reads=read_json_lines,
        splits=lambda settings: settings.split_json,
        needs=(installed.Package("pyarrow", purpose="Zstandard files"),),
        rules=lambda: (1,),
    ),
    Source(
        # As FineWeb-2, CulturaX and wikimedia/wikipedia are shared.
        name="tables (.parquet)",
        pattern=r"\.parquet$",
        reads=read_parquet,
        splits=lambda settings: settings.split_json,
        needs=(installed.Package("pyarrow", purpose="Parquet files"),),
        rules=lambda: (1,),
    ),
    Source(
        # A sentence a line, an empty line between documents.
        name="plain text (all other names, also .gz)",
        pattern="",
        reads=read_plain_text,
        splits=lambda settings: settings.split_text,
    ),
)
