"""Finds the defects of a records folder: the first of each file, with its record.

Every byte is read, as training reads it (`load_shard`), and its SHA-256 is compared.
Defects are returned as text, so that one call shows those of all files.
"""

import concurrent.futures
import functools
from collections.abc import Iterator

from decoupled.core import console, files, gfile, processes
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.data.reading import (
    ERRORS,
    VERIFY_COMMAND,
    checked_ids,
    defect_of,
    load_shard,
)
from decoupled.data.records import RecordsManifest, Shard, read_manifest
from decoupled.data.vocabulary import open_vocabulary

# Files that are opened at once; most of the time is the disk's or the network's.
_FILES_AT_ONCE = 8
# Below this, starting worker processes takes longer than the work.
_SMALL_BYTES = 1 << 30


def verify_records(
    records_dir: str, vocabulary_path: str, workers: int = 0
) -> list[str]:
    """The defects of all files, a line each. Prints a line if there are none."""
    manifest = read_manifest(records_dir)
    vocabulary = open_vocabulary(vocabulary_path)
    manifest.check_vocabulary(vocabulary.fingerprint, vocabulary_path)
    shards = all_shards(manifest)
    are_small = sum(shard.bytes for shard in shards) < _SMALL_BYTES
    workers = processes.choose_workers(workers, len(shards), are_small)
    defects = []
    by_shard = verify_shards(manifest, workers)
    for each in console.track(by_shard, "verifying files", total=len(shards)):
        defects += each
    defects += stray_files(manifest)
    if not defects:
        records = sum(shard.records for shard in shards)
        tokens = sum(shard.tokens for shard in shards)
        console.say(
            f"{records_dir}: {len(shards)} files, {records} records and {tokens} "
            "tokens, as the manifest says"
        )
    return defects


def all_shards(manifest: RecordsManifest) -> list[Shard]:
    """The shards of all splits and languages, in the order of the manifest."""
    return [
        shard
        for languages in manifest.splits.values()
        for entry in languages.values()
        for shard in entry.files
    ]


def check_beginnings(manifest: RecordsManifest) -> None:
    """Checks the size and the first record of every shard, which takes little time."""
    check = functools.partial(_beginning_defect, manifest)
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        for defect in pool.map(check, all_shards(manifest)):
            if defect:
                raise UserError(
                    f"{defect}; see all defects with {VERIFY_COMMAND} "
                    f"--records_dir={manifest.folder}"
                )


def _beginning_defect(manifest: RecordsManifest, shard: Shard) -> str | None:
    path = manifest.path(shard)
    try:
        size = gfile.size(path)
        if size != shard.bytes:
            return (
                f"{path}: truncated or corrupt ({size:,} bytes, the manifest says "
                f"{shard.bytes:,})"
            )
        with gfile.GFile(path, "rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
        if length > size:
            # TensorFlow would allocate as much, and end the process.
            return f"{path}: record 0: truncated or corrupt"
        first = next(tf.compat.v1.io.tf_record_iterator(path), b"")
    except tf.errors.DataLossError:
        return f"{path}: record 0: truncated or corrupt"
    except gfile.OpError as error:
        return f"{path}: cannot read ({files.reason(error)})"
    try:
        _checked_ids(tf.constant(path), tf.constant([first]), manifest.vocab_size)
    except ERRORS as error:
        if (defect := defect_of(error, path)) is None:
            raise
        return defect
    return None


def stray_files(manifest: RecordsManifest) -> list[str]:
    """A defect for each TFRecord below the folder that is not in the manifest."""
    known = {manifest.path(shard) for shard in all_shards(manifest)}
    return [
        f"{path}: not in the manifest"
        for path in gfile.glob(f"{manifest.folder}/", "*/*/*.tfrecord")
        if path not in known
    ]


def verify_shards(manifest: RecordsManifest, workers: int) -> Iterator[list[str]]:
    """Yields the defects of each shard, in the order of `all_shards`."""
    verify = functools.partial(verify_shard, manifest)
    if workers == 1:
        yield from map(verify, all_shards(manifest))
        return
    shards = all_shards(manifest)
    with processes.started(verify, shards, workers, manifest.folder) as futures:
        for future in futures:
            yield future.result()


def verify_shard(manifest: RecordsManifest, shard: Shard) -> list[str]:
    """The first defect of a file, if it has any."""
    path = manifest.path(shard)
    if not files.exists(path):
        return [f"{path}: missing"]
    content = files.read_bytes(path)
    whole, is_complete = _whole_records(content)
    if not is_complete:
        # TensorFlow would allocate what the next length says.
        readable = tf.data.TFRecordDataset(path).take(whole).ignore_errors()
        return [f"{path}: record {sum(1 for _ in readable)}: truncated or corrupt"]
    sizes = [tf.constant(n, tf.int64) for n in (shard.records, shard.tokens)]
    try:
        _load_shard(tf.constant(path), *sizes, manifest.vocab_size)
    except ERRORS as error:
        if (defect := defect_of(error, path)) is None:
            raise
        return [defect]
    if files.fingerprint(content) != shard.sha256:
        return [f"{path}: sha256 is not that of the manifest"]
    return []


def _whole_records(content: bytes) -> tuple[int, bool]:
    """How many records of a TFRecord file fit into it, and whether these are all of it.

    A record consists of its length in 8 bytes, their checksum in 4, its content, and
    the checksum of the content.
    """
    count = start = 0
    while start < len(content):
        start += 16 + int.from_bytes(content[start : start + 8], "little")
        if start > len(content):
            return count, False
        count += 1
    return count, True


# Errors of graphs have the whole text of an assertion.
_load_shard = tf.function(load_shard, autograph=False)
_checked_ids = tf.function(checked_ids, autograph=False)
