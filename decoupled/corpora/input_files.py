"""Finds the input files of each language, and reads them once for their SHA-256."""

import concurrent.futures
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora import locales

_SURROGATE = re.compile("[\ud800-\udfff]")
# A comma separates inputs only before a language: paths may have commas.
_BETWEEN_INPUTS = re.compile(rf",(?={locales.CODE}=)")
# Number of files that are read at once; most of the time is spent on reading.
FILES_AT_ONCE = 8


class InputFile(NamedTuple):
    """An input file; size in bytes."""

    path: str
    sha256: str
    size: int


def find_inputs(inputs: list[str], flag: str = "--input=") -> dict[str, list[str]]:
    """Language -> sorted files, from inputs such as `en=/en/*.txt,de=/de/*.jsonl`.

    `flag` stands before an input in messages.
    """
    paths_by_language: dict[str, list[str]] = {}
    for value in (part for text in inputs for part in _BETWEEN_INPUTS.split(text)):
        language, separator, pattern = value.partition("=")
        if not (separator and pattern and language):
            raise UserError(f"{flag}{value}: not of the form LANGUAGE=GLOB")
        locales.check_language(language, flag.rstrip("=:"))
        try:
            # A name may have signs of a pattern: "dump [1].txt".
            is_name = gfile.exists(pattern)
            paths = [pattern] if is_name else gfile.glob("", pattern)
            paths = list(filter(_is_file, paths))
        except gfile.OpError as error:
            raise UserError(f"{flag}{value}: {files.reason(error)}") from error
        if not paths:
            raise UserError(f"{flag}{value}: no file matches {pattern}")
        for path in paths:
            # Python's form of a name that is not UTF-8; no manifest could hold it.
            if _SURROGATE.search(path):
                raise UserError(
                    f"{flag}{value}: the name of {path!r} is not UTF-8; rename the file"
                )
        language_paths = paths_by_language.setdefault(language, [])
        if repeated_paths := sorted(set(language_paths) & set(paths)):
            raise UserError(f"{flag}{value}: {repeated_paths[0]} is given twice")
        language_paths += paths
    return {name: sorted(paths) for name, paths in sorted(paths_by_language.items())}


def _is_file(path: str) -> bool:
    return not gfile.isdir(path) and not files.is_temporary(path)


def describe_files(
    paths: Mapping[str, Sequence[str]],
) -> dict[str, list[InputFile]]:
    """Language -> its files with their SHA-256."""
    # A file that mixes languages is given for each of them.
    all_paths = list(dict.fromkeys(path for each in paths.values() for path in each))
    with concurrent.futures.ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        input_files = pool.map(_describe_file, all_paths)
        tracked = console.track(input_files, "checking the input files", len(all_paths))
        files_by_path = dict(zip(all_paths, tracked, strict=True))
    return {
        name: [files_by_path[path] for path in each] for name, each in paths.items()
    }


def _describe_file(path: str) -> InputFile:
    size = gfile.size(path)
    return InputFile(path, files.file_fingerprint(path), size)
