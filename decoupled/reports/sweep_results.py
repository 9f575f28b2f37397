"""What the runs of sweeps gave, row by row and seed by seed, from their folders.

Reads sweep.json, and of complete jobs eval.json (pre-training) and results.json
(fine-tuning). A run that is missing or not complete leaves a gap.
"""

import os
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from decoupled.configs import EARLIER_VALUES, ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.xtreme import official

DESCRIPTION = "sweep.json"
MLM = "MLM acc"
PRETRAINING = "pretrain"
_RECORD = "job.json"
_SETTINGS = "config.1.gin"
# A task's score is over its dev files where these are in several languages.
_SPLITS = ("dev", "test")


class RowResults(NamedTuple):
    """A model of one or more sweeps.

    name: of its gin file. model: sizes. keep_layers: in fine-tuning, 0: all.
    pretraining, finetuning: parameters, as counted in the graphs.
    masked_lm_accuracy: seed -> percent on held-out text.
    scores: task -> seed -> percent; exact match and F1 count half each.
    metrics: task -> metric -> seed -> percent.
    folders: task, or "pretrain" -> seed -> folder of the run.
    """

    name: str
    model: ModelConfig
    keep_layers: int
    pretraining: int
    finetuning: int
    masked_lm_accuracy: dict[int, float]
    scores: dict[str, dict[int, float]]
    metrics: dict[str, dict[str, dict[int, float]]]
    folders: dict[str, dict[int, str]]

    def averages(self, tasks: Sequence[str]) -> dict[int, float]:
        """seed -> mean over the tasks, for the seeds that have all of them."""
        if not tasks or any(task not in self.scores for task in tasks):
            return {}
        seeds = set.intersection(*(set(self.scores[task]) for task in tasks))
        return {
            seed: statistics.fmean(self.scores[task][seed] for task in tasks)
            for seed in sorted(seeds)
        }


class Measured(NamedTuple):
    """A single number.

    row: the model. task: or "pretrain", or the name of an analysis. metric: what it is.
    value: as tables show it. folder: it was read from. settings: the gin file of what
    it was measured with.
    """

    row: str
    task: str
    metric: str
    seed: int
    value: float
    folder: str
    settings: str


class Spread(NamedTuple):
    """A mean, the sample standard deviation (0 for one value), and how many."""

    mean: float
    deviation: float
    count: int


def spread(values: dict[int, float]) -> Spread | None:
    """Over the seeds; None where there are none."""
    if not values:
        return None
    numbers = list(values.values())
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return Spread(statistics.fmean(numbers), deviation, len(numbers))


def measured(rows: Sequence[RowResults]) -> list[Measured]:
    """Every number of the rows, by model, task, metric and seed."""
    numbers = []
    for row in rows:
        for task, metric, values in _metrics(row):
            for seed, value in values.items():
                run = row.folders[task][seed]
                numbers.append(
                    Measured(row.name, task, metric, seed, value, run, settings_of(run))
                )
    return numbers


def _metrics(row):
    """(task, metric, seed -> value), of pre-training first."""
    yield PRETRAINING, MLM, row.masked_lm_accuracy
    for task, metrics in row.metrics.items():
        for metric, values in metrics.items():
            yield task, metric, values


def settings_of(folder: str) -> str:
    """The gin file with every setting that a run used when it was first started."""
    return os.path.join(folder, _SETTINGS)


def read_rows(sweep_dirs: Sequence[str]) -> list[RowResults]:
    """The rows of all sweeps, in their order; equal models' seeds are put together.

    Raises:
      UserError: a folder holds no sweep, or two sweeps have different models of one
        name.
    """
    rows: dict[str, RowResults] = {}
    for folder in sweep_dirs:
        for row in _read_sweep(folder):
            if row.name in rows:
                row = _joined(folder, rows[row.name], row)
            rows[row.name] = row
    return list(rows.values())


def read_description(sweep_dir: str) -> dict[str, Any]:
    """sweep.json of a sweep.

    Raises:
      UserError: there is none, it is damaged, or it names folders outside the sweep's.
    """
    path = os.path.join(sweep_dir, DESCRIPTION)
    if not files.exists(path):
        raise UserError(f"{sweep_dir}: no {DESCRIPTION}; is it a folder of a sweep?")
    described = files.read_json(path)
    try:
        rows = [row["name"] for row in described["rows"]]
        seeds = [f"seed_{seed}" for seed in described["seeds"]]
        for name in (*rows, *seeds, *described["tasks"]):
            files.path_below(sweep_dir, name, path)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not the description of a sweep ({files.reason(error)}); start "
            "the sweep again in another folder"
        ) from error
    return described


def headline(task: str) -> tuple[str, ...]:
    """The metrics whose mean is the task's score."""
    return official.TASKS[task].headline if task in official.TASKS else ("accuracy",)


def _read_sweep(folder):
    from decoupled.model.parameters import finetuning_counts, pretraining_counts

    described = read_description(folder)
    for entry in described["rows"]:
        model = ModelConfig(**EARLIER_VALUES | entry["model"])
        keep = entry["keep_layers"]
        row = RowResults(
            name=entry["name"],
            model=model,
            keep_layers=keep,
            pretraining=sum(pretraining_counts(model).values()),
            finetuning=sum(finetuning_counts(model, keep).values()),
            masked_lm_accuracy={},
            scores={},
            metrics={},
            folders={},
        )
        for seed in described["seeds"]:
            _add_pretraining(row, folder, seed)
            for task in described["tasks"]:
                _add_finetuning(row, folder, task, seed)
        yield row


def _add_pretraining(row, folder, seed):
    run = os.path.join(folder, "models", row.name, f"seed_{seed}")
    path = os.path.join(run, "eval.json")
    if _is_complete(run) and files.exists(path):
        accuracy = files.read_json(path)["all"]["masked_lm_accuracy"]
        row.masked_lm_accuracy[seed] = 100 * accuracy
        row.folders.setdefault(PRETRAINING, {})[seed] = run


def _add_finetuning(row, folder, task, seed):
    run = os.path.join(folder, "tasks", task, row.name, f"seed_{seed}")
    path = os.path.join(run, "results.json")
    if not (_is_complete(run) and files.exists(path)):
        return
    languages = scored_languages(files.read_json(path), task)
    if not languages:
        return
    means = {
        metric: statistics.fmean(values[metric] for values in languages.values())
        for metric in headline(task)
    }
    row.scores.setdefault(task, {})[seed] = statistics.fmean(means.values())
    for metric, mean in means.items():
        row.metrics.setdefault(task, {}).setdefault(metric, {})[seed] = mean
    row.folders.setdefault(task, {})[seed] = run


def _is_complete(run):
    return files.exists(os.path.join(run, _RECORD))


def scored_languages(results: dict[str, Any], task: str) -> dict[str, dict[str, float]]:
    """language -> values of dev, or of test where dev has fewer than two languages.

    Args:
      results: results.json of a run of fine-tuning.

    Returns:
      those of XTREME's languages, for a task of XTREME, that have all metrics of the
      task's score; maybe none.
    """
    metrics, found = headline(task), {}
    for split in _SPLITS:
        found = {
            language: values
            for language, values in results[split].items()
            if official.is_official(task, language)
            and all(metric in values for metric in metrics)
        }
        if len(found) > 1:
            break
    return found


def _joined(folder, first, second):
    if (first.model, first.keep_layers) != (second.model, second.keep_layers):
        raise UserError(
            f"{folder}: {first.name} has other sizes than in another sweep; report "
            "them apart"
        )
    return first._replace(
        masked_lm_accuracy=first.masked_lm_accuracy | second.masked_lm_accuracy,
        scores=_merged(first.scores, second.scores),
        folders=_merged(first.folders, second.folders),
        metrics={
            task: _merged(first.metrics.get(task, {}), second.metrics.get(task, {}))
            for task in {*first.metrics, *second.metrics}
        },
    )


def _merged(first, second):
    return {
        name: first.get(name, {}) | second.get(name, {})
        for name in dict.fromkeys([*first, *second])
    }
