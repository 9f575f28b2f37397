"""Pre-training: a run's data, its training, and its evaluation on held-out text.

Writes checkpoints, events, config.json, sampling.json, eval.json and predictions.jsonl
to the folder of the run.
"""

import collections
import contextlib
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator

import numpy as np

from decoupled.configs import without_effect
from decoupled.core import console, files
from decoupled.core.made_from import MADE_FROM, hash_files, read_results
from decoupled.corpora.sampling import as_json, print_rows
from decoupled.data.counters import Stream, numpy_bits
from decoupled.data.reading import named_errors
from decoupled.data.sequences import EVAL
from decoupled.runs import run_folder
from decoupled.runs.curve import CROSSED_BELOW
from decoupled.runs.evaluation import dtype_settings, ends_with_a_line
from decoupled.runs.pretraining_plan import PretrainingPlan, held_out_counts
from decoupled.runs.run_folder import TRAINING_MODES
from decoupled.training.checkpoints import (
    branch_off,
    check_optimizer,
    checkpoint_step,
    find_checkpoint,
    latest_complete,
)
from decoupled.training.events import PERCENT, write_scalars
from decoupled.training.loop import predict, train

EVALUATION, PREDICTIONS = "eval.json", "predictions.jsonl"
SAMPLING = "sampling.json"
# Beside the objective's metrics in eval.json: the loss of a model that knows only how
# frequent pieces are, and what the average of the languages is weighted by.
UNIGRAM_ENTROPY, PREDICTION_COUNT = "unigram_entropy", "predictions"


def run_pretraining(plan: PretrainingPlan, record_start: Callable[[str], None]) -> None:
    """Trains, evaluates or predicts, and gives the claimed folder to `record_start`."""
    mode, trains = plan.mode, plan.mode in TRAINING_MODES
    run_folder.claim(
        plan.folder, plan.description, plan.vocabulary, not trains, plan.contents
    )
    record_start(plan.folder)
    with named_errors(plan.manifest.folder):
        if trains:
            train_phases(plan, evaluating=mode == "train_and_evaluate")
        if mode == "eval" or (mode == "train_and_evaluate" and not is_evaluated(plan)):
            evaluate(plan)
        if mode == "predict":
            predict_sequences(plan)


def train_phases(plan: PretrainingPlan, evaluating: bool) -> None:
    """Trains to the end, or resumes; a new branch begins where its trunk is."""
    config, folder = plan.config, plan.folder
    if plan.trunk:
        branch_off(plan.trunk, folder)
        console.say(f"branched off {plan.trunk}")
    for (phase, _), rows in zip(plan.phases, plan.sampling, strict=True):
        _show_sampling(rows, phase, config, folder)
    checkpoint = latest_complete(folder)
    step = checkpoint_step(checkpoint)
    settings = run_folder.resumable_settings(config, run_folder.RESUMABLE)
    end = config.schedule.train_steps
    if checkpoint and step < end:
        check_optimizer(checkpoint)
    run_folder.note_settings(folder, settings, step, end)
    interval = config.training.eval_every_steps if evaluating else 0
    if step < end:
        for line in without_effect(config.schedule, config.training, evaluating):
            console.say(line)
        # A kill or a signal may have prevented an evaluation. A branch has its trunk's.
        if interval and step and step % interval == 0 and not plan.trunk:
            if _read_evaluation(plan) is None:
                evaluate(plan)
    for phase, graph in plan.phases:
        is_last = phase.number == len(plan.phases) - 1
        if not is_last and checkpoint_step(latest_complete(folder)) >= phase.last:
            continue
        masking, training = phase.config.masking, phase.config.training
        if len(plan.phases) > 1:
            console.say(
                f"phase {phase.number + 1} of {len(plan.phases)}: steps "
                f"{phase.first} to {phase.last}, {training.batch_size} sequences "
                f"of {masking.sequence_length} tokens a step, "
                f"{masking.masking_rate:.0%} predicted"
            )
        train(
            graph,
            plan.run,
            functools.partial(_input_fn_from, plan, phase, graph),
            every_steps=interval,
            then=functools.partial(evaluate, plan),
            phase=phase,
        )


def _input_fn_from(plan, phase, graph, step):
    config = phase.config
    return graph.network.task.training_input_fn(
        config,
        plan.manifest,
        plan.vocabulary,
        stream_seed(config.training.seed, phase.number),
        step - phase.first,
    )


def is_evaluated(plan: PretrainingPlan) -> bool:
    """Whether eval.json is of the newest checkpoint and the present held-out text."""
    results = _read_evaluation(plan)
    if results is not None:
        console.say(
            f"{os.path.join(plan.folder, EVALUATION)}: of step "
            f"{results['global_step']} already, reused; --mode=eval evaluates again"
        )
    return results is not None


def _read_evaluation(plan):
    path = os.path.join(plan.folder, EVALUATION)
    return read_results(path, _made_from(plan, find_checkpoint(plan.folder)))


def _made_from(plan, checkpoint):
    phase, _ = plan.phase(checkpoint_step(checkpoint))
    manifest, config = plan.manifest, phase.config
    shards = [
        manifest.path(shard)
        for entry in manifest.splits.get(EVAL, {}).values()
        for shard in entry.files
    ]
    return {
        "checkpoint": run_folder.weights_sha256(checkpoint),
        "files": hash_files(shards, manifest.folder),
        "settings": {
            "MaskingConfig": vars(config.eval_masking),
            **dtype_settings(config.mesh),
            "TrainingConfig.eval_sequences": config.training.eval_sequences,
            "TrainingConfig.seed": config.training.seed,
        },
    }


@ends_with_a_line
def evaluate(plan: PretrainingPlan) -> None:
    """Writes eval.json and TensorBoard scalars; prints the averages.

    Sequences are as long as in the phase of the newest checkpoint. The unigram entropy
    of the held-out text, beside the loss, is the loss of a model that knows only how
    frequent the pieces are (`runs.curve`).
    """
    # A training that goes on may save a newer one.
    checkpoint = find_checkpoint(plan.folder)
    step, results = checkpoint_step(checkpoint), {}
    made_from = _made_from(plan, checkpoint)
    task = plan.phase(step)[1].network.task
    for language, rows in _predictions(plan, checkpoint):
        unigram = {UNIGRAM_ENTROPY: plan.unigram_entropy[language]}
        results[language] = task.results(rows) | unigram
    average = _weighted_average(results)
    files.write_json(
        os.path.join(plan.folder, EVALUATION),
        {
            "global_step": step,
            MADE_FROM: made_from,
            "all": average,
            "languages": results,
        },
    )
    scalars = {}
    for language, values in {"all": average, **results}.items():
        for name, value in values.items():
            if name in task.metrics:
                scalars[f"{name}{PERCENT}/{language}"] = 100 * value
            elif name != PREDICTION_COUNT:
                scalars[f"{name}/{language}"] = value
    write_scalars(os.path.join(plan.folder, "eval"), step, scalars)
    averages = "  ".join(
        f"{name} {100 * value:.2f}%" if name in task.metrics else f"{name} {value:.4f}"
        for name, value in average.items()
        if name != PREDICTION_COUNT
    )
    count = len(results)
    console.say(f"held-out text at step {step}, {count} languages: {averages}")
    if average[task.loss] > average[UNIGRAM_ENTROPY] - CROSSED_BELOW:
        console.say(
            f"the loss is not {CROSSED_BELOW:g} nat below the unigram entropy: the "
            "model may still be on the plateau of word frequencies "
            "(docs/expectations.md)"
        )


@ends_with_a_line
def predict_sequences(plan: PretrainingPlan) -> None:
    """Writes predictions.jsonl: loss and hits of every held-out sequence."""
    path = os.path.join(plan.folder, PREDICTIONS)
    with files.atomic_write(path) as handle:
        for language, rows in _predictions(plan, find_checkpoint(plan.folder)):
            for index in range(len(rows["weight"])):
                row = {name: float(values[index]) for name, values in rows.items()}
                line = {"language": language, "sequence": index, **row}
                handle.write(json.dumps(line) + "\n")
    console.say(f"wrote {path}")


def _predictions(plan, checkpoint) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Languages, with the predictions for each of their held-out sequences."""
    phase, graph = plan.phase(checkpoint_step(checkpoint))
    config, network = phase.config, graph.network
    counts = held_out_counts(config, plan.manifest)
    input_fn = network.task.evaluation_input_fn(
        config, plan.manifest, plan.vocabulary, list(counts)
    )
    # Each language has batches of its own; the last one is filled up.
    batch_size, track = config.training.eval_batch_size, console.track
    predictions = predict(network, plan.run, batch_size, input_fn, checkpoint)
    with contextlib.closing(predictions):
        # The first row waits for the graph, which no other language does.
        all_rows = itertools.chain([next(predictions)], predictions)
        for language, count in track(counts.items(), "evaluating languages"):
            padded_count = -(-count // batch_size) * batch_size
            rows = list(itertools.islice(all_rows, padded_count))[:count]
            yield language, {k: np.stack([row[k] for row in rows]) for k in rows[0]}
        # TPUEstimator adds a last batch; see `runs.evaluation`.
        collections.deque(all_rows, maxlen=0)


def stream_seed(seed: int, number: int) -> int:
    """The seed of a phase's data: each phase has an order and masks of its own. The
    first uses `TrainingConfig.seed` unchanged."""
    if not number:
        return seed
    return int(numpy_bits(seed, Stream.PHASE, number)[()] >> np.uint64(1))


def _show_sampling(rows, phase, config, folder):
    is_earlier = phase.number < len(config.earlier_phases)
    name = f"sampling_phase_{phase.number + 1}.json" if is_earlier else SAMPLING
    path = os.path.join(folder, name)
    files.write_json(path, as_json(rows))
    title = f"phase {phase.number + 1}: " if config.earlier_phases else ""
    alpha = phase.config.sampling.alpha
    print_rows(f"{title}{len(rows)} languages, alpha {alpha}", rows)
    console.say(f"the whole table: {path}")


def _weighted_average(results: dict[str, dict[str, float]]) -> dict[str, float]:
    total = sum(values[PREDICTION_COUNT] for values in results.values())
    names = next(iter(results.values())).keys() - {PREDICTION_COUNT}
    return {
        name: sum(v[name] * v[PREDICTION_COUNT] for v in results.values()) / total
        for name in sorted(names)
    } | {PREDICTION_COUNT: total}
