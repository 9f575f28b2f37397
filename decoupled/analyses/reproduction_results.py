"""What a reproduction measured, model by model and seed by seed, from its folders.

Reads the folders of a sweep (`sweep_results`) and what `sweeps/study.py` adds to them:
fine-tuning without the last layers, and analyses of all models of a seed. What is
missing or not complete leaves a gap.
"""

import os
import re
import statistics
from typing import Any, NamedTuple

import tensorflow as tf

from decoupled import files, model_dir
from decoupled.analyses.sweep_results import (
    RowResults,
    headline,
    read_description,
    read_rows,
    scored_languages,
)
from decoupled.training.zero_shot_results import RESULTS, TRIVIAL

_RECORD = "job.json"
_SEED = re.compile(r"seed_(\d+)")
# The paper's score of a pair of words.
_PRODUCT = "dot"

# Model -> seed -> value.
Values = dict[str, dict[int, Any]]


class Evidence(NamedTuple):
    """Everything that tables, figures and claims are made of. Scores are in percent.

    described: sweep.json. rows: of the sweep, by model. tasks: those with scores.
    dropped: model -> layers kept -> seed -> score, the mean of the tasks.
    controls: model -> seed -> score after one step of pre-training.
    translation: model -> seed -> accuracy of each layer, the mean over languages,
    English to the other one. languages: of these -> pairs.
    similarity: (set, "input" or "output") -> model -> seed -> Spearman x 100.
    coverage: set -> (pairs whose words the vocabulary can write, pairs).
    probing: task -> model -> seed -> F1 of a probe on all layers, in percent.
    ranks: "input" or "output" -> model -> seed -> effective rank.
    trivial: score of answers that need no model, as the most frequent class.
    seconds: of all complete jobs together.
    """

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
    runs = _dropped_runs(sweep_dir, tasks, rows)
    translation, languages = _translation(sweep_dir)
    similarity, coverage = _similarity(sweep_dir)
    return Evidence(
        described=described,
        rows=rows,
        tasks=tasks,
        dropped=_dropped(runs, tasks),
        controls=_controls(sweep_dir, tasks),
        translation=translation,
        languages=languages,
        similarity=similarity,
        coverage=coverage,
        probing=_probing(sweep_dir),
        ranks=_ranks(sweep_dir),
        trivial=_trivial(rows, tasks),
        seconds=_seconds(sweep_dir),
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


def _dropped_runs(sweep_dir, tasks, rows):
    """(task, model, seed, folder) of models that were also tried with fewer layers."""
    found = []
    for path in _records(os.path.join(sweep_dir, "layer_drop", *"****")):
        folder = os.path.dirname(path)
        task, row, _, seed = folder.split("/")[-4:]
        found.append((task, row, int(_SEED.fullmatch(seed)[1]), folder))
    tried = {(task, row) for task, row, _, _ in found}
    complete = [
        (task, row, seed, folder)
        for task, row in sorted(tried)
        if row in rows
        for seed, folder in rows[row].folders.get(task, {}).items()
    ]
    return [run for run in (*complete, *found) if run[0] in tasks]


def _dropped(runs, tasks):
    scores: dict[tuple[str, int, int], dict[str, float]] = {}
    for task, row, seed, folder in runs:
        key = row, model_dir.read(folder).model.num_layers, seed
        scores.setdefault(key, {})[task] = _score(folder, task)
    dropped: dict[str, dict[int, dict[int, float]]] = {}
    for (row, layers, seed), found in sorted(scores.items()):
        if set(found) == set(tasks):
            by_layers = dropped.setdefault(row, {})
            by_layers.setdefault(layers, {})[seed] = statistics.fmean(found.values())
    return dropped


def _controls(sweep_dir, tasks):
    scores: dict[tuple[str, int], dict[str, float]] = {}
    for path in _records(os.path.join(sweep_dir, "control", "tasks", *"***")):
        folder = os.path.dirname(path)
        task, row, seed = folder.split("/")[-3:]
        key = row, int(_SEED.fullmatch(seed)[1])
        scores.setdefault(key, {})[task] = _score(folder, task)
    controls: Values = {}
    for (row, seed), found in scores.items():
        if set(found) == set(tasks):
            controls.setdefault(row, {})[seed] = statistics.fmean(found.values())
    return controls


def _score(folder, task, prefix=""):
    """The task's score in a run's results; None where it has none.

    Args:
      prefix: of the metrics' names: "trivial_" for answers that need no model.
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
    return sorted(tf.io.gfile.glob(os.path.join(folders, _RECORD)))


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
