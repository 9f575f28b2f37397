"""The kinds of files that a corpus is built from: an entry of `SOURCES` for each.

A source reads a file into documents. A document is a list of lines. A line is a
paragraph if `Source.splits` is set, and a sentence otherwise. The content of a file
tells its kind, and its name does so where the content does not.

To read another kind of file, add an entry before the last one, which matches every
name.
"""

import codecs
import collections
import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from decoupled.configs.corpora import CorpusSettings
from decoupled.core import files, gfile, installed
from decoupled.core.errors import UserError
from decoupled.corpora.text_lines import clean_sentence, paragraphs, read_lines
from decoupled.corpora.unpacking import HEAD, content_command, head_of, packing_of

NO_TEXT = "row without text"
NO_LANGUAGE = "row without language"
OTHER_LANGUAGE = "row in another language"
# At most this many rows of a table are in memory as texts.
_ROWS = 256
# A message names at most this many columns.
_MAX_NAMES = 12
# A list of lines takes about its characters and this many bytes a line.
_LINE_BYTES = 64
_MAX_DOCUMENT = 64 << 20
_PACKED_ENDING = re.compile(r"\.(gz|bz2|xz|lzma|zst|7z)$")
# At most this many lines tell the kind of a file.
_MAX_HEAD_LINES = 10
_XML = re.compile(
    rb"(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?\s*(?:<!--(?:(?!-->).)*-->\s*)*"
    rb"<(?:\?xml|mediawiki)[\s>]",
    re.DOTALL,
)
# The beginning of a JSON object, alone in its line or over several lines; RFC 7464 has
# a sign before each.
_OBJECT = re.compile(rb'(?:[\[\x1e]\s*)?\{\s*(?:"(?:[^"\\]|\\.)*"\s*:|\}\s*$)', re.M)
_EXTRACTOR_LINE = re.compile(r'<doc id="[^"]*" (?:url|title)="')
_WIKI_EXTRACTOR = (
    "the output of WikiExtractor, no plain text; give the dump itself, or the output "
    "of WikiExtractor --json"
)
# As many lines with equally many tabs are a table, as many JSON arrays JSON.
_TABLE_LINES = 3
# What a file is and what to do, how its first lines begin, how many of them have to.
_FORMATS = (
    (_WIKI_EXTRACTOR, re.compile(_EXTRACTOR_LINE.pattern.encode()), 1),
    (
        "HTML, no plain text; give its text",
        re.compile(rb"<(?:!doctype html|html|head|body)\b", re.IGNORECASE),
        1,
    ),
    (
        "begins with a line of markup; remove such lines, or give another format",
        re.compile(rb"""<\w[\w:.-]*(?:\s+[\w:.-]+=(?:"[^"]*"|'[^']*'))+\s*/?>\s*$"""),
        1,
    ),
    (
        "lines of a number, a tab and a text, as those of Leipzig; cut the numbers off "
        "with cut -f2- FILE > NEW_FILE",
        re.compile(rb"\d+\t"),
        3,
    ),
    (
        "CoNLL-U, no text; give its sentences, a line each",
        re.compile(rb"# (?:(?:sent_id|text|newdoc id|newpar id) = |global\.columns)"),
        1,
    ),
    (
        "the index of a dump, no text; leave it out",
        re.compile(rb"\d+:\d+:\S"),
        3,
    ),
)


class Reading(NamedTuple):
    """What a source reads: every `parts`-th document of a file, from `part` on.

    It counts in `dropped` what it leaves out, by reason.
    """

    path: str
    language: str
    settings: CorpusSettings
    dropped: collections.Counter
    part: int = 0
    parts: int = 1


@dataclasses.dataclass(frozen=True)
class Source:
    """A kind of file.

    Attributes:
      name: for people, with the endings of file names.
      pattern: a regular expression that is searched in a path, without the ending of a
        compression. It tells the kind of a file whose content matches no source.
      reads: a `Reading` -> its documents, each a list of lines, of which memory holds a
        few. A bad file raises a UserError that names the file and the place.
      has_columns: whether settings name the columns that are read.
      splits: whether lines are paragraphs, which are split into sentences. Large files
        are then cut into parts, because cleaning takes longer than reading.
      needs: packages that read the file. A corpus also depends on their versions.
      rules: versions of the rules that turn the file into lines. Add 1 with every
        change of the lines that a file gives, so that a corpus made with older rules is
        refused. A new source needs a version too, because an older corpus may have read
        the same file as plain text.
      matches: whether the first bytes of a file's content are of this kind.
    """

    name: str
    pattern: str
    reads: Callable[[Reading], Iterator[list[str]]]
    splits: Callable[[CorpusSettings], bool]
    needs: tuple[installed.NeededModule, ...] = ()
    rules: Callable[[], tuple[int, ...]] = tuple
    matches: Callable[[bytes], bool] = lambda head: False
    has_columns: bool = False


def source_of(path: str) -> Source:
    """The source that reads a file, by its content, or else by its name.

    Raises:
      UserError: the file is an archive, or another file that holds no text.
    """
    try:
        name = _name_of_kind(path, gfile.size(path), gfile.changed_ns(path))
    except gfile.OpError:
        # Whoever reads the file says what is wrong.
        name = None
    if name is None:
        return _source_by_name(path)
    return next(source for source in SOURCES if source.name == name)


@functools.lru_cache(maxsize=1 << 16)
def _name_of_kind(path: str, size: int, changed_ns: int) -> str | None:
    head = head_of(path)
    return next((source.name for source in SOURCES if source.matches(head)), None)


def _source_by_name(path: str) -> Source:
    name = _PACKED_ENDING.sub("", path)
    return next(source for source in SOURCES if re.search(source.pattern, name))


def _read_dump(reading: Reading) -> Iterator[list[str]]:
    """A document is an article of a wiki, a line is a paragraph."""
    # Imported here: only dumps need mwparserfromhell.
    from decoupled.corpora.wikipedia import dump, wikitext

    path, _, _, dropped, *part = reading
    for article in dump.read_articles(path, dropped, *part):
        yield wikitext.article_paragraphs(article.wikitext, dropped)


def _dump_rules() -> tuple[int, ...]:
    from decoupled.corpora.wikipedia import wikitext

    return (wikitext.RULES,)


def _columns(settings: CorpusSettings) -> dict[str, str]:
    """Setting -> the column that it names; the text first."""
    columns = {"text_column": settings.text_column}
    if settings.language_column is not None:
        columns["language_column"] = settings.language_column
    return columns


def _row_documents(
    rows: Callable[..., Iterable[Sequence[str | None]]], reading: Reading
) -> Iterator[list[str]]:
    """A document is the text of a row, a line of the text is a paragraph.

    `rows` yields the values of the columns of `_columns`.
    """
    dropped = reading.dropped
    value = reading.settings.language_value(reading.language)
    for text, *languages in rows(reading, _columns(reading.settings)):
        if languages and not languages[0]:
            dropped[NO_LANGUAGE] += 1
        elif languages and languages[0] != value:
            dropped[OTHER_LANGUAGE] += 1
        elif not text or text.isspace():
            dropped[NO_TEXT] += 1
        elif document := paragraphs(text, dropped):
            yield document


def _json_rows(
    reading: Reading, columns: Mapping[str, str]
) -> Iterator[Sequence[str | None]]:
    path, seen, errors = reading.path, set(), {}
    for number, line in read_lines(path):
        if (number - 1) % reading.parts != reading.part or not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = files.parse_json(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{where}: not JSON ({error.msg}){_advice(line)}"
            ) from error
        if not isinstance(row, dict):
            raise UserError(f"{where}: not a JSON object{_advice(line)}")
        if _is_index(row):
            continue
        for setting, column in columns.items():
            if not isinstance(row.get(column), str | None):
                raise UserError(f"{where}: {column!r} is not a string")
            if column in row:
                seen.add(column)
            elif column not in errors:
                error = _column_error(where, setting, column, list(row))
                errors[column] = number, error
        # A row may lack a column, but not all rows.
        for column, (first_number, error) in errors.items():
            if column not in seen and number - first_number >= _ROWS:
                raise error
        yield [row.get(column) for column in columns.values()]
    for column, (_, error) in errors.items():
        if column not in seen:
            raise error


def _advice(line: str) -> str:
    """What to do with an array, or an object of several lines; "" for other lines."""
    if not line.startswith("[") and line.strip() != "{":
        return ""
    return "; write an object a line, for an array with jq -c '.[]' FILE > NEW_FILE"


def _is_index(row: dict) -> bool:
    """Whether a line precedes a document in a dump of CirrusSearch (Elasticsearch)."""
    return row.keys() == {"index"} and isinstance(row["index"], dict)


def _column_error(where: str, setting: str, column: str, names: list[str]) -> UserError:
    more = ", ..." if len(names) > _MAX_NAMES else ""
    shown_names = ", ".join(names[:_MAX_NAMES]) + more
    return UserError(
        f"{where}: no column {column!r} (build_corpus.{setting}); it has "
        f"{shown_names or 'none'}"
    )


def _table_rows(
    reading: Reading, columns: Mapping[str, str]
) -> Iterator[Sequence[str | None]]:
    # Imported here: only tables need pyarrow.
    import pyarrow
    from pyarrow import parquet

    path, names = reading.path, list(columns.values())
    number = -1
    try:
        with gfile.GFile(path, "rb") as handle:
            if packing := packing_of(handle.read(16)):
                raise UserError(
                    f"{path}: a table that is packed with {packing.name}; unpack it: "
                    f"{packing.command} {shlex.quote(path)} > NEW_FILE.parquet"
                )
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
                if number % reading.parts == reading.part:
                    yield row
    except gfile.OpError as error:
        # An error of the disk has a number, an error of pyarrow has none.
        if isinstance(error, OSError) and error.errno is None:
            raise _damage_error(path, number, error) from error
        raise UserError(f"{path}: cannot read ({files.reason(error)})") from error
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise _damage_error(path, number, error) from error


def _damage_error(path, row, error):
    where = f"{path}: after row {row}" if row >= 0 else path
    return UserError(f"{where}: damaged, or not Parquet ({files.reason(error)})")


def _check_column(path, schema, setting, column):
    import pyarrow

    if schema.names.count(column) != 1:
        raise _column_error(path, setting, column, schema.names)
    kind = schema.field(column).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    names = ("is_string", "is_large_string", "is_string_view")
    # Older releases have no string_view.
    checks = [getattr(pyarrow.types, x) for x in names if hasattr(pyarrow.types, x)]
    if not any(is_text(kind) for is_text in checks):
        raise UserError(f"{path}: column {column!r} holds {kind}, not texts")


def _read_plain_text(reading: Reading) -> Iterator[list[str]]:
    """A line is a sentence, an empty line separates documents."""
    for number, document in enumerate(_plain_text_documents(reading.path)):
        if number % reading.parts == reading.part:
            yield document


def _plain_text_documents(path: str) -> Iterator[list[str]]:
    _check_format(path)
    document, size = [], 0
    for number, line in read_lines(path):
        sentence = clean_sentence(line)
        if sentence.startswith("<doc ") and _EXTRACTOR_LINE.match(sentence):
            raise UserError(f"{path}:{number}: {_WIKI_EXTRACTOR}")
        if sentence:
            document.append(sentence)
            size += len(sentence) + _LINE_BYTES
        elif document:
            yield document
            document, size = [], 0
        # This bounds memory. Of a few large pieces, 1% could not be held out.
        if size > _MAX_DOCUMENT:
            raise UserError(
                f"{path}:{number}: no empty line between documents in "
                f"{len(document):,} lines ({_MAX_DOCUMENT >> 20} MiB of memory); if "
                "each line is a document, put one after each: "
                f"{content_command(path)} | sed G > NEW_FILE"
            )
    if document:
        yield document


def _check_format(path: str) -> None:
    """Raises a UserError if the name or the first lines are of another format."""
    if _PACKED_ENDING.sub("", path.lower()).endswith(".csv"):
        raise UserError(
            f"{path}: CSV, no plain text; give its texts as JSON lines or a line each"
        )
    lines = [line for line in _first_lines(head_of(path)) if line.strip()]
    for reason, pattern, count in _FORMATS:
        if len(lines) >= count and all(pattern.match(line) for line in lines[:count]):
            raise UserError(f"{path}: {reason}")
    if len(lines) >= _TABLE_LINES and all(map(_is_array, lines)):
        raise UserError(
            f"{path}: JSON arrays, no plain text; write an object with a column "
            '"text" a line'
        )
    tab_counts = {line.strip().count(b"\t") for line in lines}
    if len(lines) >= _TABLE_LINES and len(tab_counts) == 1 and tab_counts != {0}:
        raise UserError(
            f"{path}: columns between tabs, no plain text; give the column of the "
            "text, as the second: cut -f2 FILE > NEW_FILE"
        )


def _is_array(line: bytes) -> bool:
    try:
        return isinstance(files.parse_json(line), list)
    except json.JSONDecodeError:
        return False


def _first_lines(head: bytes) -> list[bytes]:
    lines = head.removeprefix(codecs.BOM_UTF8).lstrip().splitlines(keepends=True)
    complete_lines = lines if len(head) < HEAD else lines[:-1]
    return complete_lines[:_MAX_HEAD_LINES]


def _is_dump(head: bytes) -> bool:
    # UTF-16 has NUL bytes between the letters.
    return _XML.match(head.replace(b"\0", b"")) is not None


def _is_json(head: bytes) -> bool:
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    return _OBJECT.match(text) is not None


SOURCES = (
    Source(
        # Large wikis come in parts: enwiki-latest-pages-articles1.xml-p1p41242.bz2.
        name="MediaWiki dumps (.xml)",
        matches=_is_dump,
        pattern=r"\.xml(-[\w-]+)?$",
        reads=_read_dump,
        splits=lambda settings: True,
        needs=(installed.NeededModule("mwparserfromhell", purpose="MediaWiki dumps"),),
        rules=_dump_rules,
    ),
    Source(
        # As mC4, OSCAR and CirrusSearch are shared.
        name='JSON lines with a "text" in every line (.jsonl, .ndjson, .json)',
        matches=_is_json,
        pattern=r"\.(json|jsonl|ndjson)$",
        reads=functools.partial(_row_documents, _json_rows),
        has_columns=True,
        splits=lambda settings: settings.split_json,
    ),
    Source(
        # As FineWeb-2, CulturaX and wikimedia/wikipedia are shared.
        name="tables (.parquet)",
        matches=lambda head: head.startswith(b"PAR1"),
        pattern=r"\.parquet$",
        reads=functools.partial(_row_documents, _table_rows),
        has_columns=True,
        splits=lambda settings: settings.split_json,
        needs=(installed.NeededModule("pyarrow", purpose="Parquet files"),),
    ),
    Source(
        # A sentence a line, an empty line between documents.
        name="plain text (all others)",
        pattern="",
        reads=_read_plain_text,
        splits=lambda settings: settings.split_text,
    ),
)
