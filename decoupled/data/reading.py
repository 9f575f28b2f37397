"""Records in the graph: training reads each shard as a whole and checks it.

A bad shard ends the run with an error that names file and record; `named_errors` turns
it into one line. `verify_records` compares the SHA-256 of every file with the manifest.
`check_sizes` looks at sizes alone, which takes little time.
"""

import concurrent.futures
import contextlib
import os
import re
from collections.abc import Callable, Iterator

import numpy as np

from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.core.release import tf, without_autograph
from decoupled.data.records import (
    FEATURE,
    LanguageRecords,
    RecordsManifest,
    Shard,
    read_manifest,
)
from decoupled.data.vocabulary import open_vocabulary

VERIFY_COMMAND = "decoupled verify_records"

# An assertion inside the input pipeline reaches Python as the text of an OpError, with
# node names around it; the marks say where our own sentence begins and ends.
_MARK, _END_MARK = "<records>", "</records>"
_MARKED_TEXT = re.compile(f"{_MARK}(.*?){_END_MARK}", re.DOTALL)
# The text of an error may have a record that is not UTF-8.
ERRORS = (tf.errors.OpError, UnicodeDecodeError)
# Files that are opened at once; most of the time is the disk's or the network's.
_FILES_AT_ONCE = 8


def load_shard(
    path: tf.Tensor, records: tf.Tensor, tokens: tf.Tensor, vocab_size: int
) -> tf.RaggedTensor:
    """Reads a whole shard in the graph and checks it against the manifest.

    Returns ids, int64 [records, (tokens)]. If the shard differs, the step fails with an
    error that `named_errors` turns into one line.
    """
    serialized = _read_until_error(path, records + 1)
    count = tf.size(serialized, out_type=tf.int64)
    whole_check = _assert(
        count >= records,
        [path, ": record ", _text(count), ": truncated or corrupt"],
    )
    spec = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    with tf.control_dependencies([whole_check]):
        features = tf.io.parse_example(tf.identity(serialized), {FEATURE: spec})
    ids = features[FEATURE]
    lengths = ids.row_lengths()
    filled_check = _assert(
        tf.reduce_all(lengths > 0),
        [path, ": record ", _text(tf.argmin(lengths))]
        + [f": no int64 feature {FEATURE!r}, or an empty one"],
    )
    count_check = _assert(
        (count <= records) & (tf.equal(tf.size(ids.values, out_type=tf.int64), tokens)),
        [path, ": not the file of the manifest (more or fewer records or tokens)"],
    )
    is_outside = (ids.values < 0) | (ids.values >= vocab_size)
    # One more true value at the end, so that there always is a first one.
    place = tf.argmax(tf.concat([is_outside, [True]], 0))
    record = tf.searchsorted(ids.row_splits, place[tf.newaxis], side="right")[0] - 1
    value = tf.concat([ids.values, [-1]], 0)[place]
    id_check = _assert(
        ~tf.reduce_any(is_outside),
        [path, ": record ", _text(record), ": id ", _text(value)]
        + [f" is outside the vocabulary of {vocab_size} pieces"],
    )
    with tf.control_dependencies([filled_check, count_check, id_check]):
        return ids.with_values(tf.identity(ids.values))


def read_ids(folder: str, shard: Shard, vocab_size: int) -> list[np.ndarray]:
    """The ids of each record of a shard, int32; one of ERRORS if the shard is bad."""
    path = tf.constant(os.path.join(folder, shard.name))
    sizes = [tf.constant(n, tf.int64) for n in (shard.records, shard.tokens)]
    ids = _load_shard(path, *sizes, vocab_size)
    values = ids.values.numpy().astype(np.int32)
    return np.split(values, ids.row_splits.numpy()[1:-1])


def count_pieces(
    manifest: RecordsManifest, records: LanguageRecords, tokens: float = np.inf
) -> np.ndarray:
    """How often each piece is in the records of a language, int64 [V].

    No further shard is read when `tokens` have been counted. Errors are those of
    `load_shard`.
    """
    counts = np.zeros(manifest.vocab_size, np.int64)
    v1 = tf.compat.v1
    config = v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        path = v1.placeholder(tf.string, [])
        sizes = [v1.placeholder(tf.int64, []) for _ in range(2)]
        values = load_shard(path, *sizes, manifest.vocab_size).values
        for shard in records.files:
            feeds = dict(zip(sizes, (shard.records, shard.tokens), strict=True))
            ids = session.run(values, {path: manifest.path(shard), **feeds})
            counts += np.bincount(ids, minlength=len(counts))
            if counts.sum() >= tokens:
                break
    return counts


@contextlib.contextmanager
def named_errors(folder: str, advice: str | None = None) -> Iterator[None]:
    """Turns errors of the input pipeline about a shard into a one-line UserError.

    It must enclose the code that reads batches: a `for` loop over the dataset, or a
    whole training run. Other errors are not changed. `advice` ends the line; by default
    it names the command that shows all defects.
    """
    try:
        yield
    except ERRORS as error:
        if (defect := defect_of(error, folder)) is None:
            raise
        command = f"{VERIFY_COMMAND} --records_dir={folder}"
        advice = advice or f"see all defects with {command}"
        raise UserError(f"{defect}; {advice}") from error


def defect_of(error: Exception, where: str) -> str | None:
    """What an error of ERRORS says about a shard of a folder, or about a shard."""
    message = _message(error)
    if match := _MARKED_TEXT.search(message):
        return _unescaped(match.group(1))
    if "parse example" in message or "Key: ids" in message:
        return f"{where}: a record is not an Example with int64 feature 'ids'"
    if match := re.search(re.escape(where) + r"(.*?\.tfrecord)?", message):
        if match.group().endswith(".tfrecord"):
            return f"{match.group()}: cannot read ({_kind(error)})"
    return None


def _read_until_error(path: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """The first records of a file, string [at most limit], up to the first bad one.

    The count of these is the index of the bad one, which TensorFlow does not name.
    """
    byte = tf.data.FixedLengthRecordDataset(path, record_bytes=1, buffer_size=16)
    empty_string = tf.data.Dataset.from_tensors("")
    first_byte = byte.concatenate(empty_string).take(1).get_single_element()
    with tf.control_dependencies([first_byte]):
        # The range ends the dataset if the file cannot be opened. With `ignore_errors`
        # alone, it would never end.
        numbered_records = tf.data.Dataset.zip(
            (tf.data.Dataset.range(limit), tf.data.TFRecordDataset(path))
        )
    readable_records = numbered_records.ignore_errors().map(_record)
    # A batch needs at least one element, even if the file has none.
    batch = empty_string.concatenate(readable_records).batch(limit + 1)
    return batch.get_single_element()[1:]


@without_autograph
def _record(_: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    return record


def _message(error: tf.errors.OpError | UnicodeDecodeError) -> str:
    # TensorFlow quotes a record that it cannot parse. If this is not UTF-8, Python does
    # not decode the message.
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode("utf-8", errors="replace")
    return str(error)


def _unescaped(text: str) -> str:
    """A text with the characters that TensorFlow's octal escapes stand for."""
    octal = re.compile(rb"\\([0-3][0-7]{2})")
    content = octal.sub(lambda match: bytes([int(match[1], 8)]), text.encode())
    return content.replace(rb"\'", b"'").decode("utf-8", "replace")


def _kind(error: tf.errors.OpError) -> str:
    words = re.findall("[A-Z][a-z]*", type(error).__name__.removesuffix("Error"))
    return " ".join(words).lower()


def _text(number: tf.Tensor) -> tf.Tensor:
    return tf.strings.as_string(number)


def _assert(condition: tf.Tensor, parts: list) -> tf.Operation:
    message = tf.strings.join([_MARK, *parts, _END_MARK])
    return tf.debugging.Assert(condition, [message])


def verify_records(records_dir: str, vocabulary_path: str) -> list[str]:
    """The defects of all files, a line each. Prints a line if there are none."""
    manifest = read_manifest(records_dir)
    vocabulary = open_vocabulary(vocabulary_path)
    manifest.check_vocabulary(vocabulary.fingerprint, vocabulary_path)
    shards = all_shards(manifest)
    results = _for_each_shard(_defect, manifest)
    tracked_results = console.track(results, "verifying files", total=len(shards))
    defects = [*filter(None, tracked_results), *stray_files(manifest)]
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


def check_sizes(manifest: RecordsManifest) -> None:
    """Checks that every shard has the size that it was built with."""
    for defect in _for_each_shard(_size_defect, manifest):
        if defect:
            raise UserError(
                f"{defect}; see all defects with {VERIFY_COMMAND} "
                f"--records_dir={manifest.folder}"
            )


def _for_each_shard(
    check: Callable[[str, Shard], str | None], manifest: RecordsManifest
) -> Iterator[str | None]:
    """Yields check(path, shard) for each shard, in the order of `all_shards`."""
    shards = all_shards(manifest)
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        yield from pool.map(check, map(manifest.path, shards), shards)


def _size_defect(path: str, shard: Shard) -> str | None:
    try:
        size = gfile.size(path)
    except gfile.OpError as error:
        return f"{path}: cannot read ({files.reason(error)})"
    if size != shard.bytes:
        return (
            f"{path}: truncated or corrupt ({size:,} bytes, the manifest says "
            f"{shard.bytes:,})"
        )
    return None


def _defect(path: str, shard: Shard) -> str | None:
    if not files.exists(path):
        return f"{path}: missing"
    if defect := _size_defect(path, shard):
        return defect
    try:
        sha256 = files.file_fingerprint(path)
    except gfile.OpError as error:
        return f"{path}: cannot read ({files.reason(error)})"
    if sha256 != shard.sha256:
        return f"{path}: sha256 is not that of the manifest"
    return None


def stray_files(manifest: RecordsManifest) -> list[str]:
    """A defect for each TFRecord below the folder that is not in the manifest."""
    known_paths = {manifest.path(shard) for shard in all_shards(manifest)}
    return [
        f"{path}: not in the manifest"
        for path in gfile.glob(f"{manifest.folder}/", "*/*/*.tfrecord")
        if path not in known_paths
    ]


# Errors of graphs have the whole text of an assertion.
_load_shard = tf.function(load_shard, autograph=False)
