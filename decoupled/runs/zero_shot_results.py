"""What a fine-tuned model scores in every language, and its predictions as files."""

import os
from typing import Any

from decoupled.core import console, files
from decoupled.runs.evaluation import finished_results
from decoupled.runs.finetuning_run import EVENTS, FinetuningRun, scalar_name
from decoupled.runs.task_data import SPLITS
from decoupled.runs.zero_shot import Answers, answer_languages
from decoupled.training.events import write_scalars

RESULTS = "results.json"
# Before the name of a metric: of the trivial baseline.
TRIVIAL = "trivial_"


def evaluate_run(
    run: FinetuningRun, training: list[Any], predictions: str | None
) -> dict[str, Any]:
    """Scores a run's checkpoint that counts; writes results.json and TensorBoard's.

    Args:
      run: trained. training: its examples, for the trivial baseline.
      predictions: folder that gets a folder per task with the answers, or None.

    Returns:
      what results.json holds: `task`, `global_step`, `checkpoint`, `learning_rate`,
      `seed`, and split -> language -> `examples` and, where the file has labels, metric
      -> value and "trivial_" + metric -> value.
    """
    data, choice = run.data, run.chosen()
    results: dict[str, dict] = {split: {} for split in SPLITS}
    for found in _answers(run, "evaluating"):
        scores = _scores(data.task, training, found)
        results[found.split][found.language] = scores
        if predictions is not None:
            _write(data.task, predictions, found)
    _say_unlabelled(data.task, results)
    scalars = {
        scalar_name(metric, split, language): values[metric]
        for split, languages in results.items()
        for language, values in languages.items()
        for metric in data.task.metrics
        if metric in values
    }
    write_scalars(os.path.join(run.folder, EVENTS), choice.step, scalars)
    summary = {
        "task": data.task.name,
        "global_step": choice.step,
        "checkpoint": os.path.relpath(choice.prefix, run.folder),
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        **results,
    }
    files.write_json(os.path.join(run.folder, RESULTS), summary)
    return summary


def finished_run(run: FinetuningRun) -> dict[str, Any] | None:
    """results.json of a run, if it is of the checkpoint that counts."""
    path, choice = os.path.join(run.folder, RESULTS), run.chosen()
    results = finished_results(path, choice.step)
    if results is not None:
        console.say(f"{path}: of step {choice.step} already, reused")
    return results


def predict_run(run: FinetuningRun, predictions: str) -> list[str]:
    """Writes the answers to all dev and test files, labelled or not.

    Returns:
      the languages whose test files have labels.
    """
    task, labelled = run.data.task, []
    for found in _answers(run, "predicting"):
        _write(task, predictions, found)
        scores = task.score(found.language, found.examples, found.answers)
        if found.split == "test" and scores is not None:
            labelled.append(found.language)
    return labelled


def _answers(run, doing):
    wanted = run.data.files_to_answer()
    spec = run.spec._replace(model_dir=run.chosen().folder)
    answers = answer_languages(run.graph, spec, run.data, wanted)
    return console.track(answers, f"{doing} {run.data.task.name}, files", len(wanted))


def _scores(task: Any, training: list[Any], found: Answers) -> dict[str, float]:
    metrics = task.score(found.language, found.examples, found.answers)
    scores = {} if metrics is None else dict(metrics)
    trivial = task.trivial_answers(training, found.examples)
    if metrics is not None and trivial is not None:
        baseline = task.score(found.language, found.examples, trivial)
        scores |= {f"{TRIVIAL}{name}": value for name, value in baseline.items()}
    return {**scores, "examples": len(found.examples)}


def _write(task, folder, found):
    folder = files.make_folder(os.path.join(folder, task.name))
    name = f"{found.split}-{found.language}.{task.prediction_suffix}"
    task.write(os.path.join(folder, name), found.examples, found.answers)


def _say_unlabelled(task, results):
    for split, languages in results.items():
        missing = [
            language
            for language, values in languages.items()
            if task.metrics[0] not in values
        ]
        if missing:
            console.say(
                f"{task.name} {split}: no labels in {', '.join(missing)}; predicted, "
                "not scored"
            )
