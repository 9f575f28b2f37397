"""Finds the defects of a records folder, by file and record.

Every byte is read. The checks cover the checksums of each record, the schema, the range
of ids, and the counts and SHA-256 of the manifest. Defects are returned as text, so
that one call shows those of all files. In a file, a corrupt record is the last.
"""

import concurrent.futures
import functools
from collections.abc import Iterator, Sequence

from decoupled.core import console, files, gfile, processes
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.data.reading import VERIFY_COMMAND, parse
from decoupled.data.records import FEATURE, RecordsManifest, Shard, read_manifest
from decoupled.data.vocabulary import open_vocabulary

_BATCH = 1024
# Files that are opened at once; most of the time is the disk's or the network's.
_FILES_AT_ONCE = 8
# Below this, starting worker processes takes longer than the work.
_SMALL_BYTES = 1 << 30


def verify_records(
    records_dir: str, vocabulary_path: str, workers: int = 0
) -> list[str]:
    """All defects of a records folder, a line each. Prints a line if there are none."""
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
    ids, problem = _ids(first)
    problem = problem or _outside(ids, manifest.vocab_size)
    return f"{path}: record 0: {problem}" if problem else None


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
    """The defects of one file, in its order. Needs eager execution."""
    path = manifest.path(shard)
    if not files.exists(path):
        return [f"{path}: missing"]
    content = files.read_bytes(path)
    is_changed = files.fingerprint(content) != shard.sha256
    places, is_complete = _places(content)
    records = len(places)
    # TensorFlow compares checksums, of which an unchanged file needs no look.
    if is_changed:
        # No more are taken: TensorFlow would allocate what a length says.
        readable = tf.data.TFRecordDataset(path).take(records).ignore_errors()
        records = sum(len(batch) for batch in readable.batch(_BATCH))
    tokens, is_parsed, defects = 0, True, []
    for first in range(0, records, _BATCH):
        batch = [content[place] for place in places[first : first + _BATCH]]
        batch = batch[: records - first]
        count = _tokens(batch, manifest.vocab_size)
        if count is not None:
            tokens += count
            continue
        for number, record in enumerate(batch, start=first):
            ids, problem = _ids(record)
            is_parsed = is_parsed and not problem
            tokens += len(ids)
            problem = problem or _outside(ids, manifest.vocab_size)
            if problem:
                defects.append(f"{path}: record {number}: {problem}")
    if not is_complete or records < len(places):
        defects.append(f"{path}: record {records}: truncated or corrupt")
        return defects
    if records != shard.records:
        counted = f"{records} records, the manifest says {shard.records}"
        defects.append(f"{path}: {counted}")
    elif is_parsed and tokens != shard.tokens:
        defects.append(f"{path}: {tokens} tokens, the manifest says {shard.tokens}")
    elif is_changed:
        defects.append(f"{path}: sha256 is not that of the manifest")
    return defects


def _tokens(records: list[bytes], vocab_size: int) -> int | None:
    """The number of ids in records without defects; None if there are defects."""
    try:
        ids = parse(tf.constant(records))
        lengths, values = ids.row_lengths().numpy(), ids.values.numpy()
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        return None
    inside = (values >= 0) & (values < vocab_size)
    return len(values) if lengths.all() and inside.all() else None


def _places(content: bytes) -> tuple[list[slice], bool]:
    """Where the records of a TFRecord file are, and whether all of it is records.

    A record consists of its length in 8 bytes, their checksum in 4, its content, and
    the checksum of the content. A length that does not fit into the file ends it.
    """
    places, start = [], 0
    while start < len(content):
        end = start + 16 + int.from_bytes(content[start : start + 8], "little")
        if end > len(content):
            return places, False
        places.append(slice(start + 12, end - 4))
        start = end
    return places, True


def _ids(record: bytes) -> tuple[Sequence[int], str]:
    """The ids of a record, and what is wrong with its form, or ""."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's DecodeError differs between its builds
        return (), f"not a tf.train.Example ({files.reason(error)})"
    ids = features[FEATURE].int64_list.value
    return ids, "" if ids else f"no int64 feature {FEATURE!r}, or an empty one"


def _outside(ids: Sequence[int], vocab_size: int) -> str:
    wrong = [token for token in ids if not 0 <= token < vocab_size]
    if not wrong:
        return ""
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"id {wrong[0]}{more} is outside the vocabulary of {vocab_size} pieces"
