"""What the tagging benchmark works on: sentences, and one model for both sides."""

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np

from benchmarks.interleave import Skip
from benchmarks.sizes import QUICK, REFERENCE
from decoupled.configs import MeshConfig, ModelConfig, VocabularyConfig
from decoupled.data.vocabulary import Vocabulary
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.exports.checkpoint_files import CheckpointWriter
from decoupled.exports.interop.to_huggingface import to_huggingface
from decoupled.model.variables import shapes, token_classifier
from decoupled.runs import run_folder
from decoupled.tasks.registry import TAGGING
from decoupled.tasks.tagging import TaggingTask
from decoupled.tasks.tagging_files import TaggedSentence, read_sentences
from decoupled.xtreme.files import LanguageFile

TASK = "udpos"
BATCH = 32
QUICK_BATCH = 4
# Of a test file, evenly spaced.
TAGGED_SENTENCES = 128
# A third of the layers: beside all twelve, words and tags would take no time at all.
MODEL = dataclasses.replace(REFERENCE, num_layers=4, vocab_size=8_000)
DATA_DIR = "DECOUPLED_DATA_DIR"
MESH = MeshConfig("all:1", "", "float32", "gather", "float32", 128)
VOCABULARY = VocabularyConfig(3_000, 1.0, False, 10**6, 10**9, 16)
QUICK_VOCABULARY = dataclasses.replace(VOCABULARY, vocab_size=16)
# The longest that a row may be.
LENGTH = 128
QUICK_LENGTH = 32
# What the graph is built for: dev and test in XTREME's 33 languages, a thousand
# sentences each, are about so many times TAGGED_SENTENCES.
FILES = 500
# So many that a tiny graph of several lengths pays, too.
QUICK_FILES = 10**9

_QUICK_TAGS = {"a": "DET", "cat": "NOUN", "sees": "VERB", "the": "DET", "owl": "NOUN"}


def read(quick: bool, path: str | None) -> list[TaggedSentence]:
    """Tagged sentences: of the file, or else the English test file of DATA_DIR.

    Args:
      quick: a few invented ones will do.
      path: of the file.

    Raises:
      Skip: there is no file. UserError: it is malformed.
    """
    if quick:
        starts = [list(_QUICK_TAGS.items())[n % 3 :] * (1 + n % 2) for n in range(20)]
        return [TaggedSentence(*map(list, zip(*s, strict=True))) for s in starts]
    if path is None:
        if DATA_DIR not in os.environ:
            raise Skip(f"no sentences: give --sentences, or set {DATA_DIR}")
        path = os.path.join(os.environ[DATA_DIR], "xtreme", TASK, "test-en.tsv")
    return read_sentences(LanguageFile(path, TASK, "en"), tags_may_miss=False)


def make_case(
    sentences: list[TaggedSentence], quick: bool, folder: pathlib.Path
) -> dict[str, Any]:
    """Writes words, vocabulary and model below `folder`; gives the workers' case."""
    folder.mkdir()
    pieces = str(folder / "pieces.model")
    texts = [" ".join(sentence.words) for sentence in sentences]
    train_vocabulary(texts, pieces, QUICK_VOCABULARY if quick else VOCABULARY)
    vocabulary = Vocabulary(pieces)
    length = QUICK_LENGTH if quick else LENGTH
    task = TaggingTask(TASK, length)
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
        "files": QUICK_FILES if quick else FILES,
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
    run_folder.claim(ours, description, vocabulary.path)
    head = token_classifier(len(task.labels))
    generator = np.random.default_rng(0)
    prefix = os.path.join(ours, "model.ckpt-0")
    with CheckpointWriter(prefix) as writer:
        for name, shape in shapes(model, head).items():
            value = generator.normal(0, model.initializer_range, shape)
            gamma = name.endswith("gamma")
            writer.add(name, (value + gamma).astype(np.float32))
    to_huggingface(ours, prefix, str(folder / "theirs"), encoder_only=False)
