"""Whole runs of fine-tuning on real examples, beside transformers' Trainer.

Measures seconds for 1,000 examples, from the files of features on, and the seconds from
the start of the program to the end of its first step, of
  decoupled               `decoupled finetune`, several examples packed into a row
  transformers, dynamic   Trainer's default: rows padded to the longest of a batch
  transformers, grouped   the same with train_sampling_strategy="group_by_length"
on English examples of XNLI and UD-POS (at most 128 tokens, batches of 32) and questions
of XQuAD (384, batches of 8), with the reference sizes, a vocabulary of 8,000 pieces of
the texts of all three, and the same tokens. A training set is the first 60 batches of
its file. The rounds go through it once, so that all ways compute the same examples.

A comparison's time is the sum over all its rounds, since steps differ in their lengths.
Both sides have tokenised before. Examples come from XTREME's files below the folder
that DECOUPLED_DATA_DIR names.
"""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks import peers
from benchmarks.interleave import MeasuredWorker, Skip, Spread, Worker, spread
from benchmarks.results import Comparison, Plan
from benchmarks.sizes import ADAMW, DTYPES, QUICK, REFERENCE
from benchmarks.tables import (
    OURS,
    BenchmarkTable,
    Suite,
    gigabytes,
    milliseconds_or_seconds,
)
from benchmarks.workers.random_weights import write_checkpoint
from decoupled.configs import QuestionAnsweringConfig, VocabularyConfig
from decoupled.configs.finetuning import CLASSIFICATION, QUESTION_ANSWERING, TAGGING
from decoupled.corpora.locales import ENGLISH
from decoupled.data.vocabulary import open_vocabulary
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.model.variables import MASKED_LM
from decoupled.runs import run_folder
from decoupled.runs.task_data import TaskData
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.qa_files import Question
from decoupled.tasks.tagging_files import TaggedSentence
from decoupled.tasks.text_files import LabelledTexts
from decoupled.training.checkpoints import write_list

MODES = ("dynamic", "grouped")
# Ends the title of a comparison of programs from their start to their first step.
START = ", start"
# The whole run that the table sums up, and the batches of a training set.
STEPS = 60
# As transformers marks what has no label.
NOT_SCORED = -100
QUICK_BATCH = 4
VOCABULARY = VocabularyConfig(8_000, 1.0, False, 10**6, 10**9, 16)
QUICK_VOCABULARY = dataclasses.replace(VOCABULARY, vocab_size=24)
MODEL = dataclasses.replace(REFERENCE, vocab_size=8_000)
QUICK_MODEL = dataclasses.replace(QUICK, vocab_size=24)
QUICK_LENGTH = 48
QUESTIONS = QuestionAnsweringConfig()
QUICK_QUESTIONS = QuestionAnsweringConfig(16, 16, 8, 5)
# The default of fine-tuning.
DROPOUT = 0.1


class Source(NamedTuple):
    """A task, the file that its examples are read from, and the sizes of a batch."""

    task: str
    file: str
    training_file: str
    length: int
    batch: int


# XQuAD's English questions take the place of SQuAD's. At 384 tokens a batch of 32 does
# not fit into 24 GiB.
SOURCES = (
    Source("xnli", "xnli/train-en.tsv", "xnli/train-en.tsv", 128, 32),
    Source("udpos", "udpos/train-en.tsv", "udpos/train-en.tsv", 128, 32),
    Source("xquad", "xquad/xquad.en.json", "squad/train-v1.1.json", 384, 8),
)


def comparisons(arguments, folder: pathlib.Path) -> Iterator[Plan]:
    """Whole runs, and starts, of each task and type."""
    for source in SOURCES:
        for dtype in arguments.dtypes:
            make_workers = functools.partial(workers, source, dtype, arguments, folder)
            title = f"{source.task}: {dtype}"
            yield Plan(title, make_workers)
            make_starts = functools.partial(_starts, make_workers)
            yield Plan(f"{title}{START}", make_starts, steps=1)


def _starts(make_workers):
    """Workers that measure how long those of `make_workers` take to be ready."""
    start_workers = []
    for worker in make_workers():
        python, script, _ = worker.command
        case = {"command": [python, script], "case": worker.case, "warmup": 0}
        start_workers.append(Worker(worker.name, "decoupled", "starts", case))
    return start_workers


def workers(
    source: Source, dtype: str, arguments, folder: pathlib.Path
) -> list[Worker]:
    """All ways to train on the examples of a task; files lie below `folder`.

    Raises:
      Skip: there are no examples.
    """
    quick, rounds, steps = arguments.quick, arguments.rounds, arguments.steps
    case = make_case(source, quick, folder / source.task) | {"dtype": dtype}
    return [
        our_worker(case, quick, rounds * steps),
        *(
            Worker(
                f"transformers, {mode}", "torch", "transformers_trainer",
                {**case, "mode": mode},
            )
            for mode in MODES
        ),
    ]  # fmt: skip


def our_worker(case: Mapping[str, Any], quick: bool, steps: int) -> Worker:
    """`decoupled finetune`; `case` is that of `make_case` with a "dtype"."""
    # The run is not over before the suite has seen its steps.
    epochs = 1 + (case["warmup"] + steps) * case["batch"] // case["examples"]
    words = command_words({**case, "epochs": epochs}, case["dtype"], quick)
    fields = {field: case[field] for field in ("batch", "model", "warmup")}
    return Worker(OURS, "decoupled", "decoupled_runs", {"command": words, **fields})


def make_case(source: Source, quick: bool, folder: pathlib.Path) -> dict[str, Any]:
    """Writes examples, vocabulary, features and weights below `folder`, once.

    Raises:
      Skip: there are no examples.
    """
    path = folder / "case.json"
    if not path.exists():
        data_dir = folder / "data"
        # All tasks' text is in the vocabulary: one task's has too few words for it.
        for text_source in (source,) if quick else SOURCES:
            target = data_dir / text_source.training_file
            target.parent.mkdir(parents=True, exist_ok=True)
            if quick:
                target.write_text(_invented_text(text_source.task), encoding="utf-8")
            else:
                shutil.copyfile(_source_path(text_source), target)
        case = _prepare(source, quick, folder, data_dir)
        path.write_text(json.dumps(case), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def _source_path(source):
    if peers.DATA_DIR not in os.environ:
        raise Skip(f"no examples: set {peers.DATA_DIR}")
    path = os.path.join(os.environ[peers.DATA_DIR], "xtreme", source.file)
    if not os.path.exists(path):
        raise Skip(f"{path}: does not exist")
    return path


def _invented_text(task):
    """A few examples of different lengths."""
    words = "the cat sees an owl and the owl sees a tree".split()
    texts = [" ".join(words[: 2 + n % 10]) for n in range(40)]
    if task == "xnli":
        labels = ("neutral", "entailment", "contradiction")
        rows = enumerate(texts)
        return "".join(f"{t}\t{t}\t{labels[n % 3]}\n" for n, t in rows)
    if task == "udpos":
        lines = ("".join(f"{w}\tNOUN\n" for w in text.split()) for text in texts)
        return "\n".join(lines)
    answer = {"text": "the", "answer_start": 0}
    paragraphs = [
        {"context": t, "qas": [{"id": str(n), "question": "sees", "answers": [answer]}]}
        for n, t in enumerate(texts)
    ]
    return json.dumps({"version": "1", "data": [{"paragraphs": paragraphs}]})


def _prepare(source, quick, folder, data_dir):
    model = QUICK_MODEL if quick else MODEL
    length = QUICK_LENGTH if quick else source.length
    task = _task(source.task, data_dir, length, quick)
    vocabulary = _vocabulary(source, quick, folder, data_dir)
    batch = QUICK_BATCH if quick else source.batch
    path = data_dir / source.training_file
    text = first_examples(path.read_text(encoding="utf-8"), task.kind, STEPS * batch)
    path.write_text(text, encoding="utf-8")
    examples = task.training
    data = TaskData(task, vocabulary, str(folder / "features"))
    features = data.features("train", ENGLISH, examples)
    _write_run(folder / "pretrained", vocabulary, model)
    np.savez(folder / "features.npz", **peer_features(features))
    return {
        "folder": str(folder),
        "task": source.task,
        "kind": TASKS[source.task].kind,
        "features": str(folder / "features.npz"),
        "labels": max(2, len(task.labels)),
        "sequence_length": length,
        "batch": batch,
        "examples": len(examples),
        "dropout": DROPOUT,
        "model": dataclasses.asdict(model),
        "optimizer": dataclasses.asdict(ADAMW),
        "warmup": 1,
    }


def first_examples(text: str, kind: str, count: int) -> str:
    """The first `count` examples of a training file of a kind of task."""
    if kind == CLASSIFICATION:
        # Texts may have characters that `splitlines` takes for ends of lines.
        return "".join(f"{line}\n" for line in text.strip("\n").split("\n")[:count])
    if kind == TAGGING:
        return "\n\n".join(text.strip().split("\n\n")[:count]) + "\n"
    document = json.loads(text)
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = paragraph["qas"][:count]
            count -= len(paragraph["qas"])
    return json.dumps(document)


def _vocabulary(source, quick, folder, data_dir):
    texts = [
        _text(example)
        for each in ((source,) if quick else SOURCES)
        for example in _task(each.task, data_dir, each.length, quick).training
    ]
    path = str(folder / "pieces.model")
    train_vocabulary(texts, path, QUICK_VOCABULARY if quick else VOCABULARY)
    return open_vocabulary(path)


def _text(example: LabelledTexts | TaggedSentence | Question) -> str:
    if isinstance(example, Question):
        return f"{example.text} {example.context}"
    is_tagged = isinstance(example, TaggedSentence)
    return " ".join(example.words if is_tagged else example.texts)


def _task(name, data_dir, length, quick):
    settings = QUICK_QUESTIONS if quick else QUESTIONS
    return task_of(TASKS[name], str(data_dir), length, settings)


def _write_run(folder, vocabulary, model):
    description = run_folder.ModelDir(
        "pretrain", model, vocabulary.fingerprint, None, {}
    )
    run_folder.claim(str(folder), description, vocabulary)
    prefix = str(folder / "model.ckpt-0")
    write_checkpoint(prefix, model, MASKED_LM)
    write_list(str(folder), [prefix])


def peer_features(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Features of a training set under transformers' names, with each row's length.

    Returns:
      int64 "input_ids", "token_type_ids" [rows, sequence], "lengths" [rows], and
      "labels", where `word_starts` are, or "start_positions" and "end_positions".
    """
    arrays = {
        "input_ids": features["input_word_ids"],
        "token_type_ids": features["input_type_ids"],
        "lengths": features["input_mask"].sum(axis=1),
    }
    if "start_positions" in features:
        arrays |= {n: features[n] for n in ("start_positions", "end_positions")}
    elif "word_starts" in features:
        starts = features["word_starts"] == 1
        arrays["labels"] = np.where(starts, features["label_ids"], NOT_SCORED)
    else:
        arrays["labels"] = features["label_ids"]
    return {name: values.astype(np.int64) for name, values in arrays.items()}


def command_words(case: Mapping[str, Any], dtype: str, quick: bool) -> list[str]:
    """The words after `decoupled` that train on the examples of `make_case`."""
    folder, optimizer = case["folder"], case["optimizer"]
    questions = QUICK_QUESTIONS if quick else QUESTIONS
    settings = {
        "FinetuningConfig.max_sequence_length": case["sequence_length"],
        "FinetuningConfig.learning_rates": (),
        "FinetuningConfig.num_epochs": case["epochs"],
        "FinetuningConfig.classifier_dropout": case["dropout"],
        "MeshConfig.activation_dtype": dtype,
        "OptimizerConfig.learning_rate": optimizer["learning_rate"],
        "TrainingConfig.batch_size": case["batch"],
        "TrainingConfig.save_checkpoints_steps": 10**6,
    }
    words = ["finetune", f"--task={case['task']}"]
    if case["kind"] == QUESTION_ANSWERING:
        settings |= {
            f"QuestionAnsweringConfig.{field}": value
            for field, value in dataclasses.asdict(questions).items()
        }
    return words + [
        f"--data_dir={folder}/data",
        f"--feature_dir={folder}/features",
        f"--init_checkpoint={folder}/pretrained",
        f"--model_dir={folder}/{dtype}",
        "--mode=train",
        *(f"--gin_param={setting} = {value!r}" for setting, value in settings.items()),
    ]


def tables(results: list[Comparison]) -> list[BenchmarkTable]:
    """One table: a row for each way to train on each task."""
    columns = [
        "examples", "by", "1,000 examples", "time, against ours",
        "start and first step", "start and 60 steps", "against ours", "peak memory",
    ]  # fmt: skip
    by_title = {comparison.title: comparison for comparison in results}
    rows = []
    for title, comparison in by_title.items():
        if title.endswith(START):
            continue
        if comparison.skipped:
            rows.append([title, comparison.skipped, *[""] * (len(columns) - 2)])
            continue
        starts, reference = by_title.get(title + START), comparison.worker(OURS)
        rows += [_row(title, w, reference, starts) for w in comparison.workers]
    return [
        BenchmarkTable("finetuning_runs", "Fine-tuning on real examples", columns, rows)
    ]


def _row(title, worker, reference, starts):
    step, our_step = seconds_a_step(worker), seconds_a_step(reference)
    duration = 1000 * step / worker.case["batch"]
    row = [
        title,
        worker.name,
        f"{duration:.1f} s",
        _slowdown(worker, reference, step, our_step),
    ]
    if starts is None or starts.skipped:
        return [*row, "", "", "", gigabytes(worker.peak_resident)]
    start, our_start = (_start(starts.worker(w.name)) for w in (worker, reference))
    run, our_run = start.median + STEPS * step, our_start.median + STEPS * our_step
    return [
        *row,
        milliseconds_or_seconds(start),
        f"{run:.0f} s",
        _slowdown(worker, reference, run, our_run),
        gigabytes(worker.peak_resident),
    ]


def _slowdown(worker, reference, value, reference_value):
    return "" if worker is reference else f"{value / reference_value:.2f}x"


def seconds_a_step(worker: MeasuredWorker) -> float:
    """The mean over all steps of all rounds, which have different lengths."""
    steps = [second for chunk in worker.rounds for second in chunk.seconds]
    return sum(steps) / len(steps)


def _start(worker: MeasuredWorker) -> Spread:
    """Seconds that each start took, as the started program counted them."""
    return spread([chunk.loss for chunk in worker.rounds])


SUITE = Suite(comparisons, tables, rounds=5, steps=12, dtypes=DTYPES)

if __name__ == "__main__":
    from benchmarks.__main__ import run_module

    run_module("finetuning_runs")
