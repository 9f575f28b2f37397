"""A file of XTREME in one language: its lines, sentences or JSON, checked.

Errors name file, line and language.
"""

import json
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from decoupled.core import files, gfile
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS

PARTS_OF_SPEECH = (
    "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X _"
).split()
# Task -> the form of a line with a label or a prediction.
FORMS = {
    "xnli": ("contradiction|entailment|neutral", "contradiction, entailment, neutral"),
    "pawsx": ("0|1", "0 or 1"),
    "panx": ("O|[BI]-(?:PER|LOC|ORG)", "O, or B- or I- with PER, LOC or ORG"),
    "udpos": ("|".join(PARTS_OF_SPEECH), "a part of speech of UD, as NOUN"),
    "bucc2018": ("[^\t]+\t[^\t]+", "two ids with a tab between them"),
    "tatoeba": ("0|[1-9][0-9]{0,8}", "a line number, from 0"),
}

# A language in the name of a file from elsewhere: ur, zh-TW, zh_Hant. This is narrower
# than `corpora.locales.CODE`, the codes that users may choose: test-v2.tsv and
# test-b.tsv have no language in their names, and no file of XTREME has an @.
_LANGUAGE = "[A-Za-z]{2,}(?:[-_][A-Za-z0-9]+)*"


def is_language(name: str) -> bool:
    """Whether a name can stand for a language in the name of a file."""
    return re.fullmatch(_LANGUAGE, name) is not None


def languages_of(folder: str, *templates: str) -> list[str]:
    """The languages that have a file, by name, in a folder that may be missing.

    {language} in the name of a template's file, once or more, stands for the language.
    Templates without it are ignored.
    """
    languages: set[str] = set()
    for template in templates:
        below, name = os.path.split(template)
        if "{language}" not in name:
            continue
        parts = [re.escape(part) for part in name.split("{language}")]
        same = r"\1"
        pattern = f"{parts[0]}({_LANGUAGE}){same.join(parts[1:])}"
        place = os.path.join(folder, below)
        names = gfile.listdir(place) if gfile.isdir(place) else []
        languages.update(m[1] for m in (re.fullmatch(pattern, n) for n in names) if m)
    return sorted(languages)


class SentenceTags(NamedTuple):
    """Tags of a sentence, and the line of the first, from 1."""

    line: int
    tags: list[str]


class LanguageFile(NamedTuple):
    """A file with labels or predictions of a task in a language."""

    path: str
    task: str
    language: str

    def error(self, problem: str, line: int | None = None) -> UserError:
        """The error to raise: file, line (from 1) and language, then the problem."""
        where = self.path if line is None else f"{self.path}:{line}"
        return UserError(f"{where} (language {self.language}): {problem}")

    def text(self) -> str:
        """The content; an error names the language."""
        try:
            return files.read_text(self.path)
        except UserError as error:
            raise UserError(f"{error} (language {self.language})") from error

    def lines(self) -> list[str]:
        """The lines, without their ends."""
        return files.split_lines(self.text())

    def json(self) -> Any:
        """The value in the file."""
        text = self.text()
        try:
            return files.parse_json(text)
        except json.JSONDecodeError as error:
            problem = f"not JSON at column {error.colno} ({error.msg})"
            raise self.error(problem, error.lineno) from error

    def values(self, lines: Iterable[str], advice: str = "") -> list[str]:
        """The value on each line; `advice` tells what to do if a line is malformed."""
        return [self.value(v, n, advice) for n, v in enumerate(lines, start=1)]

    def sentences(self, lines: Iterable[str], advice: str = "") -> list[SentenceTags]:
        """The tags of sentences, separated by one or more empty lines; see `values`."""
        sentences: list[SentenceTags] = []
        inside = False
        for number, line in enumerate(lines, start=1):
            if filled := bool(line.strip(BLANKS)):
                tag = self.value(line, number, advice)
                if not inside:
                    sentences.append(SentenceTags(number, []))
                sentences[-1].tags.append(tag)
            inside = filled
        return sentences

    def value(self, cell: str, line: int, advice: str = "") -> str:
        """The value in a cell of a line; see `values`."""
        value = cell.strip(BLANKS)
        if not self.has_form(value):
            form = FORMS[self.task][1]
            raise self.error(f"{quoted(value)} is not {form}{advice}", line)
        return value

    def has_form(self, value: str) -> bool:
        """Whether a value has the task's form of a label or a prediction."""
        return re.fullmatch(FORMS[self.task][0], value) is not None
