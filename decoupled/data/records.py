"""The records folder: sharded TFRecords of token ids per language, and its manifest.

    DIR/{train,eval}/{language}/tokens-00000-of-0000N.tfrecord
    DIR/manifest.json                                  (written last)

A record is a `tf.train.Example` with one int64 feature `ids`: the pieces of a document,
without [CLS] and [SEP], never empty. A folder without a manifest is not complete.
"""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np

from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.core.files import typed
from decoupled.corpora import locales
from decoupled.corpora.corpus import SPLITS
from decoupled.data.vocabulary import SENTENCEPIECE

FORMAT = "decoupled-records-1"
MANIFEST = "manifest.json"
FEATURE = "ids"
BUILD_COMMAND = "decoupled build_records"


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

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.files)


@dataclasses.dataclass(frozen=True)
class RecordsManifest:
    """The content of `DIR/manifest.json`; `splits`: split -> language -> records."""

    folder: str
    vocabulary_fingerprint: str
    vocab_size: int
    corpus_fingerprint: str
    splits: dict[str, dict[str, LanguageRecords]]
    vocabulary_kind: str = SENTENCEPIECE

    def language(self, split: str, language: str) -> LanguageRecords:
        """The records of one language."""
        languages = self.splits.get(split, {})
        if language not in languages:
            raise UserError(
                f"{self.folder}: no language {language!r} in split {split!r} "
                f"(there: {', '.join(languages) or 'none'})"
            )
        return languages[language]

    def path(self, shard: Shard) -> str:
        return os.path.join(self.folder, shard.name)

    def check_vocabulary(self, fingerprint: str, path: str) -> None:
        if fingerprint != self.vocabulary_fingerprint:
            raise UserError(
                f"{self.folder}: made with vocabulary "
                f"{self.vocabulary_fingerprint[:12]}, not with {path} "
                f"({fingerprint[:12]}); give that vocabulary or build the records anew"
            )


def read_manifest(folder: str) -> RecordsManifest:
    """Reads and checks `folder/manifest.json`."""
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
            vocabulary_fingerprint=typed(content["vocabulary"]["fingerprint"], str),
            vocabulary_kind=typed(
                content["vocabulary"].get("kind", SENTENCEPIECE), str
            ),
            vocab_size=typed(content["vocabulary"]["vocab_size"], int),
            corpus_fingerprint=typed(content["corpus_fingerprint"], str),
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


def read_shard(item: dict) -> Shard:
    """A shard from JSON; KeyError or TypeError where a field is missing or wrong."""
    return Shard(
        **{
            field.name: typed(item[field.name], field.type)
            for field in dataclasses.fields(Shard)
        }
    )


def write_manifest(manifest: RecordsManifest) -> None:
    """Writes `manifest.folder/manifest.json` atomically, after everything else."""
    content = {
        "format": FORMAT,
        "vocabulary": {
            "kind": manifest.vocabulary_kind,
            "fingerprint": manifest.vocabulary_fingerprint,
            "vocab_size": manifest.vocab_size,
        },
        "corpus_fingerprint": manifest.corpus_fingerprint,
        "splits": {
            split: {
                name: {**dataclasses.asdict(entry), "bytes": entry.bytes}
                for name, entry in languages.items()
            }
            for split, languages in manifest.splits.items()
        },
    }
    files.write_json(os.path.join(manifest.folder, MANIFEST), content)


def write_shard(folder: str, name: str, documents: Sequence[Sequence[int]]) -> Shard:
    """Writes one file of records, the ids of a document each, atomically."""
    path = os.path.join(folder, name)
    with files.atomic_path(path) as temporary:
        from decoupled.core.release import tf

        with tf.io.TFRecordWriter(temporary) as writer:
            for ids in documents:
                writer.write(serialize(ids))
    return Shard(
        name=name,
        records=len(documents),
        tokens=sum(len(ids) for ids in documents),
        sha256=files.file_fingerprint(path),
        bytes=gfile.size(path),
    )


def serialize(ids: Sequence[int]) -> bytes:
    """One document as a serialized `tf.train.Example`."""
    from decoupled.core.release import tf

    values = tf.train.Int64List(value=np.asarray(ids, np.int64).tolist())
    features = {FEATURE: tf.train.Feature(int64_list=values)}
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString()


def _language(entry: dict) -> LanguageRecords:
    shards = tuple(read_shard(item) for item in entry["files"])
    totals = {
        name: typed(entry[name], int) for name in ("records", "sentences", "tokens")
    }
    return LanguageRecords(files=shards, **totals)


def _check_manifest(manifest: RecordsManifest, path: str) -> None:
    for split, languages in manifest.splits.items():
        if split not in SPLITS:
            raise UserError(
                f"{path}: {split!r} is no split; rebuild with {BUILD_COMMAND}"
            )
        for language, entry in languages.items():
            locales.check_language(language, path)
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
                files.path_below(manifest.folder, shard.name, path)
                if shard.records < 1 or shard.tokens < shard.records:
                    raise UserError(f"{where}: {shard.name} has an empty record")
