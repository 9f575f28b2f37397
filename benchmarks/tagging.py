"""Tagging words on this processor, beside transformers.

Measures sentences a second, from words to tags, of
  decoupled            the graph that evaluates, rows of like length together
  transformers         its token-classification pipeline, a sentence at a time
  transformers, 32     the same in batches of 32
with the same random weights, four layers of the reference sizes, and the same
vocabulary, on real sentences.
"""

import dataclasses
import functools
import json
import os
import pathlib
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.interleave import Skip, Worker, rate
from benchmarks.results import Comparison, Planned
from benchmarks.sizes import QUICK, REFERENCE
from benchmarks.tables import (
    OURS,
    BenchmarkTable,
    Suite,
    gigabytes,
    with_range,
    worker_table,
)
from decoupled.configs import MeshConfig, ModelConfig, VocabularyConfig
from decoupled.configs.finetuning import TAGGING
from decoupled.data.vocabulary import Vocabulary, open_vocabulary
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.exports.interop.huggingface import to_huggingface
from decoupled.model.variables import Head, shapes
from decoupled.runs import run_folder
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.tagging import TaggingTask
from decoupled.tasks.tagging_files import TaggedSentence, read_sentences
from decoupled.training.checkpoint_files import CheckpointWriter
from decoupled.xtreme.files import LanguageFile

TASK = "udpos"
BATCH = 32
QUICK_BATCH = 4
# Of a test file, evenly spaced.
TAGGED_SENTENCES = 128
# A third of the layers: beside all twelve, words and tags would take no time at all.
MODEL = dataclasses.replace(REFERENCE, num_layers=4, vocab_size=8_000)
MESH = MeshConfig()
VOCABULARY = VocabularyConfig(3_000, 1.0, False, 10**6, 10**9, 16)
QUICK_VOCABULARY = dataclasses.replace(VOCABULARY, vocab_size=16)
# The longest that a row may be.
LENGTH = 128
QUICK_LENGTH = 32

_QUICK_TAGS = {"a": "DET", "cat": "NOUN", "sees": "VERB", "the": "DET", "owl": "NOUN"}


def comparisons(arguments, folder: pathlib.Path) -> list[Planned]:
    """One: all ways to tag."""
    make = functools.partial(tagging_workers, arguments.quick, folder)
    return [Planned("tagging", make)]


def tagging_workers(quick: bool, folder: pathlib.Path) -> list[Worker]:
    """All ways to tag, with one model; its files lie below `folder`."""
    torch = peers.python("torch")
    case = make_case(read_tagged(quick), quick, folder / "tagging")
    batch = case["batch"]
    ways = (("transformers", 1), (f"transformers, {batch}", batch))
    return [
        our_worker(case),
        *(
            Worker(name, torch, "transformers_tagging", {**case, "at_once": at_once})
            for name, at_once in ways
        ),
    ]


def our_worker(case: dict) -> Worker:
    """This project's worker, for a case of `make_case`."""
    return Worker(OURS, peers.python("decoupled"), "decoupled_tagging", case)


def read_tagged(quick: bool) -> list[TaggedSentence]:
    """Sentences of the English test file of udpos, or a few invented ones.

    Raises:
      Skip: there is no file.
    """
    if quick:
        starts = [list(_QUICK_TAGS.items())[n % 3 :] * (1 + n % 2) for n in range(20)]
        return [TaggedSentence(*map(list, zip(*s, strict=True))) for s in starts]
    if peers.DATA_DIR not in os.environ:
        raise Skip(f"no sentences: set {peers.DATA_DIR}")
    path = os.path.join(os.environ[peers.DATA_DIR], "xtreme", TASK, "test-en.tsv")
    return read_sentences(
        LanguageFile(path, TASK, "en"), TASKS[TASK].labels, tags_may_miss=False
    )


def make_case(
    sentences: list[TaggedSentence], quick: bool, folder: pathlib.Path
) -> dict[str, Any]:
    """Writes words, vocabulary and model below `folder`; gives the workers' case."""
    folder.mkdir()
    pieces = str(folder / "pieces.model")
    texts = [" ".join(sentence.words) for sentence in sentences]
    train_vocabulary(texts, pieces, QUICK_VOCABULARY if quick else VOCABULARY)
    vocabulary = open_vocabulary(pieces)
    length = QUICK_LENGTH if quick else LENGTH
    task = task_of(TASKS[TASK], "", length)
    # In several rows a sentence has other neighbours than in one.
    rows = np.bincount(task.features(vocabulary, sentences)["example_index"])
    whole = [sentences[i].words for i in np.flatnonzero(rows == 1)]
    words = whole[:: max(1, len(whole) // TAGGED_SENTENCES)][:TAGGED_SENTENCES]
    (folder / "words.json").write_text(json.dumps(words), encoding="utf-8")
    model = QUICK if quick else MODEL
    _write_model(folder, vocabulary, model, task)
    return {
        "folder": str(folder),
        "task": TASK,
        "sequence_length": length,
        "batch": QUICK_BATCH if quick else BATCH,
        "model": dataclasses.asdict(model),
        "mesh": dataclasses.asdict(MESH),
        "sentences": len(words),
        "words": sum(map(len, words)),
        "warmup": 1,
    }


def _write_model(
    folder: pathlib.Path, vocabulary: Vocabulary, model: ModelConfig, task: TaggingTask
) -> None:
    """The same random weights as a run's folder, "ours", and for transformers."""
    ours = str(folder / "ours")
    described = {"name": task.name, "kind": TAGGING, "labels": list(task.labels)}
    description = run_folder.ModelDir(
        "finetune", model, vocabulary.fingerprint, described, {}
    )
    run_folder.claim(ours, description, vocabulary)
    head = Head(labels=len(task.labels))
    generator = np.random.default_rng(0)
    prefix = os.path.join(ours, "model.ckpt-0")
    with CheckpointWriter(prefix) as writer:
        for name, shape in shapes(model, head).items():
            value = generator.normal(0, model.initializer_range, shape)
            gamma = name.endswith("gamma")
            writer.add(name, (value + gamma).astype(np.float32))
    to_huggingface(ours, prefix, str(folder / "theirs"), encoder_only=False)


def tables(measured: list[Comparison]) -> list[BenchmarkTable]:
    """One table: a row for each worker of each comparison."""
    return [
        worker_table(
            "tagging",
            "Words to tags",
            ["what", "by", "sentences", "rate", "time, against ours", "peak memory"],
            measured,
            _cells,
        )
    ]


def _cells(comparison, worker, against):
    sentences = worker.case["sentences"]
    return [
        comparison.title,
        worker.name,
        f"{sentences:,}",
        with_range(rate(worker, sentences), "/s"),
        against,
        gigabytes(worker.peak_resident),
    ]


SUITE = Suite(comparisons, tables, rounds=3, steps=1)

if __name__ == "__main__":
    from benchmarks.__main__ import run_module

    run_module("tagging")
