"""Reads files of `id<TAB>text` lines: one sentence per line, one file per language.

Users give such files as --source=aligned:..., and `build_corpus` writes them to
parallel/SPLIT/sentences. Analyses can read them without the packages that building a
corpus needs.
"""

import collections
import os
import re
from collections.abc import Iterator, Sequence

from decoupled.core import gfile
from decoupled.core.errors import UserError
from decoupled.corpora import locales
from decoupled.corpora.parallel.parallel_text import Line, ParallelText
from decoupled.corpora.text_lines import clean_sentence, read_lines

_MAX_ID = 200
_NAME = re.compile(rf"({locales.CODE})\.tsv(?:\.(?:gz|bz2|xz|lzma|zst|zip))?")


def files_of(folder: str) -> dict[str, list[str]]:
    """Language -> its files in a folder, sorted; empty where there is none."""
    names = sorted(gfile.listdir(folder)) if gfile.isdir(folder) else []
    found = collections.defaultdict(list)
    for name in names:
        if match := _NAME.fullmatch(name):
            found[match[1]].append(os.path.join(folder, name))
    return found


def read_sentences(
    folder: str, languages: Sequence[str] | None = None
) -> dict[str, dict[str, str]]:
    """The sentences of a folder in the format of parallel/SPLIT/sentences.

    Args:
      folder: has LANGUAGE.tsv, plain or compressed, of id, tab, text for two
        languages or more.
      languages: the languages to read; None for all.

    Returns:
      language -> id -> text, languages sorted, ids in the order of the file; sentences
      without text are left out.

    Raises:
      UserError: the folder lacks one of the languages, has fewer than two or two files
        of one, or a file is malformed.
    """
    found = files_of(folder)
    wanted = sorted(set(languages or found))
    if missing := [language for language in wanted if language not in found]:
        raise UserError(
            f"--languages: no {missing[0]}.tsv in {folder}; it has "
            f"{', '.join(sorted(found)) or 'no LANGUAGE.tsv'}"
        )
    if len(wanted) < 2:
        raise UserError(
            f"{folder}: {len(wanted)} languages; sentences are compared between two or "
            "more, each in a file LANGUAGE.tsv of id, tab, text"
        )
    for language in wanted:
        if len(found[language]) > 1:
            raise UserError(
                f"{folder}: {len(found[language])} files for {language} "
                f"({', '.join(map(os.path.basename, found[language]))}); remove all "
                "but one"
            )
    return {language: _read_ids(found[language][0]) for language in wanted}


def _read_ids(path: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for line in read(ParallelText("", path, "", 0, ""), collections.Counter()):
        if line.id in texts:
            raise UserError(f"{line.place}: the id {line.id!r} stands twice")
        if line.text:
            texts[line.id] = line.text
    return texts


def read(text: ParallelText, dropped: collections.Counter) -> Iterator[Line]:
    """Yields the sentences in the order of the file; blank lines are skipped.

    Args:
      text: of a file. dropped: unused, because nothing else is left out.

    Raises:
      UserError: a line is not id, tab, text, or the file cannot be read.
    """
    for number, line in read_lines(text.path):
        if not line.strip():
            continue
        place = f"{text.path}:{number}"
        columns = line.split("\t")
        identifier = columns[0].strip()
        if len(columns) != 2 or not identifier:
            raise UserError(f"{place}: not id, tab, text")
        if len(identifier) > _MAX_ID or not identifier.isprintable():
            raise UserError(
                f"{place}: the id {identifier[:40]!r} has control characters, or more "
                f"than {_MAX_ID} characters"
            )
        yield Line(identifier, clean_sentence(columns[1]), place)
