"""Reads what the finished runs of sweeps measured from their folders.

sweep.json, and of complete jobs eval.json (pre-training) and results.json
(fine-tuning). A run that is missing or not complete leaves a gap.
"""

import os
import statistics
from collections.abc import Sequence
from typing import Any

from decoupled.configs import EARLIER_VALUES, ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.reports.results import MLM, PRETRAINING, Number, Results, Row, headline
from decoupled.runs.finetuning_run import RESULTS
from decoupled.xtreme import official

DESCRIPTION = "sweep.json"
_RECORD = "job.json"
_SETTINGS = "config.1.gin"
# A task's score is over its dev files where these are in several languages.
_SPLITS = ("dev", "test")


def settings_of(folder: str) -> str:
    """The gin file with every setting that a run used when it was first started."""
    return os.path.join(folder, _SETTINGS)


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


def read_sweeps(sweep_dirs: Sequence[str]) -> Results:
    """The rows of all sweeps, in their order; equal models' seeds are put together.

    Raises:
      UserError: a folder holds no sweep, or two sweeps have different models of one
        name.
    """
    rows: dict[str, Row] = {}
    tasks: dict[str, None] = {}
    found: dict[str, dict[tuple, dict[int, Number]]] = {}
    for folder in sweep_dirs:
        described = read_description(folder)
        tasks |= dict.fromkeys(described["tasks"])
        for entry in described["rows"]:
            row = _row(entry)
            if rows.setdefault(row.name, row) != row:
                raise UserError(
                    f"{folder}: {row.name} has other sizes than in another sweep; "
                    "report them apart"
                )
            own = found.setdefault(row.name, {})
            for number in _numbers(folder, described, row.name):
                own.setdefault(number[:3], {})[number.seed] = number
    numbers = [
        number
        for own in found.values()
        for by_seed in own.values()
        for number in by_seed.values()
    ]
    scored = {number.task for number in numbers}
    return Results(rows, [task for task in tasks if task in scored], numbers)


def _row(entry):
    from decoupled.model.parameters import finetuning_counts, pretraining_counts

    model, keep = ModelConfig(**EARLIER_VALUES | entry["model"]), entry["keep_layers"]
    pretraining = sum(pretraining_counts(model).values())
    finetuning = sum(finetuning_counts(model, keep).values())
    return Row(entry["name"], model, keep, pretraining, finetuning)


def _numbers(folder, described, row):
    """Of pre-training, then of each task."""
    seeds = described["seeds"]
    for seed in seeds:
        run = os.path.join(folder, "models", row, f"seed_{seed}")
        path = os.path.join(run, "eval.json")
        if files.exists(os.path.join(run, _RECORD)) and files.exists(path):
            value = 100 * files.read_json(path)["all"]["masked_lm_accuracy"]
            yield _number(run, row, PRETRAINING, MLM, seed, value)
    for seed in seeds:
        for task in described["tasks"]:
            run = os.path.join(folder, "tasks", task, row, f"seed_{seed}")
            for metric, mean in _task_means(run, task).items():
                yield _number(run, row, task, metric, seed, mean)


def _number(run, *measured):
    return Number(*measured, folder=run, settings=settings_of(run))


def _task_means(run, task):
    """Metric -> mean over the languages, of a complete run that has a score."""
    paths = [os.path.join(run, name) for name in (_RECORD, RESULTS)]
    if not all(map(files.exists, paths)):
        return {}
    languages = scored_languages(files.read_json(paths[1]), task).values()
    names = headline(task)
    if not languages or any(set(names) - set(values) for values in languages):
        return {}
    return {
        name: statistics.fmean(values[name] for values in languages) for name in names
    }


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
