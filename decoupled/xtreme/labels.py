"""Labels of XTREME's test sets, as its evaluation script or its download keeps them.

| task | file of the script | file of the download, with its labels |
|---|---|---|
| xnli, pawsx | a label a line | sentence, sentence, label, with tabs between |
| udpos, panx | a tag a line, an empty line after each sentence | token, tab, tag |
| xquad, mlqa, tydiqa | SQuAD's JSON | the same |
| bucc2018 | id, tab, id | the same |
| tatoeba | place of the translation on the sorted English side | that side, unsorted |

XTREME's preprocessing takes the labels of test sets away. What is left is recognised.
"""

import csv
import io
from collections.abc import Iterator
from typing import Any

from decoupled.xtreme.files import LanguageFile

_REMOVED = (
    "; XTREME's preprocessing removes the labels of test sets, take the originals"
)
_COLUMNS = 3

Question = tuple[str, list[str]]


def read_labels(file: LanguageFile) -> Any:
    """The labels of a task in a language.

    Returns:
      list of labels (xnli, pawsx, tatoeba); list of lists of tags (udpos, panx); list
      of pairs of ids (bucc2018); list of (id, right answers) (xquad, mlqa, tydiqa).

    Raises:
      UserError: the file is missing or malformed, or holds no labels.
    """
    labels = _READERS[file.task](file)
    if not labels:
        raise file.error("empty")
    return labels


def sorted_positions(sentences: list[str]) -> list[int]:
    """Where each sentence stands, from 0, once all of them are sorted.

    XTREME sorts the English side of Tatoeba by code points, white space at the ends
    left out, to hide which lines belong together; predictions are line numbers of the
    sorted side. Equal sentences keep their order.
    """
    stripped = [sentence.strip() for sentence in sentences]
    order = sorted(range(len(stripped)), key=stripped.__getitem__)
    positions = [0] * len(stripped)
    for position, index in enumerate(order):
        positions[index] = position
    return positions


def _classes(file: LanguageFile) -> list[str]:
    lines = [line.rstrip() for line in file.lines()]
    columns = [line.count("\t") + 1 for line in lines]
    if max(columns, default=1) == 1:
        return file.values(lines, _REMOVED)
    if min(columns) < _COLUMNS:
        return _classes_across_lines(file, columns)
    # Quotes do not matter here: no label has any.
    return file.values((line.rpartition("\t")[2] for line in lines), _REMOVED)


def _classes_across_lines(file: LanguageFile, columns: list[int]) -> list[str]:
    """Labels of rows whose quoted sentences contain line ends."""
    try:
        reader = csv.reader(
            io.StringIO(file.text(), newline=""), "excel-tab", strict=True
        )
        rows = list(reader)
    except csv.Error:
        rows = [[]]
    if any(len(row) != _COLUMNS for row in rows):
        line = next(n for n, count in enumerate(columns, 1) if count < _COLUMNS)
        raise file.error(f"no label after two sentences{_REMOVED}", line)
    return file.values((row[-1] for row in rows), _REMOVED)


def _tags(file: LanguageFile) -> list[list[str]]:
    lines = (line.rpartition("\t")[2] for line in file.lines())
    return [sentence.tags for sentence in file.sentences(lines, _REMOVED)]


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
    for identifier, answers in questions:
        if not answers:
            raise file.error(f"question {identifier!r} has no answers")
    if questions and not any(any(answers) for _, answers in questions):
        raise file.error(f"all answers are empty{_REMOVED}")
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
