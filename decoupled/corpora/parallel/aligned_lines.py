"""Files of `id<TAB>text` lines, a file for each language, plain or .gz.

--source=aligned:FOLDER              FOLDER/LANGUAGE.tsv or FOLDER/LANGUAGE.tsv.gz
--source=aligned:LANGUAGE=GLOB,...   one file for each language, of any name
"""

import collections
import os
import re
from collections.abc import Iterator, Sequence

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora import locales
from decoupled.corpora.from_files import find_inputs
from decoupled.corpora.parallel.parallel_text import Line, ParallelText
from decoupled.corpora.sources import clean_sentence, read_lines

RULES = 1
_FLAG = "--source=aligned:"
_MAX_ID = 200
_NAME = re.compile(rf"({locales.CODE})\.tsv(?:\.gz)?")


def find(place: str, settings: ParallelTextConfig) -> list[ParallelText]:
    """The file of each language, read once for its SHA-256.

    Args:
      place: what follows "aligned:". settings: unused.

    Raises:
      UserError: `place` has another form, or a language has no file or two.
    """
    found = []
    for language, paths in sorted(_paths(place).items()):
        if len(paths) > 1:
            raise UserError(
                f"{_FLAG}{place}: {len(paths)} files for {language} ({paths[0]}, "
                f"{paths[1]}); aligned text is one file a language"
            )
        try:
            sha256, size = files.file_fingerprint(paths[0]), gfile.size(paths[0])
        except gfile.OpError as error:
            raise UserError(
                f"{paths[0]}: cannot read ({files.reason(error)})"
            ) from error
        name = os.path.basename(paths[0])
        found.append(ParallelText(language, paths[0], sha256, size, name))
    return found


def _paths(place: str) -> dict[str, Sequence[str]]:
    if re.match(rf"{locales.CODE}=", place):
        return find_inputs([place], _FLAG)
    names = sorted(gfile.listdir(place)) if gfile.isdir(place) else []
    found = collections.defaultdict(list)
    for name in names:
        if match := _NAME.fullmatch(name):
            found[match[1]].append(os.path.join(place, name))
    if not found:
        raise UserError(
            f"{_FLAG}{place}: not a folder with files LANGUAGE.tsv or LANGUAGE.tsv.gz, "
            "nor of the form LANGUAGE=GLOB,..."
        )
    for language in found:
        locales.check_language(language, f"{_FLAG}{place}")
    return found


def read(text: ParallelText, dropped: collections.Counter) -> Iterator[Line]:
    """The sentences in the order of the file; lines with nothing but space are skipped.

    Args:
      text: of a file. dropped: unused, nothing else is left out.

    Raises:
      UserError: a line is not id, tab, text, or the file cannot be read.
    """
    for number, line in read_lines(text.path):
        if not line.strip():
            continue
        place = f"{text.path}:{number}"
        columns = line.rstrip("\r\n").split("\t")
        identifier = columns[0].strip()
        if len(columns) != 2 or not identifier:
            raise UserError(f"{place}: not id, tab, text")
        if len(identifier) > _MAX_ID or not identifier.isprintable():
            raise UserError(
                f"{place}: the id {identifier[:40]!r} has control characters, or more "
                f"than {_MAX_ID} characters"
            )
        yield Line(identifier, clean_sentence(columns[1]), place)
