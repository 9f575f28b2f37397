"""Scores of models that were fine-tuned without their last layers (paper Figure 1).

Reads the files of fine-tuning: config.json has the number of layers that a run kept,
and results.json has its scores. If the last layers are specialised on the MLM task,
dropping them does not lower the scores, or raises them.
"""

import math
import os
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from decoupled.configs import ModelConfig
from decoupled.core import console, files, plots
from decoupled.core.errors import UserError
from decoupled.core.made_from import RESULTS
from decoupled.runs import run_folder
from decoupled.xtreme import official

# The sizes that may tell models apart in a legend; the paper's variable comes first.
_SIZES = {
    "output_embedding_size": "E_out",
    "input_embedding_size": "E_in",
    "hidden_size": "H",
    "coupled": "coupled",
}
_NO_METRIC = ("examples", "trivial_")
_SPREAD = "_spread"


class Run(NamedTuple):
    """A fine-tuned model: its folder, task and sizes, and a score per seed."""

    folder: str
    task: str
    model: ModelConfig
    languages: tuple[str, ...]
    scores: list[float]


def read_run(folder: str, split: str, metric: str | None) -> Run:
    """Reads a folder that `decoupled finetune` wrote.

    A score is the mean over languages, and over the metrics if the task's score is the
    mean of several metrics. If the folder has runs of several seeds, each is read.

    Args:
      split: "dev" or "test".
      metric: a name in results.json; None for the metric of the task.

    Raises:
      UserError: the folder is not of fine-tuning, is not finished, or lacks the split
        or the metric.
    """
    described = run_folder.read(folder)
    if described.command != "finetune" or not described.task:
        raise UserError(f"{folder}: is not a folder of fine-tuning")
    results = read_results(folder)
    found = [_score(path, values, split, metric) for path, values in results]
    languages, _ = found[0]
    return Run(
        folder=folder,
        task=described.task["name"],
        model=described.model,
        languages=languages,
        scores=[score for _, score in found],
    )


def measure(
    folders: Sequence[str], split: str = "dev", metric: str | None = None
) -> dict[str, Any]:
    """Scores by layers kept.

    Returns:
      `split`, `metric`, and `tasks`: task -> `languages` and `points`, a list of
      entries with `model` (the sizes that tell it from the others), `sizes`, `layers`
      (the number kept), `dropped` (the difference to the largest number of layers among
      the runs of this model), `scores` (one per seed), `mean`, `std` (of the sample;
      None for one seed) and `folders`.

    Raises:
      UserError: see `read_run`; runs of a task have different languages.
    """
    runs = [read_run(folder, split, metric) for folder in folders]
    names = _names(runs)
    tasks = {}
    for task in dict.fromkeys(run.task for run in runs):
        own = [run for run in runs if run.task == task]
        _check_languages(own)
        tasks[task] = {
            "languages": list(own[0].languages),
            "points": list(_points(own, names)),
        }
    return {"analysis": "layer_drop", "split": split, "metric": metric, "tasks": tasks}


def read_results(folder) -> list[tuple[str, dict]]:
    """Path and content of results.json, for each seed if there are several.

    Raises:
      UserError: a file is missing or malformed.
    """
    path = os.path.join(folder, RESULTS)
    if not files.exists(path):
        raise UserError(
            f"{folder}: no {RESULTS}; decoupled finetune writes it at its end"
        )
    results = files.read_json(path)
    if not isinstance(results, dict):
        raise UserError(f"{path}: not the results of fine-tuning")
    chosen = [
        run
        for run in results.get("runs", [])
        if run["learning_rate"] == results["learning_rate"]
    ]
    if len(chosen) < 2:
        return [(path, results)]
    # A checkpoint is below learning_rate_R/seed_S/.
    seeds = ["/".join(run["checkpoint"].split("/")[:2]) for run in chosen]
    paths = [files.path_below(folder, f"{seed}/{RESULTS}", path) for seed in seeds]
    return [(each, files.read_json(each)) for each in paths]


def show(result: dict[str, Any]) -> None:
    """Prints a table per task: a row per model, a column per number of layers."""
    for task, found in result["tasks"].items():
        points = found["points"]
        kept = sorted({point["layers"] for point in points})
        rows = [
            [model, *(_cell(points, model, layers) for layers in kept)]
            for model in _models(points)
        ]
        console.table(
            f"{task} {result['split']}, mean of {len(found['languages'])} languages; "
            "columns are the layers kept",
            ["model", *map(str, kept)],
            rows,
        )


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """Score by layers kept, a panel per task; bars: standard deviation over seeds."""
    tasks = result["tasks"]
    figure, [axes] = plots.grid(1, len(tasks), 4.2, 3.2)
    series = list(
        dict.fromkeys(m for found in tasks.values() for m in _models(found["points"]))
    )
    for panel, (task, found) in zip(axes, tasks.items(), strict=True):
        for index, model in enumerate(series):
            own = [point for point in found["points"] if point["model"] == model]
            own.sort(key=lambda point: point["layers"])
            panel.errorbar(
                [point["layers"] for point in own],
                [point["mean"] for point in own],
                yerr=[
                    math.nan if point["std"] is None else point["std"] for point in own
                ],
                capsize=2,
                label=model,
                **plots.look(index),
            )
        panel.set_title(task, fontsize=10)
        panel.set_xlabel("layers kept", fontsize=9)
        panel.set_ylabel(f"{result['metric'] or 'score'} on {result['split']}", size=9)
        plots.whole_numbers(panel)
        plots.tidy(panel)
    points = [point for found in tasks.values() for point in found["points"]]
    seeds = [len(point["scores"]) for point in points]
    title = f"Fine-tuned without the last layers; {plots.over_seeds(seeds)}"
    plots.title_and_legend(figure, axes[0], title)
    return plots.save(figure, stem)


def _score(path, results, split, metric):
    """The languages with a score, and their mean."""
    languages = results.get(split)
    if not languages:
        raise UserError(f"{path}: has no scores of {split}")
    first = list(_metrics(languages))[:1]
    metrics = [metric] if metric else official.headline(results["task"], results, first)
    scored = {
        language: statistics.fmean(values[name] for name in metrics)
        for language, values in languages.items()
        if official.is_official(results["task"], language)
        and all(name in values for name in metrics)
    }
    if not scored:
        known = sorted(set(_metrics(languages)))
        raise UserError(
            f"{path}: has no {', '.join(metrics)} of {split}; it has {', '.join(known)}"
        )
    return tuple(sorted(scored)), statistics.fmean(scored.values())


def _metrics(languages):
    for values in languages.values():
        for name in values:
            if not name.startswith(_NO_METRIC) and not name.endswith(_SPREAD):
                yield name


def _names(runs) -> dict[str, str]:
    """Folder -> the sizes that distinguish its model, e.g. "E_out 768"."""
    differing = [
        size for size in _SIZES if len({getattr(run.model, size) for run in runs}) > 1
    ] or ["output_embedding_size"]
    names = {}
    for run in runs:
        parts = [
            ("coupled" if run.model.coupled else "decoupled")
            if size == "coupled"
            else f"{_SIZES[size]} {getattr(run.model, size)}"
            for size in differing
        ]
        names[run.folder] = ", ".join(parts)
    return names


def _check_languages(runs):
    for run in runs[1:]:
        if run.languages != runs[0].languages:
            raise UserError(
                f"{run.folder}: has scores of {', '.join(run.languages)}, and "
                f"{runs[0].folder} of {', '.join(runs[0].languages)}; their means "
                "cannot be compared"
            )


def _points(runs, names):
    grouped: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        grouped.setdefault((names[run.folder], run.model.num_layers), []).append(run)
    most = {
        name: max(layers for other, layers in grouped if other == name)
        for name, _ in grouped
    }
    for (name, layers), own in sorted(grouped.items()):
        scores = [score for run in own for score in run.scores]
        yield {
            "model": name,
            "sizes": {size: getattr(own[0].model, size) for size in _SIZES},
            "layers": layers,
            "dropped": most[name] - layers,
            "scores": scores,
            "mean": statistics.fmean(scores),
            "std": statistics.stdev(scores) if len(scores) > 1 else None,
            "folders": [run.folder for run in own],
        }


def _models(points):
    """The models in the order of E_out."""
    ordered = sorted(
        points, key=lambda p: (p["sizes"]["output_embedding_size"], p["model"])
    )
    return list(dict.fromkeys(point["model"] for point in ordered))


def _cell(points, model, layers):
    for point in points:
        if (point["model"], point["layers"]) == (model, layers):
            spread = "" if point["std"] is None else f" ± {point['std']:.2f}"
            return f"{point['mean']:.2f}{spread}"
    return None
