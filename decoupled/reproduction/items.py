"""Reads finished jobs by item: values of analyses, right answers of fine-tunings.

An item of a fine-tuning is an example of its file: a text, or a sentence with one
answer per word. Right answers come from the predictions that every run wrote and from
the files with the labels. They must give the accuracies that the runs reported.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.layer_drop import read_results
from decoupled.configs.finetuning import CLASSIFICATION, TAGGING
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.tab_separated import unquoted
from decoupled.corpora.locales import ENGLISH
from decoupled.reproduction.jobs import DROPPED_TASK, row_of_model
from decoupled.reproduction.statistics import CONTROL, Components, ratios
from decoupled.runs import run_folder
from decoupled.runs.finetuning_run import TRIVIAL
from decoupled.sweeps.jobs import ANALYSES, LAYER_DROP, Job, seed_of
from decoupled.sweeps.jobs import CONTROL as CONTROL_ROOM
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.task import FinetuningTask

_METRIC, _SPLIT = "accuracy", "test"
# Percent; results.json holds all digits.
_ROUNDING = 1e-6


class Analysed(NamedTuple):
    """A finished analysis: its JSON, "MODELINDEX/key" -> values, its models' rows."""

    result: Mapping[str, Any]
    values: Mapping[str, np.ndarray]
    rows: Sequence[str]
    folder: str

    def arrays(self, key: str) -> dict[str, np.ndarray]:
        """Row -> values; without the rows that have none."""
        return {
            row: self.values[f"{index}/{key}"]
            for index, row in enumerate(self.rows)
            if f"{index}/{key}" in self.values
        }


class Items(NamedTuple):
    """The items of a language, the runs of a model averaged.

    right: float64 [items], the number of right answers. total: float64 [items], the
    number of answers: 1 for a text, the number of words for a sentence. baseline: the
    accuracy of a trivial baseline on the same items, in percent: the most frequent
    class, or each word's most frequent tag.
    """

    right: np.ndarray
    total: np.ndarray
    baseline: float


class ResultReader:
    """Reads complete jobs; `tasks` is task -> the parent of its folder.

    Raises:
      UserError: a file is damaged, or the analyses of two seeds have different items.
    """

    def __init__(self, jobs: Sequence[Job], tasks: Mapping[str, str]):
        self.jobs = {job.name: job for job in jobs}
        self.seeds = sorted({seed_of(job.name) for job in jobs})
        self._tasks = tasks
        self._analysed: dict[str, dict[int, Analysed]] = {}
        self._items: dict[str, dict[str, Items]] = {}
        for job in jobs:
            if job.name.startswith(f"{ANALYSES}/"):
                self._read_analysis(job)

    def _read_analysis(self, job):
        stem = os.path.join(job.folder, job.arguments[0])
        result = files.read_json(f"{stem}.json")
        by_seed = self._analysed.setdefault(job.name.split("/")[1], {})
        for other in by_seed.values():
            if _names_of_items(other.result) != _names_of_items(result):
                raise UserError(
                    f"{stem}.json: has other items than {other.folder}; remove both "
                    "folders and run the same command again"
                )
        path = f"{stem}.items.npz"
        values = files.read_arrays(path) if files.exists(path) else {}
        rows = [row for need in job.needs if (row := row_of_model(need))]
        by_seed[seed_of(job.name)] = Analysed(result, values, rows, job.folder)

    def analysed(self, name: str, seed: int) -> Analysed | None:
        """An analysis by the name of its folder, if it is complete."""
        return self._analysed.get(name, {}).get(seed)

    def any_result(self, name: str) -> Mapping[str, Any] | None:
        """The JSON of an analysis, of any seed, for entries that depend on the data."""
        by_seed = self._analysed.get(name, {})
        return next((finished.result for finished in by_seed.values()), None)

    def models(self) -> Iterator[tuple[str, int, Job]]:
        """Yields row, seed and job of each pre-training, including controls."""
        for job in self.jobs.values():
            if row := row_of_model(job.name):
                yield row, seed_of(job.name), job

    def folder(self, name: str, row: str, seed: int) -> str:
        """The folder of a row's values; `name`: of an analysis, or of a task."""
        if analysed := self.analysed(name, seed):
            return analysed.folder
        control = f"{CONTROL_ROOM}/" * row.startswith(CONTROL)
        job = f"{control}tasks/{name}/{row.removeprefix(CONTROL)}/seed_{seed}"
        return self.jobs[job].folder

    def tuned(self, name: str, task: str) -> Components:
        """Component -> percent of right answers by item; empty without the job.

        A tagging task has a component for each language, and its items are sentences.
        Other tasks use the languages that they were not trained on. If all languages
        have equally many texts, the texts are translations of each other, line by line,
        and an item is a text in all languages.
        """
        by_language = {
            language: 100 * ratios(items.right[None], items.total[None])[0]
            for language, items in self._tested(name, task).items()
        }
        sizes = {len(values) for values in by_language.values()}
        if task != DROPPED_TASK and len(sizes) == 1:
            return {"mean": np.mean([*by_language.values()], axis=0)}
        return by_language

    def tuned_rows(self, seed: int, task: str) -> dict[str, Components]:
        """Row -> component -> values, including controls."""
        rows = {}
        for name in self.jobs:
            parts = name.split("/")
            if parts[-4:-2] == ["tasks", task] and seed_of(name) == seed:
                row = CONTROL * (parts[0] == CONTROL_ROOM) + parts[-2]
                if scores := self.tuned(name, task):
                    rows[row] = scores
        return rows

    def dropped(self, seed: int) -> Iterator[tuple[str, int, Components, str]]:
        """Row, layers kept, scores and folder of fine-tunings of the first layers."""
        for name, job in self.jobs.items():
            if name.startswith(f"{LAYER_DROP}/") and seed_of(name) == seed:
                _, _, row, keep, _ = name.split("/")
                scores = self.tuned(name, DROPPED_TASK)
                yield row, int(keep.removeprefix("keep_")), scores, job.folder

    def guess(self, task: str) -> float | None:
        """The trivial baseline of a task, in percent; None without its runs."""
        for name in self.jobs:
            if name.startswith(f"tasks/{task}/"):
                baselines = [
                    of_language.baseline
                    for of_language in self._tested(name, task).values()
                ]
                return float(np.mean(baselines)) if baselines else None
        return None

    def _tested(self, name, task):
        """Language -> items, for the languages that a task is measured in."""
        if name not in self.jobs:
            return {}
        if name not in self._items:
            folder = self.jobs[name].folder
            self._items[name] = read_items(folder, self._tasks[task])
        items = self._items[name]
        if task == DROPPED_TASK:
            return items
        return {
            key: of_language for key, of_language in items.items() if key != ENGLISH
        }


def _names_of_items(result):
    tasks = result.get("tasks", {}).items()
    return result.get("items"), {name: task.get("items") for name, task in tasks}


def read_items(folder: str, data_dir: str) -> dict[str, Items]:
    """The test items of one model's fine-tuning, by language.

    `folder` is that of `finetune`, with one run or several.

    Raises:
      UserError: a file is missing, predictions do not fit the file with the labels, or
        their accuracy differs from results.json.
    """
    runs = read_results(folder)
    task = _task(folder, data_dir)
    by_language = {}
    for language, scores in runs[0][1].get(_SPLIT, {}).items():
        if _METRIC not in scores:
            # A file without labels.
            continue
        examples = task.read(_SPLIT, language)
        gold = [_labels(example) for example in examples]
        total = np.array([len(labels) for labels in gold], np.float64)
        right = []
        for path, results in runs:
            right.append(_right(task, path, language, gold))
            reported = results[_SPLIT][language][_METRIC]
            counted = 100 * right[-1].sum() / total.sum()
            if abs(counted - reported) > _ROUNDING:
                raise UserError(
                    f"{path}: says {reported:.4f} for {_SPLIT} {language}, but its "
                    f"predictions have {counted:.4f}; run decoupled finetune "
                    "--mode=eval again"
                )
        baseline = scores[f"{TRIVIAL}{_METRIC}"]
        by_language[language] = Items(np.mean(right, 0), total, baseline)
    if not by_language:
        raise UserError(f"{runs[0][0]}: has no scores of {_SPLIT}")
    return by_language


def _task(folder: str, data_dir: str) -> FinetuningTask:
    described = run_folder.read(folder)
    if described.task is None:
        raise UserError(f"{folder}: is of pre-training, not of fine-tuning")
    name = described.task["name"]
    length = described.data["features"]["max_sequence_length"]
    if name not in TASKS or TASKS[name].kind not in (CLASSIFICATION, TAGGING):
        raise UserError(f"{folder}: {name} is no task whose answers are counted here")
    return task_of(TASKS[name], data_dir, length)


def _labels(example: Any) -> list[str]:
    return example.tags if hasattr(example, "tags") else [example.label]


def _right(
    task: FinetuningTask, results: str, language: str, gold: list[list[str]]
) -> np.ndarray:
    """Right answers of each item, from the predictions beside results.json."""
    path = os.path.join(
        *(os.path.dirname(results), run_folder.PREDICTIONS, task.name),
        f"{_SPLIT}-{language}.{task.prediction_suffix}",
    )
    # Tagged sentences have empty lines between them.
    lines = filter(None, files.split_lines(files.read_text(path)))
    answers = [unquoted(line.split("\t")[0]) for line in lines]
    flat = [label for labels in gold for label in labels]
    if len(answers) != len(flat):
        raise UserError(
            f"{path}: {len(answers):,} answers, but the file with the labels has "
            f"{len(flat):,}; run decoupled finetune --mode=eval again"
        )
    hits = [float(answer == label) for answer, label in zip(answers, flat, strict=True)]
    ends = np.cumsum([0, *map(len, gold)])
    return np.add.reduceat(hits, ends[:-1])
