"""Which files with predictions have labels, by task and language of XTREME.

A task needs all of XTREME's languages, so that one of them that lacks a file is an
error; any other language is taken where both of its files are there and the one with
labels has some.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.xtreme import official
from decoupled.xtreme.files import LanguageFile, languages_of
from decoupled.xtreme.labels import read_labels

NO_PREDICTIONS = "no predictions"
NO_LABELS = "no labels"
NO_LANGUAGES = "none of these languages"


class Inputs(NamedTuple):
    """The files of a task by language; `missing` says why there are none.

    left_out: languages outside XTREME that lack predictions or labels, and which.
    """

    predictions: dict[str, LanguageFile]
    labels: dict[str, LanguageFile]
    missing: str | None
    left_out: dict[str, str]

    def languages(self, listed: bool) -> list[str]:
        """Those with both files that XTREME lists for the task, or does not list."""
        return [
            name
            for name, file in self.labels.items()
            if official.is_official(file.task, name) == listed
        ]


def find_files(
    prediction_folder: str,
    label_folder: str,
    task: str,
    languages: Sequence[str] | None = None,
) -> Inputs:
    """The files of a task, for those of its languages that are wanted.

    All of XTREME's languages that are wanted need both files as soon as one of them has
    one; other languages are taken where both files are there. Where all are wanted, an
    other language whose labels cannot be read is left out: test sets often come without
    them.

    Args:
      languages: the wanted ones; None for all.

    Raises:
      UserError: some of XTREME's languages have predictions, or labels, and others do
        not.
    """
    wanted = _wanted(prediction_folder, label_folder, task, languages)
    if not wanted:
        return Inputs({}, {}, NO_LANGUAGES, {})
    predictions, labels = _both_kinds(prediction_folder, label_folder, task, wanted)
    if not predictions or not labels:
        return Inputs({}, {}, NO_LABELS if predictions else NO_PREDICTIONS, {})
    listed = [name for name in wanted if official.is_official(task, name)]
    if any(name in predictions for name in listed):
        paths = [official.prediction_file(task, name) for name in listed]
        _check_all(listed, predictions, prediction_folder, paths, "predictions")
        paths = [" or ".join(official.label_files(task, name)) for name in listed]
        _check_all(listed, labels, label_folder, paths, "labels")
    left_out = _left_out(task, wanted, predictions, labels, languages is None)
    both = [name for name in wanted if name in predictions and name in labels]
    scored = [name for name in both if name not in left_out]
    return Inputs(
        {name: predictions[name] for name in scored},
        {name: labels[name] for name in scored},
        None if scored else NO_LABELS,
        left_out,
    )


def scorable(
    prediction_folder: str,
    label_folder: str,
    task: str,
    languages: Sequence[str] | None = None,
) -> list[str]:
    """Those of some languages that have both files; of all, where None are given."""
    if languages is None:
        languages = _wanted(prediction_folder, label_folder, task, None)
    predictions, labels = _both_kinds(prediction_folder, label_folder, task, languages)
    return [name for name in languages if name in predictions and name in labels]


def score_command(
    prediction_folder: str, label_folder: str, task: str, labelled: Sequence[str]
) -> list[str]:
    """The words of the command that scores the answers to a task's test files.

    Args:
      labelled: the languages of files that have labels.

    Returns:
      no words where XTREME has no such task, or no file can be scored.
    """
    if task not in official.TASKS:
        return []
    languages = scorable(prediction_folder, label_folder, task, labelled)
    if not languages:
        return []
    command = [
        *("decoupled", "score"),
        f"--prediction_folder={prediction_folder}",
        f"--label_folder={label_folder}",
        f"--tasks={task}",
    ]
    # Without the flag, all of XTREME's languages and all others with both files.
    others = scorable(prediction_folder, label_folder, task)
    if {*official.TASKS[task].languages, *others} != set(languages):
        command.append(f"--languages={','.join(languages)}")
    return command


def _both_kinds(prediction_folder, label_folder, task, languages):
    """Predictions and labels, language -> file."""
    paths = {name: [official.prediction_file(task, name)] for name in languages}
    predictions = _existing(prediction_folder, task, paths)
    paths = {name: official.label_files(task, name) for name in languages}
    return predictions, _existing(label_folder, task, paths)


def _wanted(prediction_folder, label_folder, task, languages):
    """XTREME's languages and those that have a file; only the wanted ones."""
    template = official.prediction_file(task, "{language}")
    known = [
        *official.TASKS[task].languages,
        *languages_of(prediction_folder, template),
        *languages_of(label_folder, *official.label_templates(task)),
    ]
    ordered = official.in_order(task, known)
    return [name for name in ordered if languages is None or name in languages]


def _existing(folder, task, paths):
    """Language -> the first of its paths that is there, for languages that have one."""
    found = {}
    for language, names in paths.items():
        for name in names:
            path = os.path.join(folder, name)
            if files.exists(path):
                found[language] = LanguageFile(path, task, language)
                break
    return found


def _left_out(task, languages, predictions, labels, reads):
    """Languages outside XTREME -> which of their two files they lack.

    reads: whether a file with labels that cannot be read is as good as none.
    """
    left_out = {}
    for name in languages:
        if official.is_official(task, name):
            continue
        if (name in predictions) != (name in labels):
            left_out[name] = NO_LABELS if name in predictions else NO_PREDICTIONS
        elif reads and name in labels:
            try:
                read_labels(labels[name])
            except UserError as error:
                left_out[name] = f"{NO_LABELS}: {error}"
    return left_out


def _check_all(languages, found, folder, paths, what):
    """Names the first path that is missing, and the languages of the others."""
    pairs = zip(languages, paths, strict=True)
    lost = [(name, path) for name, path in pairs if name not in found]
    if not lost:
        return
    language, path = lost[0]
    others = ", ".join(name for name, _ in lost[1:])
    raise UserError(
        f"{os.path.join(folder, path)} (language {language}): missing"
        f"{', and so are those of ' if others else ''}{others}, while other languages "
        f"have {what}; --languages scores some of them"
    )
