"""What a fine-tuned model got on each item of its test files.

An item is a sentence, with an answer for each word. Right answers come from the
predictions that every run wrote and from the files with the tags. They must give the
accuracies that the runs reported.
"""

import os
from typing import NamedTuple

import numpy as np

from decoupled.analyses.layer_drop import read_results
from decoupled.configs.finetuning import TAGGING
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.tab_separated import unquoted
from decoupled.runs import run_folder
from decoupled.runs.finetuning_run import TRIVIAL
from decoupled.studies.statistics import Sums
from decoupled.tasks.presets import TASKS, task_of
from decoupled.xtreme import official

_METRIC, _SPLIT = "accuracy", "test"
# Percent; results.json holds all digits.
_ROUNDING = 1e-6


class ItemScores(NamedTuple):
    """The right answers of a fine-tuned model in a language, and the percent of a
    trivial baseline: each word's most frequent tag."""

    sums: Sums
    baseline: float


def read_items(folder: str, data_dir: str) -> dict[str, ItemScores]:
    """Language -> what one model's fine-tuning got on test, the mean over its runs.

    Languages that XTREME does not list for the task count in no mean of a study either.
    """
    runs = read_results(folder)
    task = _task(folder, data_dir)
    by_language = {}
    for language, scores in runs[0][1].get(_SPLIT, {}).items():
        # A file without labels has no accuracy.
        if _METRIC not in scores or not official.is_official(task.name, language):
            continue
        examples = task.read(_SPLIT, language)
        gold = [example.tags for example in examples]
        total = np.array([len(labels) for labels in gold], np.float64)
        hits = []
        for path, results in runs:
            hits.append(_hits(task, path, language, gold))
            accuracy = results[_SPLIT][language][_METRIC]
            counted_accuracy = 100 * hits[-1].sum() / total.sum()
            if abs(counted_accuracy - accuracy) > _ROUNDING:
                raise UserError(
                    f"{path}: says {accuracy:.4f} for {_SPLIT} {language}, but its "
                    f"predictions have {counted_accuracy:.4f}; run decoupled finetune "
                    "--mode=eval again"
                )
        sums = Sums(np.mean(hits, 0), total)
        by_language[language] = ItemScores(sums, scores[f"{TRIVIAL}{_METRIC}"])
    if not by_language:
        raise UserError(f"{runs[0][0]}: has no scores of {_SPLIT} that count")
    return by_language


def _task(folder, data_dir):
    record = run_folder.read(folder)
    if record.task is None:
        raise UserError(f"{folder}: is of pre-training, not of fine-tuning")
    name = record.task["name"]
    length = record.data["features"]["max_sequence_length"]
    if name not in TASKS or TASKS[name].kind != TAGGING:
        raise UserError(f"{folder}: {name} is no task whose answers are counted here")
    return task_of(TASKS[name], data_dir, length)


def _hits(task, results, language, gold):
    """Right answers of each item, from the predictions beside results.json."""
    path = os.path.join(
        *(os.path.dirname(results), run_folder.PREDICTIONS, task.name),
        f"{_SPLIT}-{language}.{task.prediction_suffix}",
    )
    # Tagged sentences have empty lines between them.
    lines = filter(None, files.split_lines(files.read_text(path)))
    answers = [unquoted(line.split("\t")[0]) for line in lines]
    tags = [label for labels in gold for label in labels]
    if len(answers) != len(tags):
        raise UserError(
            f"{path}: {len(answers):,} answers, but the file with the labels has "
            f"{len(tags):,}; run decoupled finetune --mode=eval again"
        )
    hits = [float(answer == label) for answer, label in zip(answers, tags, strict=True)]
    ends = np.cumsum([0, *map(len, gold)])
    return np.add.reduceat(hits, ends[:-1])
