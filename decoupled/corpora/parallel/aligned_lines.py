"""Files of `id<TAB>text` lines, a file for each language, plain or compressed.

--source=aligned:FOLDER              FOLDER/LANGUAGE.tsv, also .tsv.gz, .tsv.xz, ...
--source=aligned:LANGUAGE=GLOB,...   one file for each language, of any name
"""

import os
import re
from collections.abc import Sequence

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora import locales
from decoupled.corpora.from_files import find_inputs
from decoupled.corpora.parallel.parallel_text import ParallelText
from decoupled.corpora.parallel.sentences import files_of

RULES = 2
_FLAG = "--source=aligned:"


def find(place: str, settings: ParallelTextConfig) -> list[ParallelText]:
    """The file of each language, read once for its SHA-256.

    Args:
      place: the text after "aligned:". settings: unused.

    Raises:
      UserError: `place` has another form, or a language has no file or two files.
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
    found = files_of(place)
    if not found:
        raise UserError(
            f"{_FLAG}{place}: not a folder with files LANGUAGE.tsv or LANGUAGE.tsv.gz "
            "(.bz2, .xz, .zst, .zip), nor of the form LANGUAGE=GLOB,..."
        )
    for language in found:
        locales.check_language(language, f"{_FLAG}{place}")
    return found
