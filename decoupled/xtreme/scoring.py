"""Scores of predictions by XTREME's rules, and their tables.

A task needs all of XTREME's languages: it is an error if one of them lacks a file. Any
other language is scored if both of its files, predictions and labels, exist and the
labels are not empty.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.xtreme import official
from decoupled.xtreme.files import (
    LanguageFile,
    is_language,
    languages_of,
    read_labels,
    read_predictions,
)

NO_PREDICTIONS = "no predictions"
NO_LABELS = "no labels"
NO_LANGUAGES = "none of these languages"
_NOT_CHOSEN = "not asked for"
_ONLY_OUTSIDE = "only languages outside XTREME"
# Shown per language, in addition to the metrics of the task's score.
_MORE_METRICS = {"udpos": ("accuracy",)}


class ScoredFiles(NamedTuple):
    """The files of a task by language; `missing` says why there are none.

    left_out: languages outside XTREME that lack predictions or labels, and which.
    """

    predictions: dict[str, LanguageFile]
    labels: dict[str, LanguageFile]
    missing: str | None
    left_out: dict[str, str]

    def languages(self, listed: bool) -> list[str]:
        """Languages with both files: those that XTREME lists, or all others."""
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
) -> ScoredFiles:
    """The files of a task, for the wanted languages.

    If one of XTREME's wanted languages has a file, all of them need both files. Other
    languages are scored if both files exist. If all languages are wanted, another
    language whose labels cannot be read is left out, because test sets often come
    without labels.

    Raises:
      UserError: some of XTREME's languages have predictions, or labels, and others do
        not.
    """
    names = _languages_to_score(prediction_folder, label_folder, task, languages)
    if not names:
        return ScoredFiles({}, {}, NO_LANGUAGES, {})
    predictions, labels = _existing_files(prediction_folder, label_folder, task, names)
    if not predictions or not labels:
        return ScoredFiles({}, {}, NO_LABELS if predictions else NO_PREDICTIONS, {})
    listed = [name for name in names if official.is_official(task, name)]
    if any(name in predictions for name in listed):
        paths = [official.prediction_file(task, name) for name in listed]
        _check_all(listed, predictions, prediction_folder, paths, "predictions")
        paths = [" or ".join(official.label_files(task, name)) for name in listed]
        _check_all(listed, labels, label_folder, paths, "labels")
    left_out = _gaps(task, names, predictions, labels, languages is None)
    complete = [name for name in names if name in predictions and name in labels]
    scored = [name for name in complete if name not in left_out]
    return ScoredFiles(
        {name: predictions[name] for name in scored},
        {name: labels[name] for name in scored},
        None if scored else NO_LABELS,
        left_out,
    )


def _existing_files(prediction_folder, label_folder, task, languages):
    paths = {name: [official.prediction_file(task, name)] for name in languages}
    predictions = _existing(prediction_folder, task, paths)
    paths = {name: official.label_files(task, name) for name in languages}
    return predictions, _existing(label_folder, task, paths)


def _languages_to_score(prediction_folder, label_folder, task, languages):
    """XTREME's languages and those that have a file; only the wanted ones."""
    template = official.prediction_file(task, "{language}")
    names = [
        *official.TASKS[task].languages,
        *languages_of(prediction_folder, template),
        *languages_of(label_folder, *official.label_templates(task)),
    ]
    sorted_names = official.in_order(task, names)
    return [name for name in sorted_names if languages is None or name in languages]


def _existing(folder, task, paths):
    """Language -> the first of its paths that exists, for languages that have one."""
    language_files = {}
    for language, names in paths.items():
        for name in names:
            path = os.path.join(folder, name)
            if files.exists(path):
                language_files[language] = LanguageFile(path, task, language)
                break
    return language_files


def _gaps(task, languages, predictions, labels, reads):
    """Languages outside XTREME -> which of their two files they lack.

    reads: whether a file whose labels cannot be read counts as missing.
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


def _check_all(languages, existing, folder, paths, what):
    """Names the first path that is missing, and the languages of the others."""
    pairs = zip(languages, paths, strict=True)
    missing = [(name, path) for name, path in pairs if name not in existing]
    if not missing:
        return
    language, path = missing[0]
    names = ", ".join(name for name, _ in missing[1:])
    raise UserError(
        f"{os.path.join(folder, path)} (language {language}): missing"
        f"{', and so are those of ' if names else ''}{names}, while other languages "
        f"have {what}; score those with --languages={','.join(existing)}, or the other "
        "tasks with --tasks"
    )


def score(
    prediction_folder: str,
    label_folder: str,
    tasks: Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
    answers_may_miss: bool = False,
) -> dict[str, Any]:
    """All scores, in percent, of folders that each have a folder per task.

    Returns:
      the output of XTREME's script: group -> score, `all_task` -> overall score, task
      -> the result of `official.task_scores`; in addition `missing`, task -> why it has
      no score; `outside_xtreme`, task -> metric -> language -> value, for languages
      that XTREME does not list for the task; `left_out`, task -> such a language -> the
      file that it lacks; and `files`, task -> language -> the two files.
    """
    for flag, names in (("--tasks", tasks), ("--languages", languages)):
        if names is not None and not names:
            raise UserError(f"{flag}: names none; leave it out for all")
    chosen_tasks = list(official.TASKS) if tasks is None else tasks
    if unknown := [name for name in chosen_tasks if name not in official.TASKS]:
        raise UserError(
            f"--tasks: no {unknown[0]!r} in XTREME; it has {', '.join(official.TASKS)}"
        )
    _check_codes(languages)
    inputs = {
        task: find_files(prediction_folder, label_folder, task, languages)
        if task in chosen_tasks
        else ScoredFiles({}, {}, _NOT_CHOSEN, {})
        for task in official.TASKS
    }
    if tasks is not None:
        _check_chosen(chosen_tasks, inputs, prediction_folder, label_folder)
    if all(entry.missing for entry in inputs.values()):
        raise UserError(
            f"{prediction_folder}: nothing to score; it has no files such as "
            f"{official.prediction_file('xnli', 'en')} with labels in {label_folder}"
        )
    _check_languages(languages, inputs, prediction_folder)
    return _as_result(inputs, _score_files(inputs, answers_may_miss))


def show(
    result: dict[str, Any], published: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Prints the scores as two tables, and a third for languages outside XTREME.

    `published`: model -> task, group or mean -> its published score.
    """
    tasks = [task for task in official.TASKS if task in result]
    metrics = [
        (task, metric)
        for task in tasks
        for metric in (*official.TASKS[task].headline, *_MORE_METRICS.get(task, ()))
    ]
    names = {name for task, metric in metrics for name in result[task][metric]}
    rows = [
        [name, *(_text(result[task][metric].get(name)) for task, metric in metrics)]
        for name in sorted(names, key=lambda name: (name != "en", name))
    ]
    columns = ["language", *(f"{task} {metric}" for task, metric in metrics)]
    console.table("scores per language", columns, rows)
    published = published or {}
    console.table(
        "scores per task and group",
        ["", "score", *published, "languages", "averages"],
        [
            [name, score, *(scores.get(key) for scores in published.values()), *texts]
            for key, name, score, *texts in _task_rows(result)
        ],
    )
    if result["outside_xtreme"]:
        console.table(
            "outside XTREME: in no average",
            ["task", "language", "scores"],
            list(_outside_rows(result)),
        )
    for task, languages in result["left_out"].items():
        texts = ", ".join(f"{name} ({reason})" for name, reason in languages.items())
        console.say(f"{task}: left out languages outside XTREME: {texts}")


def _check_codes(languages):
    wrong = [name for name in languages or () if not is_language(name)]
    if wrong:
        raise UserError(
            f"--languages: {', '.join(map(repr, wrong))}: not the code of a language, "
            "as sw or zh-TW"
        )


def _check_languages(languages, inputs, prediction_folder):
    labelled_languages = {name for entry in inputs.values() for name in entry.labels}
    names = [name for name in languages or () if name not in labelled_languages]
    if names:
        tasks = [task for task, entry in inputs.items() if entry.missing is None]
        path = os.path.join(
            prediction_folder, official.prediction_file(tasks[0], names[0])
        )
        raise UserError(
            f"--languages: no predictions with labels in {', '.join(names)}; looked "
            f"for files such as {path}, in {', '.join(tasks)}"
        )


def _check_chosen(tasks, inputs, prediction_folder, label_folder):
    for task in tasks:
        if inputs[task].missing:
            raise UserError(
                f"--tasks: {task} has {inputs[task].missing}; looked in "
                f"{prediction_folder} and {label_folder}"
            )


def _paths(entry):
    return {
        name: {"predictions": file.path, "labels": entry.labels[name].path}
        for name, file in entry.predictions.items()
    }


def _score_files(inputs, answers_may_miss):
    pairs = [(task, name) for task, entry in inputs.items() for name in entry.labels]
    by_task: dict[str, dict[str, dict[str, float]]] = {}
    for task, language in console.track(pairs, "scoring languages of tasks"):
        gold = inputs[task].labels[language]
        labels = read_labels(gold)
        predictions = read_predictions(
            inputs[task].predictions[language], labels, gold.path, answers_may_miss
        )
        scores = official.score_language(task, language, labels, predictions)
        by_task.setdefault(task, {})[language] = scores
    return by_task


def _as_result(inputs, by_task):
    results, outside_scores = {}, {}
    for task, entry in inputs.items():
        if entry.languages(listed=True):
            results[task] = official.task_scores(task, by_task[task])
        if outside_languages := entry.languages(listed=False):
            outside_scores[task] = _by_metric(by_task[task], outside_languages)
    missing = {task: entry.missing for task, entry in inputs.items() if entry.missing}
    missing |= {task: _ONLY_OUTSIDE for task in outside_scores if task not in results}
    return {
        **official.group_scores(results),
        **results,
        "missing": missing,
        "outside_xtreme": outside_scores,
        "left_out": {
            task: entry.left_out for task, entry in inputs.items() if entry.left_out
        },
        "files": {task: _paths(inputs[task]) for task in by_task},
    }


def _by_metric(by_language, languages):
    metrics = by_language[languages[0]]
    return {
        metric: {name: by_language[name][metric] for name in languages}
        for metric in metrics
    }


def _task_rows(result):
    """Key of the published score, name, score, languages, averages."""
    for group, tasks in official.GROUPS.items():
        for task in tasks:
            if task not in result:
                yield task, task, None, None, result["missing"][task]
                continue
            metrics = [name for name in result[task] if not name.startswith("avg_")]
            averages = [f"{m} {_text(result[task][f'avg_{m}'])}" for m in metrics]
            languages = f"{len(result[task][metrics[0]])}"
            languages += f" of {len(official.TASKS[task].languages)}"
            score = _text(result[task].get("avg_metric"))
            yield task, task, score, languages, ", ".join(averages)
        yield group, f"group {group}", _text(result.get(group)), None, None
    for name, score in official.without_retrieval(result).items():
        yield name, name, _text(score), None, None
    yield "", "all tasks", _text(result.get(official.OVERALL)), None, None


def _outside_rows(result):
    for task, metrics in result["outside_xtreme"].items():
        names = (*official.TASKS[task].headline, *_MORE_METRICS.get(task, ()))
        for language in metrics[names[0]]:
            scores = [f"{name} {_text(metrics[name][language])}" for name in names]
            yield [task, language, ", ".join(scores)]


def _text(value):
    return None if value is None else f"{value:.2f}"
