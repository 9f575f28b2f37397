"""Files of `id<TAB>text` lines: one sentence per line, one file per language.

    --source=aligned:FOLDER              FOLDER/LANGUAGE.tsv, also .tsv.gz, .tsv.xz, ...
    --source=aligned:LANGUAGE=GLOB,...   one file for each language, of any name

`build_corpus` also writes such files, to parallel/SPLIT/sentences. Analyses read them
without the packages that building a corpus needs.
"""

import collections
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from decoupled.core import gfile
from decoupled.core.errors import UserError
from decoupled.corpora import locales
from decoupled.corpora.input_files import InputFile, describe_files, find_inputs
from decoupled.corpora.text_lines import clean_sentence, read_lines

PREFIX = "aligned:"
_FLAG = f"--source={PREFIX}"
_MAX_ID = 200
_NAME = re.compile(rf"({locales.CODE})\.tsv(?:\.(?:gz|bz2|xz|lzma|zst|zip))?")


class SentenceLine(NamedTuple):
    """A clean sentence, which may be empty. place: its position, for messages."""

    id: str
    text: str
    place: str


def find(place: str) -> dict[str, InputFile]:
    """Language -> its file, read once for its SHA-256; `place` stands after "aligned:".

    Raises:
      UserError: `place` has another form, or a language has no file or two files.
    """
    if re.match(rf"{locales.CODE}=", place):
        by_language = find_inputs([place], _FLAG)
    else:
        by_language = _files_of(place)
    if not by_language:
        raise UserError(
            f"{_FLAG}{place}: not a folder with files LANGUAGE.tsv or LANGUAGE.tsv.gz "
            "(.bz2, .xz, .zst, .zip), nor of the form LANGUAGE=GLOB,..."
        )
    for language, paths in by_language.items():
        locales.check_language(language, f"{_FLAG}{place}")
        if len(paths) > 1:
            raise UserError(
                f"{_FLAG}{place}: {len(paths)} files for {language} ({paths[0]}, "
                f"{paths[1]}); aligned text is one file a language"
            )
    described = describe_files(dict(sorted(by_language.items())))
    return {language: file for language, (file,) in described.items()}


def read_sentences(
    folder: str, languages: Sequence[str] | None = None
) -> dict[str, dict[str, str]]:
    """The sentences of a folder with LANGUAGE.tsv, plain or compressed.

    Returns:
      language -> id -> text, languages sorted, ids in the order of the file; sentences
      without text are left out.

    Raises:
      UserError: the folder lacks one of the languages, has fewer than two or two files
        of one, or a file is malformed.
    """
    paths = _files_of(folder)
    languages = sorted(set(languages or paths))
    if missing := [language for language in languages if language not in paths]:
        raise UserError(
            f"--languages: no {missing[0]}.tsv in {folder}; it has "
            f"{', '.join(sorted(paths)) or 'no LANGUAGE.tsv'}"
        )
    if len(languages) < 2:
        raise UserError(
            f"{folder}: {len(languages)} languages; sentences are compared between two "
            "or more, each in a file LANGUAGE.tsv of id, tab, text"
        )
    for language in languages:
        if len(paths[language]) > 1:
            raise UserError(
                f"{folder}: {len(paths[language])} files for {language} "
                f"({', '.join(map(os.path.basename, paths[language]))}); remove all "
                "but one"
            )
    return {language: _read_ids(paths[language][0]) for language in languages}


def _files_of(folder: str) -> dict[str, list[str]]:
    names = sorted(gfile.listdir(folder)) if gfile.isdir(folder) else []
    paths = collections.defaultdict(list)
    for name in names:
        if match := _NAME.fullmatch(name):
            paths[match[1]].append(os.path.join(folder, name))
    return paths


def _read_ids(path: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for line in read(path):
        if line.id in texts:
            raise UserError(f"{line.place}: the id {line.id!r} is repeated")
        if line.text:
            texts[line.id] = line.text
    return texts


def read(path: str) -> Iterator[SentenceLine]:
    """Yields the sentences in the order of the file; blank lines are skipped.

    Raises:
      UserError: a line is not id, tab, text, or the file cannot be read.
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        columns = line.split("\t")
        identifier = columns[0].strip()
        if len(columns) != 2 or not identifier:
            raise UserError(f"{place}: not id, tab, text")
        if len(identifier) > _MAX_ID or not identifier.isprintable():
            raise UserError(
                f"{place}: the id {identifier[:40]!r} has control characters, or more "
                f"than {_MAX_ID} characters"
            )
        yield SentenceLine(identifier, clean_sentence(columns[1]), place)
