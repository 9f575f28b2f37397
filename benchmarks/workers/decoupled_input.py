"""Worker: batches of this project's pre-training data, in a session that only reads."""

import os
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
import protocol
import synthetic

from decoupled.configs import MaskingConfig, MeshConfig, SamplingConfig
from decoupled.core.compat import tf
from decoupled.data.input_fn import pretraining_input_fn
from decoupled.data.records import (
    LanguageRecords,
    RecordsManifest,
    read_manifest,
    write_manifest,
    write_shard,
)
from decoupled.training.mesh import session_config

FINGERPRINT = "0" * 64
SEED = 1
# Nothing depends on the length of a run whose sampling has no limits on epochs.
TRAIN_STEPS = 1_000_000


class Pieces(NamedTuple):
    """What the pipeline asks of a vocabulary."""

    size: int
    path: str = "synthetic"
    fingerprint: str = FINGERPRINT
    pad_id: int = synthetic.PAD_ID
    unk_id: int = synthetic.UNK_ID
    cls_id: int = synthetic.CLS_ID
    sep_id: int = synthetic.SEP_ID
    mask_id: int = synthetic.MASK_ID
    special_ids: tuple[int, ...] = (
        synthetic.PAD_ID,
        synthetic.CLS_ID,
        synthetic.SEP_ID,
        synthetic.MASK_ID,
    )


class _Reader(NamedTuple):
    """pull: takes a batch, all of its features, and leaves it in the session.
    predictions: how many a batch has, float32 scalar."""

    session: tf.Session
    pull: tf.Operation
    predictions: tf.Tensor


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds a batch's sizes and "languages" (see `synthetic`),
    "tokens_per_shard", the fields of "masking", "sampling" and "mesh", and further

    "batches": how many of them a step takes.
    "starts", "start_repeats": steps of training at which the data is begun so often, to
      see how long the first batch takes.
    """
    # Removed when the process ends; the step keeps it until then.
    folder = tempfile.TemporaryDirectory()
    manifest = write_records(folder.name, case)
    _first_batch(case, manifest, 0)
    started = {str(step): [] for step in case["starts"]}
    for _ in range(case["start_repeats"]):
        for step in case["starts"]:
            started[str(step)].append(_first_batch(case, manifest, step))
    reader = _open(case, manifest, 0)

    def step(records=folder):
        for _ in range(case["batches"] - 1):
            reader.session.run(reader.pull)
        return float(reader.session.run([reader.predictions, reader.pull])[0])

    train = manifest.splits["train"]
    return step, {
        "first_batch": started,
        "tokens": sum(entry.tokens for entry in train.values()),
        "shards": sum(len(entry.files) for entry in train.values()),
        "versions": protocol.versions("decoupled", "tensorflow"),
    }


def _first_batch(case, manifest, start_step) -> float:
    """Seconds from nothing to a batch; the records are in the system's cache."""
    started = time.perf_counter()
    reader = _open(case, manifest, start_step)
    reader.session.run(reader.pull)
    seconds = time.perf_counter() - started
    reader.session.close()
    return seconds


def _open(case, manifest, start_step) -> _Reader:
    """The data from a step on, in a graph and a session of the kind of training."""
    input_fn = pretraining_input_fn(
        manifest,
        Pieces(case["vocab_size"]),
        MaskingConfig(**case["masking"]),
        SamplingConfig(**case["sampling"]),
        case["batch"],
        SEED,
        start_step,
        train_steps=TRAIN_STEPS,
    )
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(input_fn())
        features = iterator.get_next()
        pull = tf.group(*features.values())
        predictions = tf.reduce_sum(features["masked_lm_weights"])
        session = tf.Session(config=session_config(MeshConfig(**case["mesh"])))
        session.run(iterator.initializer)
    return _Reader(session, pull, predictions)


def write_records(folder: str, case: dict[str, Any]) -> RecordsManifest:
    """Writes the documents of a case as records; gives their manifest as read back."""
    train = {}
    for name, texts in synthetic.documents(case):
        os.makedirs(os.path.join(folder, "train", name))
        train[name] = _write_language(folder, name, texts, case)
    write_manifest(
        RecordsManifest(
            folder=folder,
            vocabulary_fingerprint=FINGERPRINT,
            vocab_size=case["vocab_size"],
            corpus_fingerprint=FINGERPRINT,
            splits={"train": train, "eval": {}},
        )
    )
    return read_manifest(folder)


def _write_language(folder, name, texts, case):
    before = np.cumsum([0, *map(len, texts)])[:-1]
    borders = np.flatnonzero(np.diff(before // case["tokens_per_shard"])) + 1
    starts, ends = [0, *borders], [*borders, len(texts)]
    shards = tuple(
        write_shard(
            folder,
            f"train/{name}/tokens-{number:05d}-of-{len(starts):05d}.tfrecord",
            texts[start:end],
            case["vocab_size"],
        )
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
    return LanguageRecords(
        files=shards,
        records=sum(shard.records for shard in shards),
        sentences=sum(shard.records for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
    )


if __name__ == "__main__":
    protocol.serve(build)
