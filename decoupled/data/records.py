"""The records folder: sharded TFRecords of token ids per language, and its manifest.

    DIR/{train,eval}/{language}/tokens-00000-of-0000N.tfrecord
    DIR/manifest.json                                  (written last)

A record is a `tf.train.Example` with one int64 feature `ids`: the pieces of a document,
without [CLS] and [SEP], never empty. A folder without a manifest is not complete.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from decoupled import files
from decoupled.errors import UserError

FORMAT = "decoupled-records-1"
MANIFEST = "manifest.json"
FEATURE = "ids"
BUILD_COMMAND = "python -m decoupled.build_records"
VERIFY_COMMAND = "python -m decoupled.verify_records"

# An assertion inside the input pipeline reaches Python as the text of an OpError, with
# node names around it; the marks say where our own sentence begins and ends.
_MARK, _END_MARK = "<records>", "</records>"
_MARKED = re.compile(f"{_MARK}(.*?){_END_MARK}", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file: its name below the folder, and what it must hold."""

    name: str
    records: int
    tokens: int
    sha256: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class LanguageRecords:
    """The shards of one language in one split, and their totals."""

    files: tuple[Shard, ...]
    records: int
    sentences: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class RecordsManifest:
    """What `DIR/manifest.json` says; `splits` maps split and language to records."""

    folder: str
    vocabulary_fingerprint: str
    vocab_size: int
    corpus_fingerprint: str
    splits: dict[str, dict[str, LanguageRecords]]

    def language(self, split: str, language: str) -> LanguageRecords:
        """The records of one language.

        Raises:
          UserError: there is no such split or language.
        """
        known = self.splits.get(split, {})
        if language not in known:
            raise UserError(
                f"{self.folder}: no language {language!r} in split {split!r} "
                f"(there: {', '.join(known) or 'none'})"
            )
        return known[language]

    def path(self, shard: Shard) -> str:
        """Where the shard lies."""
        return os.path.join(self.folder, shard.name)

    def check_vocabulary(self, fingerprint: str, path: str) -> None:
        """Raises a UserError where the records were made with another vocabulary."""
        if fingerprint != self.vocabulary_fingerprint:
            raise UserError(
                f"{self.folder}: made with vocabulary "
                f"{self.vocabulary_fingerprint[:12]}, not with {path} "
                f"({fingerprint[:12]}); give that vocabulary or build the records anew"
            )


def read_manifest(folder: str) -> RecordsManifest:
    """Reads and checks `folder/manifest.json`.

    Raises:
      UserError: there is no manifest, or it is not one of this format, or its totals
        contradict its files.
    """
    path = os.path.join(folder, MANIFEST)
    if not files.exists(path):
        raise UserError(
            f"{folder}: no complete records here ({MANIFEST} is missing); build them "
            f"with {BUILD_COMMAND}"
        )
    content = files.read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path}: not of format {FORMAT}; rebuild with {BUILD_COMMAND}")
    try:
        manifest = RecordsManifest(
            folder=folder,
            vocabulary_fingerprint=_typed(content["vocabulary"]["fingerprint"], str),
            vocab_size=_typed(content["vocabulary"]["vocab_size"], int),
            corpus_fingerprint=_typed(content["corpus_fingerprint"], str),
            splits={
                split: {name: _language(entry) for name, entry in languages.items()}
                for split, languages in content["splits"].items()
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: damaged ({type(error).__name__}: {files.reason(error)}); rebuild "
            f"with {BUILD_COMMAND}"
        ) from error
    _check_manifest(manifest, path)
    return manifest


def write_manifest(manifest: RecordsManifest) -> None:
    """Writes `manifest.folder/manifest.json` atomically, after everything else."""
    content = {
        "format": FORMAT,
        "vocabulary": {
            "fingerprint": manifest.vocabulary_fingerprint,
            "vocab_size": manifest.vocab_size,
        },
        "corpus_fingerprint": manifest.corpus_fingerprint,
        "splits": {
            split: {
                name: dataclasses.asdict(entry) for name, entry in languages.items()
            }
            for split, languages in manifest.splits.items()
        },
    }
    files.write_json(os.path.join(manifest.folder, MANIFEST), content)


def check_ids(ids: Sequence[int], vocab_size: int, where: str) -> None:
    """Raises a UserError where `ids` is empty or has an id outside [0, vocab_size)."""
    if not len(ids):
        raise UserError(f"{where}: no ids; leave empty documents out")
    for extreme in (int(np.min(ids)), int(np.max(ids))):
        if not 0 <= extreme < vocab_size:
            raise UserError(
                f"{where}: id {extreme} is outside the vocabulary of {vocab_size} "
                "pieces; use the vocabulary that the ids were made with"
            )


def write_shard(
    folder: str, name: str, documents: Sequence[Sequence[int]], vocab_size: int
) -> Shard:
    """Writes one file of records, atomically.

    Args:
      folder: the records folder. name: the file's name below it.
      documents: piece ids of each document.
      vocab_size: every id must be below it.

    Raises:
      UserError: an id is outside the vocabulary; the document is named.
    """
    path = os.path.join(folder, name)
    for number, ids in enumerate(documents):
        check_ids(ids, vocab_size, f"{path}: document {number}")
    with files.atomic_path(path) as temporary:
        with tf.io.TFRecordWriter(temporary) as writer:
            for ids in documents:
                writer.write(serialize(ids))
    return Shard(
        name=name,
        records=len(documents),
        tokens=sum(len(ids) for ids in documents),
        sha256=files.file_fingerprint(path),
        bytes=tf.io.gfile.stat(path).length,
    )


def serialize(ids: Sequence[int]) -> bytes:
    """One document as a serialized `tf.train.Example`."""
    values = np.asarray(ids).tolist()
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(
        features=tf.train.Features(feature={FEATURE: feature})
    ).SerializeToString()


def parse(serialized: tf.Tensor) -> tf.RaggedTensor:
    """Serialized records, string [records], to ids, int64 [records, (tokens)]."""
    spec = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    return tf.io.parse_example(serialized, {FEATURE: spec})[FEATURE]


def readable_records(path: tf.Tensor, limit: tf.Tensor) -> tf.data.Dataset:
    """The records of a file, at most `limit`, up to the first that cannot be read.

    The place of that one is the number of the records before it; TensorFlow's own
    DataLossError names neither file nor record (tensorflow issue 20835).
    """
    # The numbers end it where the file cannot be opened: `ignore_errors` never would.
    numbered = tf.data.Dataset.zip(
        (tf.data.Dataset.range(limit), tf.data.TFRecordDataset(path))
    )
    return numbered.ignore_errors().map(lambda _, record: record)


def load_shard(path, records, tokens, vocab_size: int) -> tf.RaggedTensor:
    """Reads a whole shard in the graph and checks it against the manifest.

    Args:
      path: string scalar. records, tokens: int64 scalars, what the manifest says.
      vocab_size: every id must be below it.

    Returns:
      ids, int64 [records, (tokens)]. Where the shard is not as the manifest says, the
      step fails with an error that `named_errors` turns into one line.
    """
    serialized = _read_until_error(path, records + 1)
    found = tf.size(serialized, out_type=tf.int64)
    whole = _assert(
        found >= records,
        [path, ": record ", _text(found), ": truncated or corrupt"],
    )
    with tf.control_dependencies([whole]):
        ids = parse(tf.identity(serialized))
    counted = _assert(
        (found <= records) & (tf.equal(tf.size(ids.values, out_type=tf.int64), tokens)),
        [path, ": not the file of the manifest (other numbers of records or tokens)"],
    )
    outside = (ids.values < 0) | (ids.values >= vocab_size)
    # The end counts as one more, so that there is always a first.
    first = tf.argmax(tf.concat([outside, [True]], 0))
    record = tf.searchsorted(ids.row_splits, first[tf.newaxis], side="right")[0] - 1
    value = tf.concat([ids.values, [-1]], 0)[first]
    inside = _assert(
        ~tf.reduce_any(outside),
        [path, ": record ", _text(record), ": id ", _text(value)]
        + [f" is outside the vocabulary of {vocab_size} pieces"],
    )
    with tf.control_dependencies([counted, inside]):
        return ids.with_values(tf.identity(ids.values))


def _read_until_error(path: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """The first records of a file, string [at most limit]; fewer where one is bad.

    Fails, naming the file, where it cannot be opened.
    """
    byte = tf.data.FixedLengthRecordDataset(path, record_bytes=1, buffer_size=16)
    nothing = tf.data.Dataset.from_tensors("")
    opened = byte.concatenate(nothing).take(1).get_single_element()
    with tf.control_dependencies([opened]):
        readable = readable_records(path, limit)
    # A batch needs an element, also of a file that has none.
    batch = nothing.concatenate(readable).batch(limit + 1)
    return batch.get_single_element()[1:]


@contextlib.contextmanager
def named_errors(folder: str) -> Iterator[None]:
    """Turns what the input pipeline finds wrong with a shard into a one-line UserError.

    Wrap whatever pulls batches: a `for` loop over the dataset, or a whole training run.
    Other errors pass.
    """
    try:
        yield
    except tf.errors.OpError as error:
        message = str(error)
        if found := _MARKED.search(message):
            told = found.group(1)
        elif found := re.search(re.escape(folder) + r".*?\.tfrecord", message):
            told = f"{found.group()}: cannot read ({_kind(error)})"
        elif "parse example" in message or "Key: ids" in message:
            told = f"{folder}: a record is not an Example with int64 feature 'ids'"
        else:
            raise
        raise UserError(
            f"{told}; see all defects with {VERIFY_COMMAND} --records_dir={folder}"
        ) from error


def _kind(error: tf.errors.OpError) -> str:
    """NotFoundError -> "not found"."""
    words = re.findall("[A-Z][a-z]*", type(error).__name__.removesuffix("Error"))
    return " ".join(words).lower()


def _text(number: tf.Tensor) -> tf.Tensor:
    return tf.strings.as_string(number)


def _assert(condition: tf.Tensor, parts: list) -> tf.Operation:
    message = tf.strings.join([_MARK, *parts, _END_MARK])
    return tf.debugging.Assert(condition, [message])


def _typed(value, kind: type):
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _language(entry: dict) -> LanguageRecords:
    shards = tuple(
        Shard(
            **{
                field.name: _typed(item[field.name], field.type)
                for field in dataclasses.fields(Shard)
            }
        )
        for item in entry["files"]
    )
    totals = {
        name: _typed(entry[name], int) for name in ("records", "sentences", "tokens")
    }
    return LanguageRecords(files=shards, **totals)


def _check_manifest(manifest: RecordsManifest, path: str) -> None:
    for split, languages in manifest.splits.items():
        for language, entry in languages.items():
            where = f"{path}: {split}/{language}"
            for name in ("records", "tokens"):
                total = sum(getattr(shard, name) for shard in entry.files)
                if total != getattr(entry, name):
                    raise UserError(
                        f"{where}: {name} is {getattr(entry, name)}, its files have "
                        f"{total}; rebuild with {BUILD_COMMAND}"
                    )
            for shard in entry.files:
                if os.path.dirname(shard.name) != f"{split}/{language}":
                    raise UserError(f"{where}: file {shard.name!r} lies elsewhere")
                if shard.records < 1 or shard.tokens < shard.records:
                    raise UserError(f"{where}: {shard.name} has an empty record")
