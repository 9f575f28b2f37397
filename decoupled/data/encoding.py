"""Corpus text -> record shards, language by language, resumable after a kill.

While a language is in work, `DIR/{split}/{language}/progress.json` says which shards
are complete and which document comes next; a process that starts again goes on from
there. The shards get their final names, which need their number, when the language is
done.
"""

import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from decoupled import files
from decoupled.corpora.corpus import Corpus
from decoupled.data.records import LanguageRecords, Shard, write_shard
from decoupled.data.vocabulary import Vocabulary
from decoupled.errors import UserError

_PROGRESS = "progress.json"
# Documents handed to the vocabulary at once.
_BATCH = 256


@dataclasses.dataclass(frozen=True)
class EncodingJob:
    """What all languages of one build share; it travels to the worker processes.

    tokens_per_shard: most tokens in a shard, so that one shard per language fits in
      memory at training time; a longer document becomes several records.
    fingerprints: of the corpus and the vocabulary; work in progress with others is
      begun anew.
    """

    corpus_dir: str
    vocabulary_path: str
    output_dir: str
    tokens_per_shard: int
    fingerprints: dict[str, str]


class EncodedLanguage(NamedTuple):
    """A finished language; empty_documents have no pieces and no record."""

    split: str
    language: str
    records: LanguageRecords
    empty_documents: int
    reused: bool


class _Record(NamedTuple):
    document: int
    part: int
    sentences: int
    ids: np.ndarray


@dataclasses.dataclass
class _Progress:
    """What is on disk: complete shards, and the (document, part) that comes next."""

    inputs: dict[str, Any]
    shards: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    sentences: int = 0
    document: int = 0
    part: int = 0
    empty_documents: int = 0
    complete: bool = False


def encode_languages(
    job: EncodingJob, languages: list[tuple[str, str]], workers: int
) -> Iterator[EncodedLanguage]:
    """Encodes (split, language) pairs in `workers` processes; yields each when done.

    Raises:
      UserError: of the first language that fails; what is complete stays complete.
    """
    if workers == 1:
        for split, language in languages:
            yield encode_language(job, split, language)
        return
    # TensorFlow does not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)
    try:
        futures = [pool.submit(encode_language, job, *pair) for pair in languages]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def encode_language(job: EncodingJob, split: str, language: str) -> EncodedLanguage:
    """Writes the shards of one language, or what a killed process left to write.

    Raises:
      UserError: the text cannot be read, or an id is outside the vocabulary.
    """
    name = f"{split}/{language}"
    folder = files.make_folder(os.path.join(job.output_dir, name))
    inputs = {**job.fingerprints, "tokens_per_shard": job.tokens_per_shard}
    progress = _read_progress(folder, inputs)
    reused = progress.complete
    if not reused:
        files.remove_temporaries(folder)
        vocabulary = Vocabulary(job.vocabulary_path)
        documents = Corpus(job.corpus_dir).documents(split, language)
        try:
            _write_shards(job, name, progress, documents, vocabulary)
        except UserError:
            # Text that turns out wrong at its end has made wrong shards before.
            _clear(folder)
            raise
    shards = _final_names(job.output_dir, name, progress)
    records = LanguageRecords(
        files=shards,
        records=sum(shard.records for shard in shards),
        sentences=progress.sentences,
        tokens=sum(shard.tokens for shard in shards),
    )
    return EncodedLanguage(split, language, records, progress.empty_documents, reused)


def forget_progress(output_dir: str, split: str, language: str) -> None:
    """Removes the note of `encode_language`, once the manifest says it all."""
    path = os.path.join(output_dir, split, language, _PROGRESS)
    if files.exists(path):
        tf.io.gfile.remove(path)


def _write_shards(job, name, progress, documents: Iterable[list[str]], vocabulary):
    """Writes what is missing; `progress` is on disk after each shard."""
    records = _records(documents, vocabulary, job.tokens_per_shard, progress)
    held: list[_Record] = []
    tokens = 0
    for record in records:
        if not len(record.ids):
            progress.empty_documents += 1
            continue
        if held and tokens + len(record.ids) > job.tokens_per_shard:
            _write_shard(job, name, progress, held, vocabulary.size)
            progress.document, progress.part = record.document, record.part
            _save(job, name, progress)
            held, tokens = [], 0
        held.append(record)
        tokens += len(record.ids)
    if held:
        _write_shard(job, name, progress, held, vocabulary.size)
    progress.complete = True
    _save(job, name, progress)


def _records(documents, vocabulary, limit: int, progress) -> Iterator[_Record]:
    """The records from (progress.document, progress.part) on; an empty document gives
    one without ids."""
    numbered = itertools.islice(enumerate(documents), progress.document, None)
    first_part = progress.part
    while batch := list(itertools.islice(numbered, _BATCH)):
        sentences = [sentence for _, document in batch for sentence in document]
        encoded = iter(vocabulary.encode_batch(sentences))
        for number, document in batch:
            parts = [next(encoded) for _ in document]
            ids = np.array(list(itertools.chain.from_iterable(parts)), np.int32)
            for part, start in enumerate(range(0, max(len(ids), 1), limit)):
                if part >= first_part:
                    count = len(document) if part == 0 else 0
                    yield _Record(number, part, count, ids[start : start + limit])
            first_part = 0


def _write_shard(job, name, progress, held: list[_Record], vocab_size: int) -> None:
    shard = write_shard(
        job.output_dir,
        f"{name}/{_part_name(len(progress.shards))}",
        [record.ids for record in held],
        vocab_size,
    )
    progress.shards.append(dataclasses.asdict(shard))
    progress.sentences += sum(record.sentences for record in held)


def _final_names(output_dir: str, name: str, progress) -> tuple[Shard, ...]:
    """Renames the shards of a complete language; again after a kill does no harm."""
    count = len(progress.shards)
    shards = []
    for index, fields in enumerate(progress.shards):
        final = f"{name}/{files.shard_name('tokens', index, count, '.tfrecord')}"
        written = os.path.join(output_dir, name, _part_name(index))
        if files.exists(written):
            tf.io.gfile.rename(written, os.path.join(output_dir, final), overwrite=True)
        shards.append(Shard(**{**fields, "name": final}))
    return tuple(shards)


def _part_name(index: int) -> str:
    return f"part-{index:05d}.tfrecord"


def _save(job, name, progress) -> None:
    path = os.path.join(job.output_dir, name, _PROGRESS)
    files.write_json(path, dataclasses.asdict(progress))


def _read_progress(folder: str, inputs: dict) -> _Progress:
    """What was done with the same inputs; of other inputs nothing is left."""
    path = os.path.join(folder, _PROGRESS)
    if files.exists(path):
        saved = files.read_json(path)
        if saved.get("inputs") == inputs:
            return _Progress(**saved)
    _clear(folder)
    return _Progress(inputs)


def _clear(folder: str) -> None:
    for entry in tf.io.gfile.listdir(folder):
        tf.io.gfile.remove(os.path.join(folder, entry))
