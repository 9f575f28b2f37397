"""Scores with the last layers removed (paper Figure 1).

Reads results.json of fine-tuning runs that kept only the first layers
(FinetuningConfig.keep_layers) of one pre-trained model or of several. Runs whose models
have equal sizes, before and after pre-training, count as seeds: their mean and standard
deviation are shown. They must have been fine-tuned with equal settings.

  decoupled analyze layer_drop --finetuned_dir=runs/e_out_768_keep_12 \\
      --finetuned_dir=runs/e_out_768_keep_11 --output_dir=results
"""

import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.output import Line, Panel, Picture, Table
from decoupled.configs import ModelConfig
from decoupled.core import files, plots
from decoupled.core.errors import UserError
from decoupled.core.made_from import MADE_FROM, RESULTS, differences
from decoupled.runs import run_folder
from decoupled.xtreme import official

# The sizes that may tell models apart in a legend; the paper's variable comes first.
_SIZES = {
    "output_embedding_size": "E_out",
    "input_embedding_size": "E_in",
    "hidden_size": "H",
    "coupled": "coupled",
}
_PRETRAINED_LAYERS = "pretrained_layers"
# What may differ between seeds or models, in `data` of config.json.
_MAY_DIFFER = (
    *("seed", "learning_rate", "init_checkpoint", "init_checkpoint_sha256"),
    _PRETRAINED_LAYERS,
)


class FinetunedRun(NamedTuple):
    """A fine-tuned model: its folder, the files of its results, its task, settings and
    vocabulary (the beginning of its fingerprint), the layers of the pre-trained model
    (None in earlier versions), what else config.json says of its training, the metrics
    of its score, and a score per seed with what no other seed has: a path, weights
    (SHA-256), and all that it began with. Earlier versions did not record the latter.
    """

    folder: str
    results: list[str]
    task: str
    model: ModelConfig
    vocabulary: str
    pretrained_layers: int | None
    training: dict[str, Any]
    metrics: list[str]
    languages: list[str]
    scores: list[float]
    keys: list[set[str]]


def run(flags: Any) -> dict[str, Any]:
    """The result of the command's flags."""
    return measure(flags.finetuned_dir, flags.split)


def measure(folders: Sequence[str], split: str = "dev") -> dict[str, Any]:
    """Scores by layers kept: `tasks`, task -> `languages` and `points`.

    A point is a model with a number of `layers`. `dropped` is the difference to the
    most layers among its runs, `scores` has one per seed; `std` is None for one seed.
    """
    files.check_distinct(folders)
    runs = [read_run(folder, split) for folder in folders]
    _check_no_copies(runs)
    names = _names(runs)
    tasks = {}
    for task in dict.fromkeys(run.task for run in runs):
        first, *others = task_runs = [run for run in runs if run.task == task]
        for other in others:
            for other_names, first_names in (
                (other.metrics, first.metrics),
                (other.languages, first.languages),
            ):
                if other_names != first_names:
                    raise UserError(
                        f"{other.folder}: has scores of {', '.join(other_names)}, and "
                        f"{first.folder} of {', '.join(first_names)}; their means "
                        "cannot be compared"
                    )
        tasks[task] = {
            "metrics": first.metrics,
            "languages": first.languages,
            "points": list(_points(task_runs, names)),
        }
    return {"analysis": "layer_drop", "split": split, "tasks": tasks}


def _check_no_copies(runs: Sequence[FinetunedRun]) -> None:
    """Refuses a seed that two of the folders have, as it would count twice."""
    paths: dict[str, str] = {}
    for run in runs:
        for path, keys in zip(run.results, run.keys, strict=True):
            if copies := keys & paths.keys():
                raise UserError(
                    f"{path}: is of the same run as {paths[copies.pop()]}, or of the "
                    "same seed with another learning rate; give only one of their "
                    "folders"
                )
            paths |= dict.fromkeys(keys, path)


def read_run(folder: str, split: str) -> FinetunedRun:
    """Reads a folder that `decoupled finetune` wrote.

    A score is the mean over languages, and over the metrics if the task's score is the
    mean of several metrics. If the folder has runs of several seeds, each is read.
    """
    record = run_folder.read(folder)
    if record.command != "finetune" or not record.task:
        raise UserError(
            f"{folder}: is not a folder of fine-tuning; give one that "
            "decoupled finetune wrote"
        )
    # results.json of a seed does not name the metrics of a task of one's own.
    data = record.data
    if isinstance(data.get("optimizer"), dict):
        # Only earlier versions, which had another one too, record its name.
        data = data | {"optimizer": {"name": "adamw", **data["optimizer"]}}
    metrics = {"headline": data["headline"]} if "headline" in data else {}
    results = [(path, values | metrics) for path, values in read_results(folder)]
    scores = [_scores(path, values, split) for path, values in results]
    means = [statistics.fmean(by_language.values()) for by_language in scores]
    task = record.task["name"]
    training = {name: data[name] for name in data if name not in _MAY_DIFFER}
    sha256, keys = data.get("init_checkpoint_sha256"), []
    for path, values in results:
        # The runs of a grid differ in their learning rates alone: they are one seed.
        start = repr((task, record.model, training, sha256, values.get("seed")))
        weights = values.get(MADE_FROM, {}).get("checkpoint")
        keys.append({path, weights, start if sha256 else None} - {None})
    return FinetunedRun(
        folder,
        [path for path, _ in results],
        task,
        record.model,
        record.vocabulary_fingerprint[:8],
        data.get(_PRETRAINED_LAYERS),
        training,
        official.headline(task, results[0][1]),
        sorted(scores[0]),
        means,
        keys,
    )


def read_results(folder) -> list[tuple[str, dict]]:
    """Path and content of results.json, for each seed if there are several."""
    path = os.path.join(folder, RESULTS)
    if not files.exists(path):
        raise UserError(
            f"{folder}: no {RESULTS}; decoupled finetune writes it at its end"
        )
    results = files.read_json(path)
    if not isinstance(results, dict):
        raise UserError(f"{path}: not the results of fine-tuning")
    best_runs = [
        run
        for run in results.get("runs", [])
        if run["learning_rate"] == results["learning_rate"]
    ]
    if len(best_runs) < 2:
        return [(path, results)]
    # A checkpoint is below learning_rate_R/seed_S/.
    seeds = ["/".join(run["checkpoint"].split("/")[:2]) for run in best_runs]
    paths = [files.path_below(folder, f"{seed}/{RESULTS}", path) for seed in seeds]
    return [(each, files.read_json(each)) for each in paths]


def _scores(path, results, split) -> dict[str, float]:
    """Language -> the mean of the task's metrics."""
    task = results["task"]
    metrics = official.headline(task, results)
    languages = official.scored_languages(task, results, split)
    if not languages:
        other_split = "test" if split == "dev" else "dev"
        cure = f"give --split={other_split}"
        if not official.scored_languages(task, results, other_split):
            cure = "evaluate files with labels: decoupled finetune --mode=eval"
        raise UserError(f"{path}: has no {', '.join(metrics)} of {split}; {cure}")
    return {
        language: statistics.fmean(values[name] for name in metrics)
        for language, values in languages.items()
    }


def _names(runs) -> dict[str, str]:
    """Folder -> what distinguishes its model, except its layers, e.g. "E_out 768"."""
    settings = {
        run.folder: {**vars(run.model), "vocabulary": run.vocabulary} for run in runs
    }
    if all(run.pretrained_layers is not None for run in runs):
        for run in runs:
            settings[run.folder][_PRETRAINED_LAYERS] = run.pretrained_layers
    fields = dict.fromkeys([*_SIZES, *settings[runs[0].folder]])
    fields.pop("num_layers")
    differing_fields = [
        name for name in fields if len({str(of[name]) for of in settings.values()}) > 1
    ] or ["output_embedding_size"]

    def setting_text(of, name):
        if name == "coupled":
            return "coupled" if of[name] else "decoupled"
        return f"{_SIZES.get(name, name)} {of[name]}"

    return {
        folder: ", ".join(setting_text(of, name) for name in differing_fields)
        for folder, of in settings.items()
    }


def _points(runs, names):
    groups: dict[tuple[str, int], list[FinetunedRun]] = {}
    first_runs: dict[str, FinetunedRun] = {}
    for run in runs:
        name = names[run.folder]
        _check_training(first_runs.setdefault(name, run), run)
        groups.setdefault((name, run.model.num_layers), []).append(run)
    most_layers = dict(sorted(groups))
    for (name, layers), point_runs in sorted(groups.items()):
        scores = [score for run in point_runs for score in run.scores]
        yield {
            "model": name,
            "sizes": {size: getattr(point_runs[0].model, size) for size in _SIZES},
            "layers": layers,
            "dropped": most_layers[name] - layers,
            "scores": scores,
            "mean": statistics.fmean(scores),
            "std": statistics.stdev(scores) if len(scores) > 1 else None,
            "folders": [run.folder for run in point_runs],
            "sha256": {
                path: files.file_fingerprint(path)
                for run in point_runs
                for path in run.results
            },
        }


def _check_training(first_run, run):
    """Refuses a run that was fine-tuned with other settings than the first one."""
    first_settings = _shared_entries(first_run.training, run.training)
    settings = _shared_entries(run.training, first_run.training)
    for name, old, new in differences("", first_settings, settings):
        raise UserError(
            f"{run.folder}: was fine-tuned with {name} {new}, and {first_run.folder} "
            f"with {old}; analyse them apart"
        )


def _shared_entries(entries, others):
    """The entries that both have: an earlier version did not record all of them."""
    if not (isinstance(entries, dict) and isinstance(others, dict)):
        return entries
    return {n: _shared_entries(entries[n], others[n]) for n in entries if n in others}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """A table per task: a row per model, a column per number of layers."""
    for task, scores in result["tasks"].items():
        points = scores["points"]
        layers = sorted({point["layers"] for point in points})
        cells = {
            (p["model"], p["layers"]): f"{p['mean']:.2f}"
            + ("" if p["std"] is None else f" ± {p['std']:.2f}")
            for p in points
        }
        yield Table(
            f"{task} {result['split']}, {' and '.join(scores['metrics'])}, mean of "
            f"{len(scores['languages'])} languages; columns are the layers kept",
            ["model", *map(str, layers)],
            [[m, *(cells.get((m, n)) for n in layers)] for m in _models(points)],
        )


def picture(result: dict[str, Any]) -> Picture:
    """Score by layers kept, a panel per task; bars: standard deviation over seeds."""
    panels, seeds = [], []
    for task, scores in result["tasks"].items():
        lines = []
        for model in _models(scores["points"]):
            points = [p for p in scores["points"] if p["model"] == model]
            seeds += [len(point["scores"]) for point in points]
            layers = [point["layers"] for point in points]
            mean = np.array([point["mean"] for point in points])
            std = np.array([point["std"] or 0.0 for point in points])
            lines.append(Line(model, layers, mean, mean - std, mean + std))
        panels.append(Panel(lines, "layers kept", f"score on {result['split']}", task))
    title = f"Fine-tuned without the last layers; {plots.over_seeds(seeds)}"
    return Picture(title, [panels])


def _models(points):
    """The models in the order of E_out."""
    sorted_points = sorted(
        points, key=lambda p: (p["sizes"]["output_embedding_size"], p["model"])
    )
    return list(dict.fromkeys(point["model"] for point in sorted_points))
