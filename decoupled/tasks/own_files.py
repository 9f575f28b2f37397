"""Files of one's own tasks: tables with texts and labels, and columns with tags.

`OwnTaskConfig` says where the files lie and which columns they have. Errors name file,
line and column.
"""

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from decoupled.configs.finetuning import ENTITY_TAG, REGRESSION, TAGGING, OwnTaskConfig
from decoupled.core import files, gfile
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS, LabelReader, look
from decoupled.core.tab_separated import is_quoted, read_rows, unquoted
from decoupled.tasks.classification_files import LabelledTexts
from decoupled.tasks.tagging_files import TaggedSentence
from decoupled.xtreme.files import is_language

SPLITS = ("train", "dev", "test")
_LANGUAGE = "{language}"
_SHOWN, _LISTED = 40, 400
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST_NUMBER = 3.4e38
# CoNLL-U: words of several syntactic words (1-2), and words that are not in the text.
_NO_WORD = re.compile(r"\d+[-.]\d+")
# Lines above a sentence in files without comments: `# id 12ab\tdomain=train` of
# MultiCoNER, `# sent_id = 3`.
_COMMENT = re.compile(r"# (id \S+[ \t]+domain=|\S+ = |\S+ =$|newdoc|newpar)")

Column = str | int


def pattern_of(config: OwnTaskConfig, split: str) -> str:
    """The path of a split's files below --data_dir, with {language} in it."""
    return config.files.replace("{split}", config.splits[SPLITS.index(split)])


def find_languages(config: OwnTaskConfig, data_dir: str, split: str) -> dict[str, str]:
    """Language -> its file of a split, training languages first.

    A file with all splits is the file of each split.
    """
    pattern = pattern_of(config, split)
    first, *_ = config.training_languages
    if _LANGUAGE not in pattern:
        path = os.path.join(data_dir, pattern)
        return {first: path} if files.exists(path) else {}
    found = dict(_matches(data_dir, pattern.split("/"), None))
    trained = [name for name in config.training_languages if name in found]
    return {name: found[name] for name in (*trained, *sorted(set(found) - {*trained}))}


def _matches(folder, parts, language) -> Iterator[tuple[str, str]]:
    """The languages and paths that the rest of a pattern matches below a folder."""
    part, *rest = parts
    if language is not None:
        part = part.replace(_LANGUAGE, language)
    if _LANGUAGE not in part:
        found = [(language, part)]
    else:
        before, *others = map(re.escape, part.split(_LANGUAGE))
        regular = before + "(?P<language>.+)" + "(?P=language)".join(others)
        names = gfile.listdir(folder) if gfile.isdir(folder) else []
        # Folders of gs:// end in a slash.
        matches = (re.fullmatch(regular, name.rstrip("/")) for name in sorted(names))
        found = [(m["language"], m[0]) for m in matches if m]
        found = [pair for pair in found if is_language(pair[0])]
    for name, entry in found:
        path = os.path.join(folder, entry)
        if rest:
            yield from _matches(path, rest, name)
        elif _LANGUAGE in part or files.exists(path):
            # An entry of a part with a language was listed, so that it exists.
            yield name, path


class _Row(NamedTuple):
    line: int
    values: dict[Column, Any]


def read_texts(
    path: str, config: OwnTaskConfig, split: str, labels: LabelReader
) -> list[LabelledTexts]:
    """The rows of a split in a file, in its order.

    Args:
      labels: knows or collects the labels; numbers are not read by it.

    Raises:
      UserError: the file is missing, empty, not UTF-8 or malformed; or a text is empty,
        a label is unknown or is not a number, or labels are missing in a file other
        than a test file.
    """
    rows = list(_rows_of_split(path, config, split))
    if not rows:
        raise UserError(f"{path}: holds no example of {split}")
    has_labels = config.label in rows[0].values
    if not has_labels and split != "test":
        raise _error(path, rows[0].line, config.label, "is missing; only tests may")
    return [_example(path, row, config, labels, has_labels) for row in rows]


def splits_of(path: str, config: OwnTaskConfig) -> set[str]:
    """The names in `SPLITS` of the splits that a file with a split column contains.

    Raises:
      UserError: as for `read_texts`.
    """
    named = {_stripped(path, row, config.split_column) for row in _rows(path, config)}
    return {s for s, name in zip(SPLITS, config.splits, strict=False) if name in named}


def _rows(path, config):
    readers = {".jsonl": _json_rows, ".csv": _csv_rows, ".tsv": _tsv_rows}
    _, ending = os.path.splitext(path)
    return readers[ending](path, config)


def _rows_of_split(path, config, split):
    wanted = config.splits[SPLITS.index(split)]
    for row in _rows(path, config):
        if config.split_column is None:
            yield row
        elif _stripped(path, row, config.split_column) == wanted:
            yield row


def _example(path, row, config, labels, has_labels):
    texts = tuple(_text(path, row, column) for column in config.texts)
    if not has_labels:
        if config.label in row.values:
            raise _error(path, row.line, config.label, "is missing in other rows")
        return LabelledTexts(texts, None)
    if config.kind != REGRESSION:
        return LabelledTexts(texts, _label(path, row, config, labels))
    number = _stripped(path, row, config.label)
    if not _is_number(number):
        problem = f"{quoted(number)} is not a number of float32"
        raise _error(path, row.line, config.label, problem)
    return LabelledTexts(texts, number)


def _label(path, row, config, labels):
    cell = _text(path, row, config.label)
    label = labels.read(cell, f"{path}:{row.line}: column {config.label!r}")
    if label is None:
        source = "no training file has it"
        if config.labels:
            source = "OwnTaskConfig.labels lacks it"
        known = ", ".join(label[:_SHOWN] for label in labels.labels[:_SHOWN])[:_LISTED]
        raise _error(
            path,
            row.line,
            config.label,
            f"unknown {'tag' if config.kind == TAGGING else 'label'} {quoted(cell)}; "
            f"{source}. Known: {known}",
        )
    return label


def _is_number(cell):
    number = cell.strip(BLANKS)
    return bool(_NUMBER.fullmatch(number)) and abs(float(number)) <= _LARGEST_NUMBER


def _stripped(path, row, column):
    return _text(path, row, column).strip(BLANKS)


def _text(path, row, column, white=None) -> str:
    """A cell, which must not be empty. Numbers and truth values become JSON's text.

    NaN, which Python writes for a missing value, is refused.

    Args:
      white: the characters that make no text; None for all white space.
    """
    if column not in row.values:
        raise _error(path, row.line, column, "is missing")
    value = row.values[column]
    if type(value) is float and not math.isfinite(value):
        raise _error(path, row.line, column, f"{value} is no text and no number")
    if type(value) in (int, bool, float):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise _error(path, row.line, column, f"{type(value).__name__}, not a text")
    if not value.strip(white):
        raise _error(path, row.line, column, "is empty")
    return value


def _error(path, line, column, problem):
    return UserError(f"{path}:{line}: column {column!r}: {problem}")


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Lines and their numbers, from 1."""
    yield from enumerate(files.split_lines(files.read_text(path)), start=1)


def _json_rows(path, config):
    for number, line in _lines(path):
        if not line.strip(BLANKS):
            continue
        value = files.parse_json_line(line, f"{path}:{number}")
        if not isinstance(value, dict):
            raise UserError(f"{path}:{number}: not a JSON object")
        # Many files mark a test row without a label by a label of null.
        yield _Row(number, {k: v for k, v in value.items() if v is not None})


def _tsv_rows(path, config):
    label, is_label = config.label, None
    if type(label) is int:
        label -= 1
    if config.kind == REGRESSION:
        is_label = _is_number
    elif config.labels:
        known = {look(label.strip(BLANKS)) for label in config.labels}
        is_label = lambda cell: look(cell.strip(BLANKS)) in known  # noqa: E731
    rows = read_rows(files.read_text(path), label, is_label)
    yield from _table(path, config, iter(rows))


def _csv_rows(path, config):
    """As Python's csv module reads them: quoted cells may hold commas and line ends."""
    text = files.read_text(path)
    # By default, Python's module refuses cells of more than 131,072 characters.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    # An unmatched quote is an error.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    before = [0]

    def numbered():
        for cells in reader:
            yield before[0] + 1, cells
            before[0] = reader.line_num

    try:
        yield from _table(path, config, numbered())
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from error


def _table(path, config, rows):
    """Rows whose keys are the names of a header, or numbers if columns are numbers.

    An empty cell is no label: many test files have a column for labels that they lack.
    """
    rows = _to_the_last_text(rows)
    wanted = [*config.texts, config.label, config.split_column]
    if any(type(column) is int for column in wanted):
        for number, cells in rows:
            yield _without_empty_label(_Row(number, dict(enumerate(cells, 1))), config)
        return
    number, header = next(rows, (1, []))
    names = {look(column): column for column in wanted if column is not None}
    header = [name.strip(BLANKS) for name in header]
    header = [names.get(look(name), name) for name in header]
    needed = [c for c in (*config.texts, config.split_column) if c is not None]
    for column in [*needed, config.label]:
        if header.count(column) > 1 or column in needed and column not in header:
            raise UserError(
                f"{path}:{number}: the header has {header.count(column)} columns "
                f"{column!r}, not 1; it is {quoted(', '.join(header))}"
            )
    for number, cells in rows:
        if len(cells) != len(header):
            raise UserError(
                f"{path}:{number}: {len(cells)} columns; the header has {len(header)}"
            )
        row = _Row(number, dict(zip(header, cells, strict=True)))
        yield _without_empty_label(row, config)


def _to_the_last_text(rows):
    """Rows without the blank ones at the end; others are somebody's mistake."""
    blank = []
    for row in rows:
        blank.append(row)
        if any(cell.strip(BLANKS) for cell in row[1]):
            yield from blank
            blank = []


def _without_empty_label(row, config):
    if not row.values.get(config.label, " ").strip(BLANKS):
        row.values.pop(config.label, None)
    return row


def read_tagged(
    path: str, config: OwnTaskConfig, split: str, labels: LabelReader
) -> list[TaggedSentence]:
    """The sentences of a file with a word a line and empty lines between sentences.

    Columns are separated by tabs or, in lines without tabs, by blanks. In .conllu
    files, comments, ranges of words and words that are not in the text are skipped. In
    other files, comments above a sentence are skipped, and a line that begins with
    -DOCSTART- ends a sentence.

    Args, Raises: as for `read_texts`. Also if the lines of a sentence differ in their
      number of columns, or a tag has blanks inside.
    """
    [word_column] = config.texts
    sentences, words, tags, untagged, width = [], [], [], None, 0
    for number, cells in [*_word_lines(path), (0, [])]:
        if not cells:
            if words:
                sentences.append(TaggedSentence(words, None if untagged else tags))
            words, tags = [], []
            continue
        row = _Row(number, dict(enumerate(cells, start=1)))
        words.append(_text(path, row, word_column, BLANKS))
        lacks_tag = config.label not in row.values
        untagged = lacks_tag if untagged is None else untagged
        if lacks_tag != untagged or (untagged and split != "test"):
            raise _error(path, number, config.label, "is missing, or not everywhere")
        width = len(cells) if len(words) == 1 else width
        if len(cells) != width:
            raise UserError(
                f"{path}:{number}: {len(cells)} columns; the first line of the "
                f"sentence has {width}"
            )
        if untagged:
            continue
        tags.append(_label(path, row, config, labels))
        if problem := _problem_of_tag(tags[-1], config):
            raise _error(path, number, config.label, problem)
    if not sentences:
        raise UserError(f"{path}: holds no word")
    return sentences


def _problem_of_tag(tag, config):
    if any(map(str.isspace, tag)):
        return f"the tag {quoted(tag)} has a blank in it"
    if config.metric == "entity_f1" and not ENTITY_TAG.fullmatch(tag):
        return (
            "entity_f1 (OwnTaskConfig.metric) needs tags O, B-TYPE and I-TYPE; "
            f"{quoted(tag)} is none of them"
        )
    return None


def _word_lines(path):
    """Numbers and columns of lines with a word, and no columns between sentences."""
    lines, above = [], True
    for number, line in _lines(path):
        cells = line.split("\t") if "\t" in line else files.split_blanks(line)
        if path.endswith(".conllu"):
            if line.startswith("#") or _NO_WORD.match(cells[0] if cells else ""):
                continue
        elif above and _COMMENT.match(line):
            continue
        above = not line.strip(BLANKS) or line.startswith("-DOCSTART-")
        lines.append((number, [] if above else cells))
    # Words may be quotes. If csv.writer has written the file, it has quoted all of
    # them, or every cell.
    cells = [cell for _, cells in lines for cell in cells]
    everywhere = all(map(is_quoted, cells))
    written = all(unquoted(cell) != cell for cell in cells if '"' in cell)
    if path.endswith(".tsv") and (everywhere or written):
        return [(n, [unquoted(cell, everywhere) for cell in row]) for n, row in lines]
    return lines
