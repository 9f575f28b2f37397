"""Scores of predictions by XTREME's rules, and their tables."""

import os
from collections.abc import Sequence
from typing import Any

from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.xtreme import official
from decoupled.xtreme.files import is_language
from decoupled.xtreme.labels import read_labels, read_predictions
from decoupled.xtreme.scored_files import Inputs, find_files

_NOT_CHOSEN = "not asked for"
_ONLY_OUTSIDE = "only languages outside XTREME"
# Shown per language, beside what the task's score is made of.
_ALSO_SHOWN = {"udpos": ("accuracy",)}


def score(
    prediction_folder: str,
    label_folder: str,
    tasks: Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
    answers_may_miss: bool = False,
) -> dict[str, Any]:
    """All scores, in percent.

    Args:
      prediction_folder, label_folder: each with a folder per task.
      tasks, languages: only these; None for all.
      answers_may_miss: whether questions without an answer count 0.

    Returns:
      what XTREME's script writes: group -> score, `all_task` -> overall score, task
      -> what `official.task_scores` gives; beside it `missing`, task -> why it has no
      score;
      `outside_xtreme`, task -> metric -> language -> value, of languages that XTREME
      does not list for the task; `left_out`, task -> such a language -> which file it
      lacks; and `files`, task -> language -> the two files.

    Raises:
      UserError: a file is missing, malformed or does not fit its labels, or there is
        nothing to score.
    """
    chosen = list(official.TASKS) if tasks is None else tasks
    if unknown := [name for name in chosen if name not in official.TASKS]:
        raise UserError(
            f"--tasks: no {unknown[0]!r} in XTREME; it has {', '.join(official.TASKS)}"
        )
    _check_codes(languages)
    inputs = {
        task: find_files(prediction_folder, label_folder, task, languages)
        if task in chosen
        else Inputs({}, {}, _NOT_CHOSEN, {})
        for task in official.TASKS
    }
    if tasks is not None:
        _check_chosen(chosen, inputs, prediction_folder, label_folder)
    if all(entry.missing for entry in inputs.values()):
        raise UserError(
            f"{prediction_folder}: nothing to score; it has no files such as "
            f"{official.prediction_file('xnli', 'en')} with labels in {label_folder}"
        )
    _check_languages(languages, inputs, prediction_folder)
    return _as_result(inputs, _score_files(inputs, answers_may_miss))


def show(result: dict[str, Any]) -> None:
    """Prints the scores as two tables, and a third for languages outside XTREME."""
    scored = [task for task in official.TASKS if task in result]
    shown = [
        (task, metric)
        for task in scored
        for metric in (*official.TASKS[task].headline, *_ALSO_SHOWN.get(task, ()))
    ]
    present = {name for task, metric in shown for name in result[task][metric]}
    rows = [
        [name, *(_shown(result[task][metric].get(name)) for task, metric in shown)]
        for name in sorted(present, key=lambda name: (name != "en", name))
    ]
    columns = ["language", *(f"{task} {metric}" for task, metric in shown)]
    console.table("scores per language", columns, rows)
    console.table(
        "scores per task and group",
        ["", "score", "languages", "averages"],
        [*_task_rows(result), *_group_rows(result)],
    )
    if result["outside_xtreme"]:
        console.table(
            "outside XTREME: in no average",
            ["task", "language", "scores"],
            list(_outside_rows(result)),
        )
    for task, languages in result["left_out"].items():
        named = ", ".join(f"{name} ({lacks})" for name, lacks in languages.items())
        console.say(f"{task}: left out languages outside XTREME: {named}")


def _check_codes(languages):
    wrong = [name for name in languages or () if not is_language(name)]
    if wrong:
        raise UserError(
            f"--languages: {', '.join(map(repr, wrong))}: not the code of a language, "
            "as sw or zh-TW"
        )


def _check_languages(languages, inputs, prediction_folder):
    """Refuses wanted languages that no task has."""
    found = {name for entry in inputs.values() for name in entry.labels}
    lost = [name for name in languages or () if name not in found]
    if lost:
        tasks = [task for task, entry in inputs.items() if entry.missing is None]
        path = os.path.join(
            prediction_folder, official.prediction_file(tasks[0], lost[0])
        )
        raise UserError(
            f"--languages: no predictions with labels in {', '.join(lost)}; looked for "
            f"files such as {path}, in {', '.join(tasks)}"
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
    """What `score` returns, from task -> language -> metric -> value."""
    results, outside = {}, {}
    for task, entry in inputs.items():
        if entry.languages(listed=True):
            results[task] = official.task_scores(task, by_task[task])
        if others := entry.languages(listed=False):
            outside[task] = _by_metric(by_task[task], others)
    missing = {task: entry.missing for task, entry in inputs.items() if entry.missing}
    missing |= {task: _ONLY_OUTSIDE for task in outside if task not in results}
    return {
        **official.group_scores(results),
        **results,
        "missing": missing,
        "outside_xtreme": outside,
        "left_out": {
            task: entry.left_out for task, entry in inputs.items() if entry.left_out
        },
        "files": {task: _paths(inputs[task]) for task in by_task},
    }


def _by_metric(by_language, languages):
    """Metric -> language -> value, for some languages."""
    metrics = by_language[languages[0]]
    return {
        metric: {name: by_language[name][metric] for name in languages}
        for metric in metrics
    }


def _task_rows(result):
    for group, tasks in official.GROUPS.items():
        for task in tasks:
            if task not in result:
                yield [task, None, None, result["missing"][task]]
                continue
            metrics = [name for name in result[task] if not name.startswith("avg_")]
            averages = [f"{m} {_shown(result[task][f'avg_{m}'])}" for m in metrics]
            languages = f"{len(result[task][metrics[0]])}"
            languages += f" of {len(official.TASKS[task].languages)}"
            score = _shown(result[task].get("avg_metric"))
            yield [task, score, languages, ", ".join(averages)]
        yield [f"group {group}", _shown(result.get(group)), None, None]


def _outside_rows(result):
    for task, metrics in result["outside_xtreme"].items():
        shown = (*official.TASKS[task].headline, *_ALSO_SHOWN.get(task, ()))
        for language in metrics[shown[0]]:
            scores = [f"{name} {_shown(metrics[name][language])}" for name in shown]
            yield [task, language, ", ".join(scores)]


def _group_rows(result):
    yield ["all tasks", _shown(result.get(official.OVERALL)), None, None]


def _shown(value):
    return None if value is None else f"{value:.2f}"
