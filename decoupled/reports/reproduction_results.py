"""What a reproduction measured, model by model and seed by seed, from its folders.

Reads the folders of a sweep (`sweep_results`) and what `sweeps/study.py` adds to them:
fine-tuning without the last layers, and analyses of all models of a seed. What is
missing or not complete leaves a gap.
"""

import os
import re
import statistics
from typing import Any, NamedTuple

from decoupled.core import files, gfile
from decoupled.reports.sweep_results import (
    Measured,
    RowResults,
    headline,
    measured,
    read_description,
    read_rows,
    scored_languages,
    settings_of,
)
from decoupled.runs import run_folder
from decoupled.runs.zero_shot_results import RESULTS, TRIVIAL

_RECORD = "job.json"
_SEED = re.compile(r"seed_(\d+)")
# The paper's score of a pair of words.
_PRODUCT = "dot"

# Model -> seed -> value.
Values = dict[str, dict[int, Any]]


class Evidence(NamedTuple):
    """Everything that tables, figures and claims are made of. Scores are in percent.

    folder: of the runs. described: sweep.json. rows: of the sweep, by model.
    tasks: those with scores.
    dropped: model -> layers kept -> seed -> score, the mean of the tasks.
    controls: model -> seed -> score after one step of pre-training.
    translation: model -> seed -> accuracy of each layer, the mean over languages,
    English to the other one. languages: of these -> pairs.
    similarity: (set, "input" or "output") -> model -> seed -> Spearman x 100.
    coverage: set -> (pairs whose words the vocabulary can write, pairs).
    probing: task -> model -> seed -> F1 of a probe on all layers, in percent.
    ranks: "input" or "output" -> model -> seed -> effective rank.
    trivial: score of the trivial baseline, as the most frequent class.
    seconds: of all complete jobs together.
    numbers: each by itself, with the folder it was read from.
    """

    folder: str
    described: dict[str, Any]
    rows: dict[str, RowResults]
    tasks: list[str]
    dropped: dict[str, dict[int, dict[int, float]]]
    controls: Values
    translation: Values
    languages: dict[str, int]
    similarity: dict[tuple[str, str], Values]
    coverage: dict[str, tuple[int, int]]
    probing: dict[str, Values]
    ranks: dict[str, Values]
    trivial: float | None
    seconds: float
    numbers: list[Measured]

    def averages(self, row: str) -> dict[int, float]:
        """seed -> mean score of the tasks; empty for a model that is not there."""
        return self.rows[row].averages(self.tasks) if row in self.rows else {}

    def masked_lm(self, row: str) -> dict[int, float]:
        """seed -> masked-LM accuracy."""
        return self.rows[row].masked_lm_accuracy if row in self.rows else {}

    def mean_similarity(self, row: str, kind: str) -> dict[int, float]:
        """seed -> Spearman x 100, the mean over the sets, for seeds that have all."""
        return _means(
            models.get(row, {})
            for (_, embedding), models in self.similarity.items()
            if embedding == kind
        )

    def mean_probing(self, row: str) -> dict[int, float]:
        """seed -> F1 of probes, the mean over the tasks, for seeds that have all."""
        return _means(models.get(row, {}) for models in self.probing.values())


def read_evidence(sweep_dir: str) -> Evidence:
    """Reads all that is complete in the folder of a reproduction's runs.

    Raises:
      UserError: it is not a folder of a sweep.
    """
    described = read_description(sweep_dir)
    rows = {row.name: row for row in read_rows([sweep_dir])}
    tasks = [
        task
        for task in described["tasks"]
        if any(task in row.scores for row in rows.values())
    ]
    dropped = list(_runs(os.path.join(sweep_dir, "layer_drop"), 4, tasks))
    controls = list(_runs(os.path.join(sweep_dir, "control", "tasks"), 3, tasks))
    translation, languages = _translation(sweep_dir)
    similarity, coverage = _similarity(sweep_dir)
    probing, ranks = _probing(sweep_dir), _ranks(sweep_dir)
    return Evidence(
        folder=sweep_dir,
        described=described,
        rows=rows,
        tasks=tasks,
        dropped=_by_layers(dropped, rows, tasks),
        controls=_by_row(controls, tasks),
        translation=translation,
        languages=languages,
        similarity=similarity,
        coverage=coverage,
        probing=probing,
        ranks=ranks,
        trivial=_trivial(rows, tasks),
        seconds=_seconds(sweep_dir),
        numbers=[
            *measured(list(rows.values())),
            *(run.number("layer_drop", f"layers 1 to {run.layers}") for run in dropped),
            *(run.number("control", "after one step") for run in controls),
            *_of_analyses(sweep_dir, translation, similarity, probing, ranks),
        ],
    )


def _means(by_seed):
    """seed -> the mean of what all have of it, for the seeds that all have."""
    found = list(by_seed)
    if not found:
        return {}
    seeds = set.intersection(*(set(values) for values in found))
    return {
        seed: statistics.fmean(values[seed] for values in found)
        for seed in sorted(seeds)
    }


class _Run(NamedTuple):
    """A fine-tuning that no row of the sweep has: with what is left of a model."""

    task: str
    row: str
    seed: int
    layers: int
    score: float
    folder: str

    def number(self, of: str, what: str) -> Measured:
        """The score among others, as a number of `of`."""
        return Measured(
            self.row,
            of,
            f"{self.task}, {what}",
            self.seed,
            self.score,
            self.folder,
            settings_of(self.folder),
        )


def _runs(root, levels, tasks):
    """All complete runs in ROOT/TASK/ROW/.../seed_S that have a score."""
    for path in _records(os.path.join(root, *"*" * levels)):
        folder = os.path.dirname(path)
        task, row, *_, seed = folder.split("/")[-levels:]
        score = _score(folder, task) if task in tasks else None
        if score is not None:
            layers = run_folder.read(folder).model.num_layers
            yield _Run(task, row, int(_SEED.fullmatch(seed)[1]), layers, score, folder)


def _by_layers(runs, rows, tasks):
    """model -> layers kept -> seed -> score, all layers among them."""
    scores: dict[tuple[str, int, int], dict[str, float]] = {}
    for run in runs:
        scores.setdefault((run.row, run.layers, run.seed), {})[run.task] = run.score
    for name in {run.row for run in runs} & set(rows):
        row = rows[name]
        for task in tasks:
            for seed, score in row.scores.get(task, {}).items():
                key = name, row.keep_layers or row.model.num_layers, seed
                scores.setdefault(key, {})[task] = score
    dropped: dict[str, dict[int, dict[int, float]]] = {}
    for (name, layers, seed), found in sorted(scores.items()):
        if set(found) == set(tasks):
            by_layers = dropped.setdefault(name, {})
            by_layers.setdefault(layers, {})[seed] = statistics.fmean(found.values())
    return dropped


def _by_row(runs, tasks):
    """model -> seed -> score, for the seeds that have all tasks."""
    return {
        row: _means(
            {run.seed: run.score for run in runs if (run.row, run.task) == (row, task)}
            for task in tasks
        )
        for row in dict.fromkeys(run.row for run in runs)
    }


def _score(folder, task, prefix=""):
    """The task's score in a run's results; None where it has none.

    Args:
      prefix: of the metrics' names: "trivial_" for the trivial baseline.
    """
    languages = scored_languages(
        files.read_json(os.path.join(folder, RESULTS)), task
    ).values()
    names = [f"{prefix}{metric}" for metric in headline(task)]
    if not languages or any(set(names) - set(values) for values in languages):
        return None
    return statistics.fmean(values[name] for values in languages for name in names)


def _analyses(sweep_dir, name):
    """The results of an analysis: model, seed and what the analysis says of it."""
    for path in _records(os.path.join(sweep_dir, "analyses", name, "*")):
        result = files.read_json(os.path.join(os.path.dirname(path), f"{name}.json"))
        for model in result["models"]:
            *_, row, seed = model["folder"].split("/")
            yield row, int(_SEED.fullmatch(seed)[1]), model


def _records(folders):
    return gfile.glob(os.path.join(folders, _RECORD))


def _translation(sweep_dir):
    accuracies: Values = {}
    languages = {}
    for row, seed, model in _analyses(sweep_dir, "neighbours"):
        measured = [entry["layers"] for entry in model["languages"]]
        accuracies.setdefault(row, {})[seed] = [
            statistics.fmean(layer["forward"] for layer in layers)
            for layers in zip(*measured, strict=True)
        ]
        for entry in model["languages"]:
            languages[entry["language"]] = entry["layers"][0]["pairs"]
    return accuracies, languages


def _similarity(sweep_dir):
    similarity: dict[tuple[str, str], Values] = {}
    coverage = {}
    for row, seed, model in _analyses(sweep_dir, "word_similarity"):
        for entry in model["correlations"]:
            if entry["score"] != _PRODUCT or entry["spearman"] is None:
                continue
            by_model = similarity.setdefault((entry["set"], entry["embedding"]), {})
            by_model.setdefault(row, {})[seed] = 100 * entry["spearman"]
            coverage[entry["set"]] = entry["covered"], entry["pairs"]
    return similarity, coverage


def _probing(sweep_dir):
    probing: dict[str, Values] = {}
    for row, seed, model in _analyses(sweep_dir, "probing"):
        for probe in model["probes"]:
            by_model = probing.setdefault(probe["task"], {})
            found = probe.get("test", probe["dev"])["f1"]
            by_model.setdefault(row, {})[seed] = 100 * found
    return probing


def _ranks(sweep_dir):
    ranks: dict[str, Values] = {}
    for row, seed, model in _analyses(sweep_dir, "spectrum"):
        for entry in model["embeddings"]:
            by_model = ranks.setdefault(entry["embedding"], {})
            rank = entry["centred"]["effective_rank"]
            by_model.setdefault(row, {})[seed] = rank
    return ranks


def _of_analyses(sweep_dir, translation, similarity, probing, ranks):
    """Every number of the analyses."""
    for row, by_seed in translation.items():
        for layer, _ in enumerate(next(iter(by_seed.values()))):
            found = {row: {seed: values[layer] for seed, values in by_seed.items()}}
            yield from _of_analysis(sweep_dir, "neighbours", f"layer {layer}", found)
    for (name, kind), found in similarity.items():
        metric = f"{name}, {kind} embedding"
        yield from _of_analysis(sweep_dir, "word_similarity", metric, found)
    for task, found in probing.items():
        yield from _of_analysis(sweep_dir, "probing", f"F1, {task}", found)
    for kind, found in ranks.items():
        metric = f"effective rank, {kind} embedding"
        yield from _of_analysis(sweep_dir, "spectrum", metric, found)


def _of_analysis(sweep_dir, name, metric, found):
    """One number of all models and seeds; what has no settings has its model's."""
    for row, by_seed in found.items():
        for seed, value in by_seed.items():
            folder = os.path.join(sweep_dir, "analyses", name, f"seed_{seed}")
            model = os.path.join(sweep_dir, "models", row, f"seed_{seed}")
            settings = settings_of(folder)
            if not files.exists(settings):
                settings = settings_of(model)
            yield Measured(row, name, metric, seed, value, folder, settings)


def _trivial(rows, tasks):
    """Of the same languages as the tasks' scores; None where a task has no such."""
    means = []
    for task in tasks:
        row = next(row for row in rows.values() if task in row.folders)
        folder = next(iter(row.folders[task].values()))
        means.append(_score(folder, task, TRIVIAL))
    return statistics.fmean(means) if means and None not in means else None


def _seconds(sweep_dir):
    levels = ["models/*/*", "tasks/*/*/*", "layer_drop/*/*/*/*", "analyses/*/*"]
    levels += [f"control/{level}" for level in levels[:2]]
    return sum(
        files.read_json(path).get("seconds", 0.0)
        for level in levels
        for path in _records(os.path.join(sweep_dir, level))
    )
