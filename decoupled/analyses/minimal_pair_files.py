"""Files of minimal pairs: BLiMP's JSON lines and MultiBLiMP's tables.

A line of BLiMP (Warstadt et al. 2020), `*.jsonl`:

  {"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps.",
   "field": "syntax", "linguistics_term": "agreement", "UID": "regular_plural"}

A file of MultiBLiMP (Jumelet et al. 2025), `LANGUAGE/data.tsv` or `LANGUAGE.tsv`,
begins with a line of column names. The columns `sen`, `wrong_sen` and `phenomenon` are
read. Cells are quoted as by Python's csv.writer. Other entries and columns of either
kind are ignored.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from decoupled.core import files, gfile
from decoupled.core.errors import UserError

_COLUMNS = ("sen", "wrong_sen", "phenomenon")
_ENTRIES = ("sentence_good", "sentence_bad", "field", "linguistics_term", "UID")


class MinimalPair(NamedTuple):
    """An acceptable and an unacceptable sentence.

    field: of linguistics, or the language. phenomenon: within the field. paradigm:
    within the phenomenon; the phenomenon itself if there is no finer division.
    where: file and line.
    """

    good: str
    bad: str
    field: str
    phenomenon: str
    paradigm: str
    where: str


def find_files(paths: Sequence[str]) -> list[str]:
    """The given files, and the files in the given folders and one level below them.

    Raises:
      UserError: a path is missing, of another kind or given twice, or a folder has no
        file of minimal pairs.
    """
    found = []
    for path in paths:
        own = [path]
        if gfile.isdir(path):
            patterns = ("*.jsonl", "*.tsv", "*/*.jsonl", "*/*.tsv")
            folder = gfile.escape(path)
            own = [
                name
                for pattern in patterns
                for name in gfile.glob(os.path.join(folder, pattern))
            ]
            if not own:
                raise UserError(f"{path}: has neither *.jsonl nor *.tsv")
        found += own
    for path in found:
        if not path.endswith((".jsonl", ".tsv")):
            raise UserError(f"{path}: is neither .jsonl (BLiMP) nor .tsv (MultiBLiMP)")
        if found.count(path) > 1:
            raise UserError(f"{path}: is given twice")
    return found


def read_pairs(path: str) -> list[MinimalPair]:
    """Reads a file.

    Raises:
      UserError: the file is missing, empty or not UTF-8; a line lacks an entry or is
        malformed. File, line and column are named.
    """
    read = _read_lines if path.endswith(".jsonl") else _read_table
    pairs = list(read(path, files.read_text(path).removeprefix("\ufeff")))
    if not pairs:
        raise UserError(f"{path}: holds no minimal pairs")
    return pairs


def _read_lines(path: str, text: str) -> Iterator[MinimalPair]:
    # Not splitlines(): JSON may hold U+2028 as it is.
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        entry = files.parse_json_line(line, where)
        if not isinstance(entry, dict):
            raise UserError(f"{where}: not an object with {', '.join(_ENTRIES)}")
        for name in _ENTRIES:
            if not isinstance(entry.get(name), str) or not entry[name].strip():
                raise UserError(f'{where}: "{name}" is missing, empty or no text')
        yield _checked(MinimalPair(*(entry[name] for name in _ENTRIES), where))


def _read_table(path: str, text: str) -> Iterator[MinimalPair]:
    stem = os.path.splitext(os.path.basename(path))[0]
    folder = os.path.basename(os.path.dirname(path))
    language = folder if folder and stem == "data" else stem
    # A quote without its partner does not swallow lines.
    reader = files.csv_reader(text, "\t")
    try:
        header = next(reader, [])
        for name in _COLUMNS:
            if header.count(name) != 1:
                raise UserError(
                    f"{path}:1: must have one column {name!r}; its columns are "
                    f"{', '.join(header)}"
                )
        places = [header.index(name) for name in _COLUMNS]
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{where}: {len(cells)} columns, but the first line has "
                    f"{len(header)}"
                )
            good, bad, phenomenon = (cells[place] for place in places)
            for name, cell in zip(_COLUMNS, (good, bad, phenomenon), strict=True):
                if not cell.strip():
                    raise UserError(f"{where}: column {name!r} is empty")
            yield _checked(
                MinimalPair(good, bad, language, phenomenon, phenomenon, where)
            )
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise UserError(f"{where}: not a table ({files.reason(error)})") from error


def _checked(pair: MinimalPair) -> MinimalPair:
    if pair.good == pair.bad:
        raise UserError(f"{pair.where}: both sentences are {pair.good!r}")
    return pair
