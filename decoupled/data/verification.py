"""Finds the defects of a records folder, by file and record.

Every byte is read. The checks cover the checksums of each record, the schema, the range
of ids, and the counts and SHA-256 of the manifest. Defects are returned as text, so
that one call shows all of them.
"""

import concurrent.futures
import functools
import itertools
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
    """All defects of a records folder, a line each. Prints a line if there are none.

    Raises:
      UserError: there is no manifest, or the vocabulary is another one.
    """
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
    """Checks the size and the first record of every shard, which takes little time.

    It does not find defects deeper in a shard; `verify_shards` does.

    Raises:
      UserError: a file is missing, is not as long as the manifest says, or does not
        begin with a record; the first such file is named.
    """
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
    """The defects of one file, in its order; empty if it has none.

    Needs eager execution.
    """
    path = manifest.path(shard)
    if not files.exists(path):
        return [f"{path}: missing"]
    content = files.read_bytes(path)
    is_changed = files.fingerprint(content) != shard.sha256
    # An unchanged file needs no look at its checksums, which take long in Python.
    frames = enumerate(_framed(content, is_changed))
    records = tokens = 0
    is_complete = is_parsed = True
    defects = []
    while batch := list(itertools.islice(frames, _BATCH)):
        records += len(batch)
        count = _tokens([frame for _, frame in batch], manifest.vocab_size)
        if count is not None:
            tokens += count
            continue
        for number, (record, problem) in batch:
            if problem:
                is_complete = False
            else:
                ids, problem = _ids(record)
                is_parsed = is_parsed and not problem
                tokens += len(ids)
                problem = problem or _outside(ids, manifest.vocab_size)
            if problem:
                defects.append(f"{path}: record {number}: {problem}")
    if not is_complete:
        return defects
    if records != shard.records:
        counted = f"{records} records, the manifest says {shard.records}"
        defects.append(f"{path}: {counted}")
    elif is_parsed and tokens != shard.tokens:
        defects.append(f"{path}: {tokens} tokens, the manifest says {shard.tokens}")
    elif is_changed:
        defects.append(f"{path}: sha256 is not that of the manifest")
    return defects


def _tokens(frames: list[tuple[bytes, str]], vocab_size: int) -> int | None:
    """The number of ids in records without defects; None if there are defects."""
    if any(problem for _, problem in frames):
        return None
    try:
        ids = parse(tf.constant([record for record, _ in frames]))
        lengths, values = ids.row_lengths().numpy(), ids.values.numpy()
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        return None
    inside = (values >= 0) & (values < vocab_size)
    return len(values) if lengths.all() and inside.all() else None


def _framed(content: bytes, checks: bool) -> Iterator[tuple[bytes, str]]:
    """(record, "") or (b"", what is wrong) for each record of a TFRecord file.

    A record consists of its length in 8 bytes, their checksum in 4, its content, and
    the checksum of the content. A corrupt record can be skipped if its length is right.
    """
    start = 0
    while start < len(content):
        head, begin = content[start : start + 12], start + 12
        end = begin + int.from_bytes(head[:8], "little")
        if checks and len(head) == 12 and _checksum(head[:8]) != head[8:]:
            yield b"", "corrupt length; the rest of the file cannot be read"
            return
        if end + 4 > len(content):
            yield b"", "truncated"
            return
        record, start = content[begin:end], end + 4
        if not checks or _checksum(record) == content[end:start]:
            yield record, ""
        else:
            yield b"", "corrupt (its checksum does not match)"


def _checksum(content: bytes) -> bytes:
    """The masked CRC-32C of TFRecord files.

    In Python, a million bytes take some tenths of a second. It is used for damaged
    files only.
    """
    value = 0xFFFFFFFF
    for byte in content:
        value = _CRC[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    rotated = (value >> 15 | value << 17) + 0xA282EAD8
    return (rotated & 0xFFFFFFFF).to_bytes(4, "little")


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC = _crc_table()


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
