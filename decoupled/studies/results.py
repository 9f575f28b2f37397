"""One table of results: numbers by model, task, metric and seed.

Those of sweeps are read from sweep.json and, for complete jobs, eval.json
(pre-training) and results.json (fine-tuning). An incomplete run leaves a gap.
"""

import csv
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from decoupled.core import files, tables
from decoupled.core.errors import UserError
from decoupled.core.made_from import MADE_FROM
from decoupled.studies.jobs import (
    DESCRIPTION,
    FINETUNING,
    PRETRAINING,
    RESULT_FILES,
    Row,
    read_row,
    record_fingerprint,
)
from decoupled.xtreme import official

# The metric of pre-training's results.
MLM = "MLM acc"

# Seed -> value.
Values = Mapping[int, float]


class Number(NamedTuple):
    """A single number.

    row: name of the model. task: of fine-tuning, or PRETRAINING. value: as tables show
    it, scores in percent. folder: of the run, whose config.1.gin has its settings.
    """

    row: str
    task: str
    metric: str
    seed: int
    value: float
    folder: str = ""


class SweepResults(NamedTuple):
    """Every value of sweeps.

    title: of the first sweep. tasks: of fine-tuning that have scores. scored: the split
      and the languages of the scores of each of them, in words. unscored: those whose
      complete runs have results, but none in the languages of the score.
    complete: the number of complete jobs, of all that were `planned`.
    """

    title: str
    rows: Mapping[str, Row]
    tasks: Sequence[str]
    numbers: Sequence[Number]
    scored: Mapping[str, str]
    unscored: Sequence[str]
    complete: int
    planned: int

    def values(self, row: str, task: str, metric: str) -> dict[int, float]:
        """One number of a model by seed; empty if it was not measured."""
        key = row, task, metric
        return {n.seed: n.value for n in self.numbers if n[:3] == key}

    def metrics(self, row: str, task: str) -> tuple[str, ...]:
        """The metrics whose mean is a model's score of a task of fine-tuning."""
        if task in official.TASKS:
            return official.TASKS[task].headline
        task_numbers = [n for n in self.numbers if n.task == task]
        row_numbers = [n for n in task_numbers if n.row == row] or task_numbers
        return tuple(dict.fromkeys(n.metric for n in row_numbers))

    def score(self, row: str, task: str) -> dict[int, float]:
        """The mean of a task's metrics; exact match and F1 count half each."""
        return over_seeds(
            self.values(row, task, name) for name in self.metrics(row, task)
        )

    def averages(self, row: str) -> dict[int, float]:
        """The mean of all tasks' scores."""
        return over_seeds(self.score(row, task) for task in self.tasks)

    def masked_lm(self, row: str) -> dict[int, float]:
        """Masked-LM accuracy on held-out text."""
        return self.values(row, PRETRAINING, MLM)


def over_seeds(values: Iterable[Values]) -> dict[int, float]:
    """The mean of several numbers, for the seeds that all of them have."""
    parts = list(values)
    if not parts:
        return {}
    seeds = set.intersection(*(set(each) for each in parts))
    return {
        seed: statistics.fmean(each[seed] for each in parts) for seed in sorted(seeds)
    }


class SeedSpread(NamedTuple):
    """A mean, the sample standard deviation (0 for one value), and the count."""

    mean: float
    deviation: float
    count: int


def spread(values: Values) -> SeedSpread | None:
    """The spread over the seeds; None if there are none."""
    if not values:
        return None
    numbers = list(values.values())
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return SeedSpread(statistics.fmean(numbers), deviation, len(numbers))


COLUMNS = "model task metric seed value folder".split()


def numbers_as_csv(numbers: Iterable[Number]) -> str:
    """A line per number, below a line of `COLUMNS`."""
    return tables.to_csv(COLUMNS, numbers)


def read_numbers(path: str) -> list[Number]:
    """Reads a file of `numbers_as_csv`."""
    lines = list(csv.reader(files.split_lines(files.read_text(path))))
    if not lines or lines[0] != COLUMNS:
        raise UserError(f"{path}: does not begin with {','.join(COLUMNS)}")
    numbers = []
    for place, line in enumerate(lines[1:], start=2):
        try:
            row, task, metric, seed, value, folder = line
            numbers.append(Number(row, task, metric, int(seed), float(value), folder))
        except ValueError as error:
            raise UserError(f"{path}, line {place}: not a number of a run") from error
    return numbers


def read_description(sweep_dir: str) -> dict[str, Any]:
    """sweep.json of a sweep."""
    path = os.path.join(sweep_dir, DESCRIPTION)
    if not files.exists(path):
        raise UserError(f"{sweep_dir}: no {DESCRIPTION}; is it a folder of a sweep?")
    description = files.read_json(path)
    try:
        rows = [row["name"] for row in description["rows"]]
        seeds = [f"seed_{seed}" for seed in description["seeds"]]
        for name in (*rows, *seeds, *description["tasks"]):
            files.path_below(sweep_dir, name, path)
        if type(description["title"]) is not str:
            raise TypeError("its title is no text")
        for row in description["rows"]:
            read_row(row)
        for name in ("outdated", "settings"):
            if type(description.get(name, {})) is not dict:
                raise TypeError(f"{name!r} is no object")
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not the description of a sweep ({files.reason(error)}); start "
            "the sweep again in another folder"
        ) from error
    return description


def read_sweeps(sweep_dirs: Sequence[str]) -> SweepResults:
    """The rows of all sweeps, in their order; the seeds of equal models are joined."""
    rows: dict[str, Row] = {}
    tasks: dict[str, None] = {}
    by_row: dict[str, dict[tuple, dict[int, Number]]] = {}
    scored_in: dict[str, tuple[str, str]] = {}
    evaluated_on: dict[str, tuple[Any, str]] = {}
    jobs: list[tuple[str, str | None]] = []
    sweeps = [(folder, read_description(folder)) for folder in sweep_dirs]
    _check_settings(sweeps)
    for folder, description in sweeps:
        tasks |= dict.fromkeys(description["tasks"])
        for entry in description["rows"]:
            row = read_row(entry)
            if rows.setdefault(row.name, row) != row:
                raise UserError(
                    f"{folder}: {row.name} has other sizes than in another sweep; "
                    "report them apart"
                )
            runs = _runs(folder, description, row.name)
            jobs += ((task, run) for (task, _), run in runs.items())
            seen = by_row.setdefault(row.name, {})
            for number in _numbers(row.name, runs, scored_in, evaluated_on):
                other = seen.setdefault(number[:3], {}).setdefault(number.seed, number)
                if other is not number:
                    raise UserError(
                        f"{number.folder}: seed {number.seed} of {row.name} is in "
                        f"{other.folder}, too; report them apart"
                    )
    numbers = [
        number
        for by_metric in by_row.values()
        for by_seed in by_metric.values()
        for number in by_seed.values()
    ]
    scores_of_task = {task: scores for task, (scores, _) in scored_in.items()}
    complete = [task for task, run in jobs if run]
    return SweepResults(
        sweeps[0][1]["title"],
        rows,
        [task for task in tasks if task in scores_of_task],
        numbers,
        scores_of_task,
        [task for task in tasks if task in complete and task not in scores_of_task],
        len(complete),
        len(jobs),
    )


def _check_settings(sweeps):
    """Refuses sweeps that trained with other settings than one before them."""
    first_values: dict[str, tuple[Any, str]] = {}
    for folder, description in sweeps:
        # Earlier versions did not keep all of them.
        for name, value in description.get("settings", {}).items():
            first_value, first_folder = first_values.setdefault(name, (value, folder))
            if value != first_value:
                raise UserError(
                    f"{folder}: trained with other settings than {first_folder} "
                    f"({DESCRIPTION}: settings, {name}); report them apart"
                )


def _runs(folder, description, row):
    """Task and seed -> the folder of a complete run, or None; pre-training first."""
    seeds, tasks = description["seeds"], description["tasks"]
    pairs = [(PRETRAINING, seed) for seed in seeds]
    pairs += [(task, seed) for seed in seeds for task in tasks]
    return {pair: _complete_run(folder, description, row, *pair) for pair in pairs}


def _complete_run(folder, description, row, task, seed):
    """The folder of a run that is complete for the sweep's last command, or None."""
    is_pretraining = task == PRETRAINING
    place = "models" if is_pretraining else f"tasks/{task}"
    name = f"{place}/{row}/seed_{seed}"
    run = os.path.join(folder, name)
    result = RESULT_FILES[PRETRAINING if is_pretraining else FINETUNING]
    record = record_fingerprint(run)
    if record is None or not files.exists(os.path.join(run, result)):
        return None
    # Earlier versions did not note what is outdated.
    outdated = description.get("outdated", {})
    return None if outdated.get(name) == record else run


def _numbers(row, runs, scored_in, evaluated_on):
    """`scored_in`: task -> the split and the languages of its scores, in words, and a
    run that has them. `evaluated_on`: row -> the held-out files, and such a run."""
    for (task, seed), run in runs.items():
        if run is None:
            continue
        if task == PRETRAINING:
            values = _masked_lm(run, row, evaluated_on)
        else:
            values = _means(run, task, scored_in)
        for metric, value in values.items():
            yield Number(row, task, metric, seed, value, run)


def _masked_lm(run, row, evaluated_on):
    path = os.path.join(run, RESULT_FILES[PRETRAINING])
    try:
        results = files.read_json(path)
        values = {MLM: 100 * results["all"]["masked_lm_accuracy"]}
        # Earlier versions did not record it.
        text = results[MADE_FROM]["files"] if MADE_FROM in results else None
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not an evaluation ({files.reason(error)}); remove the folder to "
            "train anew"
        ) from error
    if text is not None and evaluated_on.setdefault(row, (text, run))[0] != text:
        raise UserError(
            f"{run}: was evaluated on other held-out text than {evaluated_on[row][1]}; "
            "their means cannot be compared"
        )
    return values


def _means(run, task, scored_in):
    results = files.read_json(os.path.join(run, RESULT_FILES[FINETUNING]))
    # A task's score is that of its dev files if these are in several languages.
    for split in ("dev", "test"):
        languages = official.scored_languages(task, results, split)
        if len(languages) > 1:
            break
    if not languages:
        return {}
    scores = f"{split} scores of {', '.join(sorted(languages))}"
    known_scores, first_run = scored_in.setdefault(task, (scores, run))
    if known_scores != scores:
        raise UserError(
            f"{run}: has {scores}, and {first_run} has {known_scores}; their means "
            "cannot be compared"
        )
    return {
        name: statistics.fmean(values[name] for values in languages.values())
        for name in official.headline(task, results)
    }
