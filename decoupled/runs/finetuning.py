"""The fine-tuning of a task: learning rates to choose from, and seeds.

Every rate is trained with the first seed. The rate that is best on English dev is then
trained with the other seeds. No other language influences the choice.
"""

import os
from typing import Any

import numpy as np

from decoupled.core import console, files, gfile, hosts
from decoupled.core.errors import UserError
from decoupled.core.made_from import RESULTS, read_results
from decoupled.runs import run_folder
from decoupled.runs.finetuning_plan import FinetuningPlan
from decoupled.runs.finetuning_run import FinetuningRun, steps_of
from decoupled.runs.saved_run import BEST, keep_checkpoint
from decoupled.runs.task_data import Features
from decoupled.training.checkpoints import latest_complete

# This file, beside the best/ of several runs, says which checkpoint it is a copy of.
BEST_RECORD = "chosen.json"


def claim_folders(plan: FinetuningPlan) -> None:
    """Claims the folder of all runs and that of the first."""
    if plan.has_several_runs:
        plan.claim(plan.folder)
    run_of(plan, plan.rates[0], plan.seeds[0])


def run_of(plan: FinetuningPlan, rate: float, seed: int) -> FinetuningRun:
    """The run of a learning rate and a seed, its folder claimed."""
    if (rate, seed) not in plan.runs:
        plan.claim(plan.folder_of(rate, seed), learning_rate=rate, seed=seed)
        plan.runs[rate, seed] = FinetuningRun(plan, rate, seed)
    return plan.runs[rate, seed]


def train(plan: FinetuningPlan) -> None:
    """Trains all incomplete runs."""
    data, examples = plan.data, plan.examples
    features = data.features("train", data.source, examples, progress=True)
    rows, steps = len(features["example_index"]), steps_of(plan.config, features)
    windows = "" if rows == len(examples) else f" in {rows:,} windows"
    console.say(
        f"{len(examples):,} examples ({data.trained_on}){windows}, {steps:,} steps"
    )
    graph_features = data.for_graph(features)
    if plan.config.finetuning.class_weights == "balanced":
        weights = class_weights(features["label_ids"], len(plan.task.labels))
        graph_features["example_weights"] = weights[features["label_ids"]]
    train_runs(plan, graph_features)


def train_runs(plan: FinetuningPlan, features: Features) -> None:
    """Trains each rate with the first seed, then the best rate with the others."""
    first_seed, *other_seeds = plan.seeds
    count = len(plan.rates) + len(other_seeds)

    def train_run(number, rate, seed):
        if count > 1:
            console.say(f"run {number} of {count}: learning rate {rate:g}, seed {seed}")
        run_of(plan, rate, seed).train(features)

    for number, rate in enumerate(plan.rates, start=1):
        train_run(number, rate, first_seed)
    best_rate = chosen_rate(plan)
    for number, seed in enumerate(other_seeds, start=len(plan.rates) + 1):
        train_run(number, best_rate, seed)


def evaluate(plan: FinetuningPlan, repeat: bool) -> list[dict[str, Any]]:
    """Scores each run of the chosen learning rate, and writes its answers.

    The answers of the best run are also written below the folder of all runs. With
    `repeat`, runs that have results of their selected checkpoint are evaluated again.
    Returns the result of `FinetuningRun.evaluate` for each run.
    """
    winner = best_run(plan)
    # Another run may have been the best when answers were last written.
    has_answers = _has_answers_of(plan, winner)
    results = []
    for run in chosen_runs(plan):
        reuses = not repeat and (run is not winner or has_answers)
        old_results = run.reusable_results() if reuses else None
        folders = sorted({run.folder, *([plan.folder] if run is winner else [])})
        results.append(old_results or run.evaluate(folders))
        for folder in folders:
            plan.note_answers(folder)
    return results


def chosen_rate(plan: FinetuningPlan) -> float:
    """The rate whose first run is best on English dev; the first rate wins a tie."""
    if len(plan.rates) == 1:
        return plan.rates[0]
    best_scores = {}
    for rate in plan.rates:
        run = run_of(plan, rate, plan.seeds[0])
        scores = run.scores()
        if not scores.complete:
            raise UserError(
                f"{run.folder}: not complete, so that no learning rate can be chosen; "
                "--mode=train goes on"
            )
        best_scores[rate] = scores.best
    return max(best_scores, key=best_scores.get)


def chosen_runs(plan: FinetuningPlan) -> list[FinetuningRun]:
    """The runs of the chosen rate, one per seed."""
    rate = chosen_rate(plan)
    return [run_of(plan, rate, seed) for seed in plan.seeds]


def all_runs(plan: FinetuningPlan) -> list[FinetuningRun]:
    """The first run of each rate, then the other runs of the chosen rate."""
    first_runs = [run_of(plan, rate, plan.seeds[0]) for rate in plan.rates]
    return [*first_runs, *chosen_runs(plan)[1:]]


def best_run(plan: FinetuningPlan) -> FinetuningRun:
    """The best of the chosen runs on English dev; the first if there is no dev file."""
    runs = chosen_runs(plan)
    for run in runs if len(runs) > 1 else []:
        if plan.selecting and not run.scores().complete:
            raise UserError(
                f"{run.folder}: not complete, so that no run can be chosen as the "
                "best; --mode=train goes on, or give a smaller --num_runs"
            )
    scores = [run.scores().best for run in runs]
    return runs[0] if None in scores else runs[scores.index(max(scores))]


def summary(plan: FinetuningPlan) -> dict[str, Any]:
    """What results.json says of the runs; the fields of the best run come first."""
    return {
        **_describe_run(best_run(plan), plan.folder),
        "seeds": list(plan.seeds),
        "runs": [
            _describe_run(run, plan.folder) | {"english_dev": run.scores().best}
            for run in all_runs(plan)
        ],
    }


def _has_answers_of(plan, run):
    """Whether the answers below the folder of all runs are of this run."""
    if not plan.has_several_runs:
        return True
    results = read_results(
        os.path.join(plan.folder, RESULTS), run.made_from(run.selected_checkpoint())
    )
    if results is None or results | _describe_run(run, plan.folder) != results:
        return False
    return not run.lack_of_answers(plan.folder)


def keep_best(plan: FinetuningPlan) -> None:
    """Copies the best of several runs to best/, which exports and conversions open."""
    if not plan.has_several_runs:
        return
    checkpoint = best_run(plan).selected_checkpoint()
    _copy_to_best(plan.folder, checkpoint.prefix, checkpoint.step)


@hosts.by_first
def _copy_to_best(folder: str, prefix: str, step: int) -> None:
    """Makes best/ a copy of a checkpoint, unless it is one already.

    There is no record while it changes, so that the command after a kill copies again.
    """
    path, best_folder = os.path.join(folder, BEST_RECORD), os.path.join(folder, BEST)
    record = {
        "checkpoint": os.path.relpath(prefix, folder),
        "checkpoint_sha256": run_folder.weights_sha256(prefix),
        "global_step": step,
    }
    if files.exists(path):
        copy_sha256 = _complete_sha256(best_folder)
        whole_record = record | {"copy_sha256": copy_sha256}
        # Earlier versions did not record the copy.
        if copy_sha256 and files.read_json(path) in (whole_record, record):
            return
        gfile.remove(path)
    keep_checkpoint(prefix, best_folder)
    console.say(f"{best_folder}: is now a copy of {record['checkpoint']}")
    copy = os.path.join(best_folder, os.path.basename(prefix))
    record["copy_sha256"] = run_folder.weights_sha256(copy)
    files.write_json(path, record)


def _complete_sha256(folder):
    """The hash of the newest checkpoint of a folder; None if none is complete."""
    try:
        prefix = latest_complete(folder)
    except UserError:
        return None
    return prefix and run_folder.weights_sha256(prefix)


def class_weights(label_ids: Features, num_labels: int) -> np.ndarray:
    """Weights that give every class of a training set the same total.

    examples / (classes that occur * examples of the class), so that an example weighs 1
    on average; 0 for a class that does not occur.
    """
    counts = np.bincount(label_ids, minlength=num_labels)
    weights = len(label_ids) / np.maximum(counts, 1) / np.count_nonzero(counts)
    return np.where(counts, weights, 0.0).astype(np.float32)


def _describe_run(run, folder):
    checkpoint = run.selected_checkpoint()
    return {
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "checkpoint": os.path.relpath(checkpoint.prefix, folder),
        "global_step": checkpoint.step,
    }
