"""Predictions in XTREME's submission format, checked against the labels.

xnli, pawsx, tatoeba: a label or line number a line. udpos, panx: a tag a line, an empty
line after each sentence. bucc2018: id, tab, id. xquad, mlqa, tydiqa: one JSON object,
id -> answer.
"""

import json
from collections.abc import Sequence
from typing import Any

from decoupled.xtreme.files import LanguageFile

_MISSING_COUNT_AS_WRONG = "--missing_answers_are_wrong counts them 0, as XTREME does"


def read_predictions(
    file: LanguageFile, labels: Any, labels_path: str, answers_may_miss: bool = False
) -> Any:
    """The predictions of a task in a language, one for each label.

    Args:
      file: with the predictions.
      labels: of the same task and language, from `read_labels`.
      labels_path: their file, for messages.
      answers_may_miss: whether questions without an answer are accepted.

    Returns:
      as `read_labels`; for questions a dict, id -> answer.

    Raises:
      UserError: the file is missing or malformed, or does not fit the labels.
    """
    if file.path.endswith(".json"):
        return _answers(file, labels, answers_may_miss)
    lines = file.lines()
    if file.task in ("udpos", "panx"):
        return _tags(file, lines, labels, labels_path)
    values = file.values(lines)
    if file.task == "bucc2018":
        return [tuple(value.split("\t")) for value in values]
    if len(values) != len(labels):
        raise file.error(
            f"{len(values)} lines, but {labels_path} has {len(labels)} labels",
            min(len(values), len(labels)) + 1,
        )
    return values


def _tags(
    file: LanguageFile,
    lines: Sequence[str],
    labels: Sequence[Sequence[str]],
    labels_path: str,
) -> list[list[str]]:
    sentences = file.sentences(lines)
    pairs = zip(sentences, labels, strict=False)
    for number, (sentence, wanted) in enumerate(pairs, start=1):
        if len(sentence.tags) != len(wanted):
            raise file.error(
                f"sentence {number}, which starts here, has {len(sentence.tags)} tags, "
                f"but {len(wanted)} in {labels_path}",
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
            problem = f"the answer of {identifier!r} is not a string"
            raise file.error(problem, _line_of(identifier, file))
    missing = [identifier for identifier, _ in labels if identifier not in answers]
    if missing and not may_miss:
        raise file.error(
            f"{len(missing)} of {len(labels)} questions have no answer, the first of "
            f"them {missing[0]!r}; {_MISSING_COUNT_AS_WRONG}",
        )
    return answers


def _line_of(identifier: str, file: LanguageFile) -> int | None:
    text = file.text()
    position = text.find(json.dumps(identifier))
    return None if position < 0 else text.count("\n", 0, position) + 1
