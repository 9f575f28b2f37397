"""Finds what is wrong with a records folder, by file and record.

Every byte is read: checksums of each record, schema, id range, the counts and SHA-256
of the manifest. What is wrong comes as text, so that one look shows all of it.
"""

import concurrent.futures
import functools
import multiprocessing
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from decoupled import files
from decoupled.data.reading import parse, readable_records
from decoupled.data.records import FEATURE, RecordsManifest, Shard

_BATCH = 1024


def all_shards(manifest: RecordsManifest) -> list[Shard]:
    """The shards of all splits and languages, in the order of the manifest."""
    return [
        shard
        for languages in manifest.splits.values()
        for entry in languages.values()
        for shard in entry.files
    ]


def stray_files(manifest: RecordsManifest) -> list[str]:
    """A defect for each TFRecord below the folder that the manifest does not know."""
    known = {manifest.path(shard) for shard in all_shards(manifest)}
    pattern = os.path.join(manifest.folder, "*", "*", "*.tfrecord")
    return [
        f"{path}: not in the manifest"
        for path in sorted(tf.io.gfile.glob(pattern))
        if path not in known
    ]


def verify_shards(manifest: RecordsManifest, workers: int) -> Iterator[list[str]]:
    """Yields the defects of each shard, in the order of `all_shards`.

    Args:
      manifest: of the folder. workers: processes; 1 is this one alone.
    """
    verify = functools.partial(verify_shard, manifest)
    if workers == 1:
        yield from map(verify, all_shards(manifest))
        return
    # TensorFlow does not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)
    try:
        yield from pool.map(verify, all_shards(manifest))
    finally:
        pool.shutdown(cancel_futures=True)


def verify_shard(manifest: RecordsManifest, shard: Shard) -> list[str]:
    """The defects of one file, most specific first; empty where it is as it should be.

    Needs eager execution.
    """
    path = manifest.path(shard)
    if not files.exists(path):
        return [f"{path}: missing"]
    scan = _Scan(path, shard.records, manifest.vocab_size)
    if scan.defects:
        return scan.defects
    for name, found in (("records", scan.records), ("tokens", scan.tokens)):
        if found != getattr(shard, name):
            return [f"{path}: {found} {name}, the manifest says {getattr(shard, name)}"]
    if files.file_fingerprint(path) != shard.sha256:
        return [f"{path}: sha256 is not that of the manifest"]
    return []


class _Scan:
    """One pass over a file: records and tokens read, and the defects found."""

    def __init__(self, path: str, expected: int, vocab_size: int):
        self.vocab_size = vocab_size
        self.records, self.tokens = 0, 0
        self.defects: list[str] = []
        bad = 0
        # A record takes 16 bytes beside its content.
        most = tf.io.gfile.stat(path).length // 16 + 1
        for batch in readable_records(path, most).batch(_BATCH):
            for index, problem in self._problems(batch):
                bad += 1
                if bad == 1:
                    number = self.records + index
                    self.defects.append(f"{path}: record {number}: {problem}")
            self.records += len(batch)
        if bad > 1:
            self.defects.append(f"{path}: {bad - 1} more records with such defects")
        problem = self.records < expected and _read_problem(path, self.records)
        if problem:
            self.defects.append(f"{path}: record {self.records}: {problem}")

    def _problems(self, batch: tf.Tensor) -> Iterator[tuple[int, str]]:
        """Index in the batch and problem of each bad record; counts the tokens."""
        try:
            ids = parse(batch)
            lengths, values = ids.row_lengths().numpy(), ids.values.numpy()
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            lengths, values = np.zeros(1), np.zeros(0)
        inside = ((values >= 0) & (values < self.vocab_size)).all()
        if lengths.all() and inside:
            self.tokens += len(values)
            return
        for index, record in enumerate(batch.numpy()):
            if problem := _record_problem(record, self.vocab_size):
                yield index, problem


def _record_problem(record: bytes, vocab_size: int) -> str | None:
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's DecodeError differs between its builds
        return f"not a tf.train.Example ({files.reason(error)})"
    ids = features[FEATURE].int64_list.value
    if not ids:
        return f"no int64 feature {FEATURE!r}, or an empty one"
    for token in ids:
        if not 0 <= token < vocab_size:
            return f"id {token} is outside the vocabulary of {vocab_size} pieces"
    return None


def _read_problem(path: str, readable: int) -> str | None:
    """Why reading ends after `readable` records; None at a proper end."""
    try:
        for _ in tf.data.TFRecordDataset(path).skip(readable):
            pass
    except tf.errors.OpError as error:
        message = files.reason(error)
        if "truncated" in message:
            return "truncated"
        if "corrupted" in message:
            return "corrupt (its checksum does not match)"
        return f"cannot read ({message})"
    return None
