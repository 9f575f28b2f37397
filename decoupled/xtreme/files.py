"""Files of XTREME in one language: labels of test sets, predictions for submission.

Labels are in the format of the evaluation script or of the download:

| task | file of the script | file of the download, with its labels |
|---|---|---|
| xnli, pawsx | a label a line | sentence, sentence, label, with tabs between |
| udpos, panx | a tag a line, an empty line after each sentence | token, tab, tag |
| xquad, mlqa, tydiqa | SQuAD's JSON | the same |
| bucc2018 | id, tab, id | the same |
| tatoeba | place of the translation on the sorted English side | that side, unsorted |

XTREME's preprocessing removes the labels of test sets; such files are recognised.

Predictions are checked against the labels. Their files have the format of the script,
except for xquad, mlqa and tydiqa: one JSON object, id -> answer.

Errors name file, line and, if it is known, language.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from decoupled.core import files, gfile
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS
from decoupled.core.tab_separated import read_rows

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
# Other spellings of labels: XNLI's machine-translated files have this one.
SPELLINGS = {"xnli": {"contradictory": "contradiction"}}

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
        subfolder, name = os.path.split(template)
        if "{language}" not in name:
            continue
        parts = [re.escape(part) for part in name.split("{language}")]
        reference = r"\1"
        pattern = f"{parts[0]}({_LANGUAGE}){reference.join(parts[1:])}"
        path = os.path.join(folder, subfolder)
        names = gfile.listdir(path) if gfile.isdir(path) else []
        languages.update(m[1] for m in (re.fullmatch(pattern, n) for n in names) if m)
    return sorted(languages)


class SentenceTags(NamedTuple):
    """Tags of a sentence, and the line of the first, from 1."""

    line: int
    tags: list[str]


class LanguageFile(NamedTuple):
    """A file with labels or predictions of a task in a language, None if unknown."""

    path: str
    task: str
    language: str | None

    def error(self, problem: str, line: int | None = None) -> UserError:
        """The error to raise: file, line (from 1) and language, then the problem."""
        where = self.path if line is None else f"{self.path}:{line}"
        return UserError(f"{where}{self._in_language}: {problem}")

    @property
    def _in_language(self) -> str:
        return "" if self.language is None else f" (language {self.language})"

    def text(self) -> str:
        """The content; an error names the language."""
        try:
            return files.read_text(self.path)
        except UserError as error:
            raise UserError(f"{error}{self._in_language}") from error

    def lines(self) -> list[str]:
        """The lines, without their ends."""
        return files.split_lines(self.text())

    def json(self) -> Any:
        """The value in the file."""
        text = self.text()
        try:
            return files.parse_json(text, unique_names=True)
        except UserError as error:
            raise self.error(str(error)) from error
        except json.JSONDecodeError as error:
            problem = f"not JSON at column {error.colno} ({error.msg})"
            raise self.error(problem, error.lineno) from error

    def values(self, lines: Iterable[str], advice: str = "") -> list[str]:
        """The value on each line; `advice` tells what to do if a line is malformed."""
        return [self.value(v, n, advice) for n, v in enumerate(lines, start=1)]

    def sentences(self, lines: Iterable[str], advice: str = "") -> list[SentenceTags]:
        """The tags of sentences, separated by one or more empty lines; see `values`."""
        sentences: list[SentenceTags] = []
        in_sentence = False
        for number, line in enumerate(lines, start=1):
            if has_tag := bool(line.strip(BLANKS)):
                tag = self.value(line, number, advice)
                if not in_sentence:
                    sentences.append(SentenceTags(number, []))
                sentences[-1].tags.append(tag)
            in_sentence = has_tag
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


_LABELS_REMOVED = (
    "; XTREME's preprocessing removes the labels of test sets, take the originals"
)
_MISSING_COUNT_AS_WRONG = "--missing_answers_are_wrong counts them 0, as XTREME does"
_COLUMNS = 3

Question = tuple[str, list[str]]


def read_labels(file: LanguageFile) -> Any:
    """The labels of a task in a language: a list of labels, or of lists of tags (udpos,
    panx), of pairs of ids (bucc2018), or of (id, right answers) (xquad, mlqa, tydiqa).
    """
    labels = _READERS[file.task](file)
    if not labels:
        raise file.error("empty")
    return labels


def sorted_positions(sentences: list[str]) -> list[int]:
    """The index of each sentence, from 0, after all of them are sorted.

    XTREME sorts the English side of Tatoeba by code points, ignoring white space at the
    ends, so that line numbers do not tell the pairs. Predictions are line numbers of
    the sorted side. Equal sentences keep their order.
    """
    texts = [sentence.strip() for sentence in sentences]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    positions = [0] * len(texts)
    for position, index in enumerate(order):
        positions[index] = position
    return positions


def _classes(file: LanguageFile) -> list[str]:
    spellings = SPELLINGS.get(file.task, {})

    def label_of(cell):
        label = cell.strip(BLANKS)
        return spellings.get(label, label)

    rows = read_rows(
        file.text(), _COLUMNS - 1, lambda cell: file.has_form(label_of(cell))
    )
    has_one_column = all(len(row.cells) == 1 for row in rows)
    # The reader of fine-tuning takes empty lines at the end, too.
    while not has_one_column and rows[-1].cells == [""]:
        rows.pop()
    for row in rows:
        if not has_one_column and len(row.cells) < _COLUMNS:
            raise file.error(f"no label after two sentences{_LABELS_REMOVED}", row.line)
        if len(row.cells) > _COLUMNS:
            raise file.error(
                f"{len(row.cells)} columns, not sentence, sentence, label", row.line
            )
    labels = [(label_of(row.cells[-1]), row.line) for row in rows]
    return [file.value(*label, "" if label[0] else _LABELS_REMOVED) for label in labels]


def _tags(file: LanguageFile) -> list[list[str]]:
    lines = file.lines()
    tags = [line.rpartition("\t")[2] for line in lines]
    for number, (line, tag) in enumerate(zip(lines, tags, strict=True), start=1):
        if line.strip(BLANKS) and not tag.strip(BLANKS):
            raise file.error(f"no tag after the word{_LABELS_REMOVED}", number)
    return [sentence.tags for sentence in file.sentences(tags, _LABELS_REMOVED)]


def _pairs(file: LanguageFile) -> list[tuple[str, ...]]:
    return [tuple(value.split("\t")) for value in file.values(file.lines())]


def _line_numbers(file: LanguageFile) -> list[str]:
    lines = file.lines()
    if not file.path.endswith("-en.en"):
        return file.values(lines)
    positions = sorted_positions(lines)
    if positions == sorted(positions):
        raise file.error(
            "sorted, so that nothing tells which line translates which; give "
            f"test-{file.language}.tsv, or this side in the order of the other"
        )
    return [str(position) for position in positions]


def _questions(file: LanguageFile) -> list[Question]:
    try:
        questions = list(_walk(file.json()))
    except (KeyError, TypeError, AttributeError) as error:
        raise file.error(
            "not in SQuAD's format (data, paragraphs, qas with id and answers, text)"
        ) from error
    ids = set()
    for identifier, answers in questions:
        if identifier in ids:
            raise file.error(f"two questions with the id {quoted(identifier)}")
        ids.add(identifier)
        if not answers:
            raise file.error(f"question {quoted(identifier)} has no answers")
    if questions and not any(any(answers) for _, answers in questions):
        raise file.error(f"all answers are empty{_LABELS_REMOVED}")
    return questions


def _walk(document: Any) -> Iterator[Question]:
    articles = document["data"] if "data" in document else document
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = [answer["text"] for answer in question["answers"]]
                if not all(
                    isinstance(part, str) for part in [question["id"], *answers]
                ):
                    raise TypeError("not a string")
                yield question["id"], answers


def read_predictions(
    file: LanguageFile, labels: Any, labels_path: str, answers_may_miss: bool = False
) -> Any:
    """The predictions of a task in a language, one for each label, as `read_labels`.

    Those for questions are a dict, id -> answer; with `answers_may_miss`, some may be
    missing. `labels_path` is named in messages.
    """
    if file.path.endswith(".json"):
        return _answers(file, labels, answers_may_miss)
    lines = file.lines()
    if file.task in ("udpos", "panx"):
        return _predicted_tags(file, lines, labels, labels_path)
    values = file.values(lines)
    if file.task == "bucc2018":
        return [tuple(value.split("\t")) for value in values]
    if len(values) != len(labels):
        raise file.error(
            f"{len(values)} lines, but {labels_path} has {len(labels)} labels",
            min(len(values), len(labels)) + 1,
        )
    return values


def _predicted_tags(
    file: LanguageFile,
    lines: Sequence[str],
    labels: Sequence[Sequence[str]],
    labels_path: str,
) -> list[list[str]]:
    sentences = file.sentences(lines)
    pairs = zip(sentences, labels, strict=False)
    for number, (sentence, gold) in enumerate(pairs, start=1):
        if len(sentence.tags) != len(gold):
            raise file.error(
                f"sentence {number}, which starts here, has {len(sentence.tags)} tags, "
                f"but {len(gold)} in {labels_path}",
                sentence.line,
            )
    if len(sentences) != len(labels):
        surplus = sentences[len(labels) :]
        raise file.error(
            f"{len(sentences)} sentences, but {len(labels)} in {labels_path}",
            surplus[0].line if surplus else len(lines) + 1,
        )
    return [sentence.tags for sentence in sentences]


def _answers(
    file: LanguageFile, labels: Sequence[tuple[str, list[str]]], may_miss: bool
) -> dict[str, str]:
    answers = file.json()
    if not isinstance(answers, dict):
        raise file.error("not a JSON object of ids and answers", 1)
    for identifier, answer in answers.items():
        if not isinstance(answer, str):
            problem = f"the answer of {quoted(identifier)} is not a string"
            raise file.error(problem, _line_of(identifier, file))
    missing = [identifier for identifier, _ in labels if identifier not in answers]
    if missing and not may_miss:
        raise file.error(
            f"{len(missing)} of {len(labels)} questions have no answer, the first of "
            f"them {quoted(missing[0])}; {_MISSING_COUNT_AS_WRONG}",
        )
    return answers


def _line_of(identifier: str, file: LanguageFile) -> int | None:
    text = file.text()
    position = text.find(json.dumps(identifier))
    return None if position < 0 else text.count("\n", 0, position) + 1


_READERS = {
    "pawsx": _classes,
    "xnli": _classes,
    "panx": _tags,
    "udpos": _tags,
    "bucc2018": _pairs,
    "tatoeba": _line_numbers,
    "xquad": _questions,
    "mlqa": _questions,
    "tydiqa": _questions,
}
