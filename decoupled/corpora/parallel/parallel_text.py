"""Parallel text: files of sentences with ids, groups, their splits, Bible books.

An id is the same in every language. For example, `01002003` is verse 3 of chapter 2 of
the first book. The group of an id (a chapter, a page) is held out as a whole, in all
languages. The choice depends only on the group's name and a seed.

A file has a sentence a line, `id<TAB>text`, and one language:

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

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import gfile
from decoupled.core.errors import UserError
from decoupled.corpora import locales
from decoupled.corpora.corpus import hash_bits, split_at
from decoupled.corpora.input_files import InputFile, describe_files, find_inputs
from decoupled.corpora.text_lines import clean_sentence, read_lines

TRAIN, DEV, TEST = "train", "dev", "test"
HELD_OUT = (DEV, TEST)

_BIBLE = re.compile(r"(?P<chapter>[0-9]{5})[0-9]{3}(?:[-–](?P=chapter)[0-9]{3})?")
# Everything before merged verses or sentences: the chapter of GEN.1.4-5, the page of
# page7#4-5. Two numbers alone, as in 2010-05 and 1.2-3, are of two levels.
_BEFORE_MERGED = re.compile(
    r"(.*[^\W_][\W_]+\d+(?=[.:])|.*[^\W_](?=#))[.:#]\d+[a-z]?(?:[-–,]\d+[a-z]?)+"
)
# Everything before the last separator: the chapter of GEN.1.2, the page of page_7#4.
_BEFORE_LAST = re.compile(r"(.*[^\W_])[\W_]+[^\W_]+")


def group_of(identifier: str, pattern: str | None, place: str) -> str:
    """The group of an id.

    Args:
      pattern: as `ParallelTextConfig.group`. With None, the group of a Bible's id is
        its book and chapter; of other ids it is everything before the last separator,
        or before merged verses.
      place: the position of the id, for messages.
    """
    if pattern is not None:
        match = re.match(pattern, identifier)
        group = match and (match[1] if match.re.groups else match[0])
        if not group:
            raise UserError(
                f"{place}: ParallelTextConfig.group = {pattern!r} finds nothing at the "
                f"beginning of the id {identifier!r}"
            )
        return group
    if match := _BIBLE.fullmatch(identifier):
        return match["chapter"]
    match = _BEFORE_MERGED.fullmatch(identifier) or _BEFORE_LAST.fullmatch(identifier)
    if match is None:
        raise UserError(
            f"{place}: the id {identifier!r} is no BBCCCVVV and has no separator as "
            "GEN.1.1 has; set ParallelTextConfig.group to a regular expression that "
            "finds the chapter or page in it"
        )
    return match[1]


def split_of(group: str, settings: ParallelTextConfig) -> str:
    """ "train", "dev" or "test": a function of the group and of the settings."""
    place = position(group, settings.seed)
    return split_at(place, settings.test_share, settings.dev_share)


def position(name: str, seed: int) -> float:
    """A pseudo-random number in [0, 1) that depends only on the arguments."""
    return hash_bits(f"{seed}\t{name}") / 2**64


def choose(ids: Sequence[str], max_count: int, seed: int) -> list[str]:
    """At most `max_count` of the ids, in their order.

    The choice depends on ids and seed alone: it is equal for languages with equal ids.
    """
    if len(ids) <= max_count:
        return list(ids)
    choice = set(sorted(ids, key=lambda name: (position(name, seed), name))[:max_count])
    return [name for name in ids if name in choice]


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
    """Language -> its file, read for its SHA-256; `place` stands after "aligned:"."""
    if re.match(rf"{locales.CODE}=", place):
        paths_by_language = find_inputs([place], _FLAG)
    else:
        paths_by_language = _files_of(place)
    if not paths_by_language:
        raise UserError(
            f"{_FLAG}{place}: not a folder with files LANGUAGE.tsv or LANGUAGE.tsv.gz "
            "(.bz2, .xz, .zst), nor of the form LANGUAGE=GLOB,..."
        )
    for language, paths in paths_by_language.items():
        locales.check_language(language, f"{_FLAG}{place}")
        if len(paths) > 1:
            raise UserError(
                f"{_FLAG}{place}: {len(paths)} files for {language} ({paths[0]}, "
                f"{paths[1]}); aligned text is one file a language"
            )
    files_by_language = describe_files(dict(sorted(paths_by_language.items())))
    return {language: file for language, (file,) in files_by_language.items()}


def read_sentences(
    folder: str, languages: Sequence[str] | None = None
) -> dict[str, dict[str, str]]:
    """The sentences of a folder with LANGUAGE.tsv, plain or compressed.

    Returns:
      language -> id -> text, languages sorted, ids in the order of the file; sentences
      without text are left out.
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
    """Yields the sentences in the order of the file; blank lines are skipped."""
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
