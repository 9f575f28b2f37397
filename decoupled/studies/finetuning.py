"""Fine-tuning results over seeds: means and spreads, a table and a picture.

The input is the results that `decoupled.runs.finetuning_run` writes for each run.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from decoupled.analyses.output import Line, Panel, Picture, draw
from decoupled.configs.finetuning import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from decoupled.core import console, plots
from decoupled.runs.finetuning_run import TRIVIAL
from decoupled.runs.run_folder import SPLITS
from decoupled.tasks.task import FinetuningTask
from decoupled.xtreme.official import is_official

# Suffix of a metric's name for its sample standard deviation over seeds.
SPREAD = "_spread"
# Shown in addition to the metrics of a task's score.
_EXTRA = "accuracy"
# Suffix of a language that XTREME does not list for the task.
OUTSIDE = " (outside XTREME)"
_TRIVIAL_ANSWERS = {
    CLASSIFICATION: "the most frequent label",
    REGRESSION: "the mean of all numbers",
    TAGGING: "each word's most frequent tag",
    QUESTION_ANSWERING: "the words around those of the question",
}


def combine(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict]]:
    """Combines the results of runs that differ only in the seed.

    Returns:
      split -> language -> metric -> mean over the runs and, if there are several runs,
      metric + "_spread" -> their sample standard deviation. The trivial baseline
      ("trivial_...") and "examples" are those of the first run.
    """
    return {
        split: {
            language: _combined([run[split][language] for run in results])
            for language in results[0][split]
        }
        for split in SPLITS
    }


def _combined(rows):
    metrics = {}
    for name, value in rows[0].items():
        if name == "examples" or name.startswith(TRIVIAL) or len(rows) == 1:
            metrics[name] = value
            continue
        values = [row[name] for row in rows]
        metrics[name] = statistics.fmean(values)
        metrics[f"{name}{SPREAD}"] = statistics.stdev(values)
    return metrics


def shown_metrics(metrics: Sequence[str], headline: Sequence[str]) -> list[str]:
    """The metrics that the table shows; few of them if a task has many."""
    extras = [name for name in metrics if name == _EXTRA and name not in headline]
    return [*headline, *extras]


def mean_over(
    languages: dict[str, dict], metric: str, omitted_names: Sequence[str]
) -> float | None:
    """The mean of a metric over languages, as from `combine`; None if none has it."""
    values = [
        values[metric]
        for name, values in languages.items()
        if metric in values and name not in omitted_names
    ]
    return statistics.fmean(values) if values else None


def not_above_trivial(
    results: dict[str, dict],
    task: FinetuningTask,
    language: str,
    rates: Sequence[float],
) -> str:
    """Says that training found nothing better than the trivial answer, or "".

    The score that selects checkpoints is compared, on the dev file, or on the test file
    if dev has no labels. A score that chance alone may give is not better: one within
    two standard errors of the trivial accuracy, or of a correlation of 0.

    `results` are those of `combine`, `language` that of training, `rates` all that were
    tried.
    """
    for split in SPLITS:
        values = results[split].get(language, {})
        pairs = [
            [values.get(f"{prefix}{name}") for name in task.headline]
            for prefix in ("", TRIVIAL)
        ]
        if any(None in scores for scores in pairs):
            continue
        score, trivial = map(statistics.fmean, pairs)
        noise = _noise(task, trivial, values["examples"])
        if score > min(trivial + noise, (trivial + 100) / 2):
            return ""
        higher = 10 * max(rates)
        return (
            f"{task.name}: {' and '.join(task.headline)} {score:.2f} on {language} "
            f"{split} is not clearly above the {trivial:.2f} of "
            f"{_TRIVIAL_ANSWERS[task.kind]}: training has found nothing better. In "
            "another --model_dir, try a higher learning rate, as small models need it "
            f"(--gin_param='FinetuningConfig.learning_rates = ({higher:g},)'), or "
            "more FinetuningConfig.num_epochs; if the training loss was low already, "
            "pre-train with more text"
        )
    return ""


def _noise(task, trivial, examples):
    """Two standard errors of the score of answers that know nothing."""
    if task.kind == REGRESSION:
        return 200 / math.sqrt(examples)
    if task.headline == ("accuracy",) and task.kind == CLASSIFICATION:
        return 2 * math.sqrt(trivial * (100 - trivial) / examples)
    return 0.0


def outside_languages(task: str, results: dict[str, dict]) -> list[str]:
    """The languages of all splits that XTREME does not list for the task, by name."""
    languages = {name for split in SPLITS for name in results[split]}
    return sorted(name for name in languages if not is_official(task, name))


def print_table(
    title: str,
    task: str,
    results: dict[str, dict],
    metrics: Sequence[str],
    training_languages: Sequence[str],
) -> None:
    """Prints a row per language: each metric beside the trivial baseline's.

    The `training_languages` come first. Languages outside XTREME
    come after the means and are not part of them. `results` are those of `combine`.
    """
    splits = [split for split in SPLITS if results[split]]
    outside_names = outside_languages(task, results)
    languages = {name for split in splits for name in results[split]}
    languages.difference_update(outside_names)
    columns = ["language"]
    for split in splits:
        for metric in metrics:
            columns += [f"{split} {metric}", "trivial"]
        columns.append("examples")
    names = sorted(languages, key=lambda name: (name not in training_languages, name))

    def row(name, mark=""):
        of_splits = [results[split].get(name, {}) for split in splits]
        return [f"{name}{mark}", *_cells(of_splits, metrics)]

    rows = [row(name) for name in names]
    scores = {
        split: {name: v for name, v in results[split].items() if name in languages}
        for split in splits
    }
    if len(names) > 1:
        rows.append(_mean_row("mean", scores, splits, metrics, ()))
    other_languages = languages.difference(training_languages)
    if languages != other_languages and len(other_languages) > 1:
        head = f"mean but {', '.join(training_languages)}"
        rows.append(_mean_row(head, scores, splits, metrics, training_languages))
    rows += [row(name, OUTSIDE) for name in outside_names]
    console.table(title, columns, rows)


def _cells(of_splits, metrics):
    for values in of_splits:
        for metric in metrics:
            yield _cell(values, metric)
            yield _cell(values, f"{TRIVIAL}{metric}")
        yield values.get("examples")


def _cell(values, metric):
    if metric not in values:
        return None
    spread = values.get(f"{metric}{SPREAD}")
    text = f"{values[metric]:.2f}"
    return text if spread is None else f"{text} ± {spread:.2f}"


def _mean_row(title, results, splits, metrics, omitted_names):
    row = [title]
    for split in splits:
        for metric in metrics:
            for name in (metric, f"{TRIVIAL}{metric}"):
                value = mean_over(results[split], name, omitted_names)
                row.append(None if value is None else f"{value:.2f}")
        row.append(None)
    return row


def plot_results(
    results: dict[str, dict], task: FinetuningTask, trained_on: str, stem: str
) -> list[str]:
    """Draws `stem`.png and `stem`.svg; returns their paths, none without labels.

    Points show the test files, or the dev files if the test files have no labels; their
    bars are the spread over seeds, and short black lines the trivial baseline.

    `results` are those of `combine`, `trained_on` describes the languages of training.
    """
    split, languages = _labelled(results, task)
    if not languages:
        return []
    places, lines = list(range(len(languages))), []
    for metric in task.headline:
        values, spreads = (
            [row.get(f"{metric}{suffix}", 0.0) for row in languages.values()]
            for suffix in ("", SPREAD)
        )
        sides = (
            [
                value + sign * spread
                for value, spread in zip(values, spreads, strict=True)
            ]
            for sign in (-1, 1)
        )
        lines.append(Line(metric, values, places, *sides))
    trivial = [
        (row[name], place)
        for place, row in enumerate(languages.values())
        for name in (f"{TRIVIAL}{metric}" for metric in task.headline)
        if name in row
    ]
    if trivial:
        look = {"marker": "|", "color": plots.BLACK, "markersize": 12}
        lines.append(Line("trivial baseline", *zip(*trivial, strict=True), look=look))
    rows = [name if is_official(task.name, name) else f"{name}*" for name in languages]
    label = f"{split} score, %"
    if rows != list(languages):
        label += "\n* a language that XTREME does not list for the task"
    title = f"{task.name}: trained on {trained_on}, zero-shot in the others"
    if any(f"{m}{SPREAD}" in row for row in languages.values() for m in task.headline):
        title += "\nlines: standard deviation over seeds"
    return draw(Picture(title, [[Panel(lines, label, rows=rows)]]), stem)


def _labelled(results, task):
    """The split that is drawn, and its languages that have labels, those of training
    first."""
    for split in reversed(SPLITS):
        names = [
            name
            for name, values in results[split].items()
            if any(metric in values for metric in task.headline)
        ]
        if names:
            names.sort(key=lambda name: (name not in task.training_languages, name))
            return split, {name: results[split][name] for name in names}
    return SPLITS[-1], {}
