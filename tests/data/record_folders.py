"""Small records folders with documents that the test chooses."""

import dataclasses
import itertools
import os

from decoupled.configs import MaskingConfig, SamplingConfig
from decoupled.data import records

FINGERPRINT = "ab" * 32


@dataclasses.dataclass(frozen=True)
class FakeVocabulary:
    """What the pipeline needs of a vocabulary: 0 <pad>, 1 </s>, 2 <unk>, 3 [CLS],
    4 [SEP], 5 [MASK]; ordinary pieces from 6 on."""

    size: int = 10_000
    path: str = "fake.model"
    fingerprint: str = FINGERPRINT
    pad_id: int = 0
    unk_id: int = 2
    cls_id: int = 3
    sep_id: int = 4
    mask_id: int = 5
    special_ids: tuple[int, ...] = (0, 1, 3, 4, 5)


VOCABULARY = FakeVocabulary()
SAMPLING = SamplingConfig()


def masking(sequence_length=16, max_predictions=3, rate=0.15):
    return MaskingConfig(sequence_length, max_predictions, rate)


def distinct_documents(*lengths, start=6):
    """Documents in which no id occurs twice: 6, 7, 8, ..."""
    numbers = itertools.count(start)
    return [list(itertools.islice(numbers, length)) for length in lengths]


def make_records(folder, train, evaluation=None, sentences=None, vocabulary=VOCABULARY):
    """Writes a records folder; returns its manifest as read back.

    Args:
      train, evaluation: language -> shards; a shard is a list of documents (ids).
      sentences: language -> number in train; by default one per document.
    """
    folder = str(folder)
    splits = {"train": {}, "eval": {}}
    for split, languages in (("train", train), ("eval", evaluation or {})):
        for language, shards in languages.items():
            count = (sentences or {}).get(language, sum(map(len, shards)))
            splits[split][language] = _language(folder, split, language, shards, count)
    records.write_manifest(
        records.RecordsManifest(
            folder=folder,
            vocabulary_fingerprint=vocabulary.fingerprint,
            vocab_size=vocabulary.size,
            corpus_fingerprint="cd" * 32,
            splits=splits,
        )
    )
    return records.read_manifest(folder)


def _language(folder, split, language, shards, sentences):
    os.makedirs(os.path.join(folder, split, language))
    shard_records = [
        records.write_shard(
            folder,
            f"{split}/{language}/tokens-{index:05d}-of-{len(shards):05d}.tfrecord",
            documents,
        )
        for index, documents in enumerate(shards)
    ]
    return records.LanguageRecords(
        files=tuple(shard_records),
        records=sum(shard.records for shard in shard_records),
        sentences=sentences,
        tokens=sum(shard.tokens for shard in shard_records),
    )


def flip_byte(path, offset):
    """Changes one byte of a file; a negative offset counts from its end."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(bytes(content))
