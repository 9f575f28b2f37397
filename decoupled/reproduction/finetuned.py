"""What finished fine-tuning got right, item by item.

Items are the examples of a file: the texts of a classification, the sentences of a
tagging task with as many answers as they have words. They come from the predictions
that every run wrote and from the files with the labels, and must give the accuracies
that the runs reported.
"""

import os
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.layer_drop import read_results
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.runs import run_folder
from decoupled.runs.finetuning_run import TRIVIAL
from decoupled.tasks.classification import BOOKS, CATALOGS, CorpusTask
from decoupled.tasks.finetuning_task import FinetuningTask
from decoupled.tasks.own import SIB200, make_own_task
from decoupled.tasks.registry import TAGGING
from decoupled.tasks.tagging import TaggingTask

_METRIC = "accuracy"
# Percent; results.json holds all digits.
_ROUNDING = 1e-6


class Items(NamedTuple):
    """A language's items, the runs of a model averaged.

    names: number of each example in its file, from 1; equal for all models, and in
      files of parallel text for all languages.
    right: float64 [items], right answers. total: float64 [items], answers: 1 for a
      text, the words of a sentence. The accuracy is sum(right) / sum(total).
    baseline: accuracy in percent without a model, on the same items: of the most
      frequent class, or of each word's most frequent tag.
    """

    names: list[int]
    right: np.ndarray
    total: np.ndarray
    baseline: float


def read_items(folder: str, data_dir: str, split: str = "test") -> dict[str, Items]:
    """The items of one model's fine-tuning, by language.

    Args:
      folder: of `finetune`, with one run or several. data_dir: as it was given then.
      split: "dev" or "test".

    Raises:
      UserError: a file is missing, predictions do not fit the file with the labels, or
        their accuracy is not that of results.json.
    """
    runs = read_results(folder)
    task = _task(folder, data_dir)
    found = {}
    for language, scores in runs[0][1].get(split, {}).items():
        if _METRIC not in scores:
            # A file without labels.
            continue
        examples = task.read(data_dir, split, language)
        gold = [_labels(example) for example in examples]
        total = np.array([len(labels) for labels in gold], np.float64)
        right = [_right(task, path, split, language, gold) for path, _ in runs]
        for (path, results), hits in zip(runs, right, strict=True):
            _check(path, results[split][language], split, language, hits, total)
        found[language] = Items(
            list(range(1, len(gold) + 1)),
            np.mean(right, 0),
            total,
            scores[f"{TRIVIAL}{_METRIC}"],
        )
    if not found:
        raise UserError(f"{runs[0][0]}: has no scores of {split}")
    return found


def _task(folder: str, data_dir: str) -> FinetuningTask:
    described = run_folder.read(folder)
    if described.task is None:
        raise UserError(f"{folder}: is of pre-training, not of fine-tuning")
    name, kind = described.task["name"], described.task["kind"]
    length = described.data["features"]["max_sequence_length"]
    if kind == TAGGING:
        return TaggingTask(name, length)
    if name in (CATALOGS, BOOKS):
        return CorpusTask(name, data_dir, length)
    if name == SIB200.name:
        return make_own_task(SIB200, data_dir, length, None)
    raise UserError(f"{folder}: {name} is no task whose answers are counted here")


def _labels(example: Any) -> list[str]:
    """The labels of a text, which is one, or of a sentence."""
    return example.tags if hasattr(example, "tags") else [example.label]


def _right(
    task: FinetuningTask, results: str, split: str, language: str, gold: list[list[str]]
) -> np.ndarray:
    """Right answers of each item, from the predictions beside results.json."""
    path = os.path.join(
        *(os.path.dirname(results), run_folder.PREDICTIONS, task.name),
        f"{split}-{language}.{task.prediction_suffix}",
    )
    # Tagged sentences have empty lines between them.
    lines = [line for line in files.read_text(path).split("\n") if line]
    answers = [line.split("\t")[0] for line in lines]
    flat = [label for labels in gold for label in labels]
    if len(answers) != len(flat):
        raise UserError(
            f"{path}: {len(answers):,} answers, but the file with the labels has "
            f"{len(flat):,}; run decoupled finetune --mode=eval again"
        )
    hits = [float(said == label) for said, label in zip(answers, flat, strict=True)]
    ends = np.cumsum([0, *map(len, gold)])
    return np.add.reduceat(hits, ends[:-1])


def _check(
    path: str,
    scores: dict[str, float],
    split: str,
    language: str,
    right: np.ndarray,
    total: np.ndarray,
) -> None:
    counted, reported = 100 * right.sum() / total.sum(), scores[_METRIC]
    if abs(counted - reported) > _ROUNDING:
        raise UserError(
            f"{path}: says {reported:.4f} for {split} {language}, but its predictions "
            f"have {counted:.4f}; run decoupled finetune --mode=eval again"
        )
