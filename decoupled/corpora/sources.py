"""The kinds of files that a corpus is built from: an entry of `SOURCES` for each.

A source reads a file into documents. A document is a list of lines: paragraphs, if the
source says that they are split into sentences, or sentences.

To read another kind of file, add an entry before the last one, which takes every name.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Callable, Iterator

from decoupled.configs.corpora import TextSettings
from decoupled.core import files, installed
from decoupled.core.errors import UserError
from decoupled.corpora.text_lines import clean_sentence, read_lines


@dataclasses.dataclass(frozen=True)
class Source:
    """A kind of file.

    Attributes:
      name: for people, with the endings of file names. pattern: a regular expression
        that is searched in a path to tell the kind.
      reads: (path, dropped, part, parts) -> the documents of a file, each a list of
        lines. It yields every `parts`-th document from number `part` on, holds one in
        memory, and counts in `dropped` what it leaves out, by reason. It raises a
        UserError that names the file and the place where the file is bad.
      splits: whether lines are paragraphs, which are split into sentences. Large files
        are then cut into parts, because cleaning takes longer than reading.
      needs: packages that read the file. A corpus also depends on their versions.
      rules: versions of the rules that turn the file into lines. Whoever changes what a
        file becomes adds 1, so that a corpus of older rules is refused. A new source
        has one too: the same file may be in a corpus that read it as plain text.
    """

    name: str
    pattern: str
    reads: Callable[[str, collections.Counter, int, int], Iterator[list[str]]]
    splits: Callable[[TextSettings], bool]
    needs: tuple[installed.Package, ...] = ()
    rules: Callable[[], tuple[int, ...]] = tuple


def source_of(path: str) -> Source:
    """The source that reads a file, by its path."""
    return next(source for source in SOURCES if re.search(source.pattern, path))


def read_dump(
    path: str, dropped: collections.Counter, part: int, parts: int
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
    path: str, dropped: collections.Counter, part: int, parts: int
) -> Iterator[list[str]]:
    """As `Source.reads`: a document is the `text` of an object, a paragraph a line.

    Raises:
      UserError: a line is not the JSON that it should be, or as `read_plain_text`.
    """
    for number, line in read_lines(path):
        if (number - 1) % parts != part or not line.strip():
            continue
        try:
            value = files.parse_json(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON ({error.msg})") from error
        text = value.get("text") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise UserError(f'{path}:{number}: not an object with a string "text"')
        document = [clean_sentence(line) for line in text.split("\n")]
        if document := [sentence for sentence in document if sentence]:
            yield document


def read_plain_text(
    path: str, dropped: collections.Counter, part: int, parts: int
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
        # A sentence a line, an empty line between documents.
        name="plain text (all other names, also .gz)",
        pattern="",
        reads=read_plain_text,
        splits=lambda settings: settings.split_text,
    ),
)
