"""Builds a records folder from a corpus and a vocabulary; resumable after a kill.

The files of a corpus have one source each, such as the pages of an encyclopedia, and
training reads the shards one after the other. Therefore the documents of several shards
are mixed, so that each shard is a sample of its language.

While records are being built, `DIR/work/UNIT/` contains the shards of a text file, or
mixed ones. A final name contains the number of shards of the language, so that shards
are renamed when all text is encoded and mixed.
"""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.core.locks import LOCK
from decoupled.corpora.corpus import (
    SPLITS,
    Corpus,
    Document,
    hash_bits,
    no_held_out_warning,
    read_documents,
)
from decoupled.corpora.runners import DONE, FAILED, LOCAL, Runner, run_units
from decoupled.data import records
from decoupled.data.records import LanguageRecords, Shard, read_shard, write_shard
from decoupled.data.vocabulary import Vocabulary, open_vocabulary

WORK = "work"
# Below this many bytes of text, starting worker processes takes longer than the work.
_SMALL_TEXT_BYTES = 50_000_000
# Number of documents that the vocabulary encodes at once.
_BATCH = 256
# Shards whose documents are mixed; a process holds all of them in memory, 8 bytes a
# token while it reads one, and then 4.
_MIXED_SHARDS = 8
_MIXED_PREFIX = "mixed-"
# The share of unknown pieces from which a language is named.
_MANY_UNKNOWN = 0.05
# The files of a build that is not complete.
_BUILD_FILE = re.compile(
    rf"{WORK}/({_MIXED_PREFIX})?(train|eval)-[^/]+-\d{{5,}}"
    rf"({re.escape(DONE)}|{re.escape(FAILED)}|/part-\d{{5,}}\.tfrecord)"
    r"|(train|eval)/[^/]+/tokens-\d{5,}-of-\d{5,}\.tfrecord"
)


def build_records(
    corpus_dir: str,
    vocabulary_path: str,
    output_dir: str,
    tokens_per_shard: int,
    runner: Runner = LOCAL,
) -> records.RecordsManifest:
    """Encodes a corpus; resumes a build that was killed, or reuses a complete one."""
    notes: list[str] = []
    vocabulary = open_vocabulary(vocabulary_path, notes)
    for note in notes:
        console.say(f"{vocabulary_path}: {note}")
    corpus = Corpus(corpus_dir)
    job = EncodingJob(
        corpus_dir,
        vocabulary_path,
        output_dir,
        tokens_per_shard,
        {"corpus": corpus.fingerprint, "vocabulary": vocabulary.fingerprint},
    )
    if files.exists(os.path.join(output_dir, records.MANIFEST)):
        manifest = _complete_manifest(job)
    else:
        if path := _foreign_file(output_dir, output_dir):
            raise UserError(
                f"{output_dir}: neither empty nor records (holds {path}); choose "
                "another --output_dir"
            )
        files.make_folder(job.work_dir)
        texts = text_files(corpus)
        results = run_units(job, texts, runner, "encoding text", _SMALL_TEXT_BYTES)
        groups = shard_groups(texts, results)
        _forget_other_groups(job.work_dir, groups)
        mixing = MixingJob(job.work_dir, vocabulary.size, tokens_per_shard)
        mixes = run_units(mixing, groups, runner, "mixing documents", _SMALL_TEXT_BYTES)
        manifest = records.RecordsManifest(
            folder=output_dir,
            vocabulary_fingerprint=vocabulary.fingerprint,
            vocabulary_kind=vocabulary.kind,
            vocab_size=vocabulary.size,
            corpus_fingerprint=corpus.fingerprint,
            splits=gather(job, texts, results, groups, mixes),
        )
        records.write_manifest(manifest)
    if gfile.isdir(job.work_dir) and not _foreign_file(output_dir, job.work_dir):
        gfile.rmtree(job.work_dir)
    _print_table(manifest)
    train, held_out = (
        [
            name
            for name, entry in manifest.splits.get(split, {}).items()
            if entry.records
        ]
        for split in SPLITS
    )
    if warning := no_held_out_warning(corpus, train, held_out):
        console.say(warning)
    return manifest


def _foreign_file(output_dir: str, folder: str) -> str | None:
    """The name of a file below `folder` that no build of records has left there."""
    for parent, _, names in gfile.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(parent, name), output_dir)
            is_temporary = any(map(files.is_temporary, path.split("/")))
            if not (is_temporary or path == LOCK or _BUILD_FILE.fullmatch(path)):
                return path
    return None


def _complete_manifest(job: "EncodingJob") -> records.RecordsManifest:
    manifest = records.read_manifest(job.output_dir)
    fingerprints = {
        "corpus": manifest.corpus_fingerprint,
        "vocabulary": manifest.vocabulary_fingerprint,
    }
    for name, fingerprint in job.fingerprints.items():
        if fingerprints[name] != fingerprint:
            raise UserError(
                f"{job.output_dir}: holds records of another {name} "
                f"({fingerprints[name][:12]}, not {fingerprint[:12]}); give another "
                "--output_dir or remove it"
            )
    max_tokens = max(
        (
            shard.tokens
            for languages in manifest.splits.values()
            for entry in languages.values()
            for shard in entry.files
        ),
        default=0,
    )
    if max_tokens > job.tokens_per_shard:
        raise UserError(
            f"{job.output_dir}: holds shards of up to {max_tokens} tokens, more than "
            f"--tokens_per_shard={job.tokens_per_shard}; give another --output_dir or "
            "remove it"
        )
    console.say(f"{job.output_dir}: complete already, reused")
    return manifest


def _print_table(manifest: records.RecordsManifest) -> None:
    rows = [
        [
            split,
            language,
            entry.sentences,
            entry.records,
            entry.tokens,
            entry.bytes,
            len(entry.files),
        ]
        for split, languages in manifest.splits.items()
        for language, entry in languages.items()
    ]
    columns = "split language sentences documents tokens bytes files".split()
    console.table(f"Records in {manifest.folder}", columns, rows)


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file of the corpus, the `number`-th of its split and language: its entry."""

    split: str
    language: str
    number: int
    entry: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.split}-{self.language}-{self.number:05d}"

    @property
    def weight(self) -> int:
        return self.entry["bytes"]


def text_files(corpus: Corpus) -> list[TextFile]:
    """All files of a corpus, in the order of the text."""
    return [
        TextFile(split, language, number, entry)
        for split in SPLITS
        for language in corpus.languages(split)
        for number, entry in enumerate(
            corpus.manifest["splits"][split][language]["files"]
        )
    ]


@dataclasses.dataclass(frozen=True)
class EncodingJob:
    """The settings of a build, for all text files; it is sent to worker processes.

    tokens_per_shard: most tokens in a shard. In training, one shard of each language
      must fit in memory. A longer document becomes several records.
    fingerprints: of the corpus and the vocabulary.
    """

    corpus_dir: str
    vocabulary_path: str
    output_dir: str
    tokens_per_shard: int
    fingerprints: dict[str, str]

    @property
    def work_dir(self) -> str:
        return os.path.join(self.output_dir, WORK)

    def inputs(self, unit: TextFile) -> dict[str, Any]:
        settings = {**self.fingerprints, "tokens_per_shard": self.tokens_per_shard}
        return {**settings, "text": unit.entry["name"], "sha256": unit.entry["sha256"]}

    def run(self, unit: TextFile) -> dict[str, Any]:
        folder = files.make_folder(os.path.join(self.work_dir, unit.name))
        _clear(folder)
        vocabulary = _vocabulary(
            self.vocabulary_path, self.fingerprints.get("vocabulary")
        )
        documents = read_documents(self.corpus_dir, [unit.entry])
        result = {"shards": [], "sentences": 0, "empty_documents": 0, "unknown": 0}
        try:
            encoded_documents = _encode(documents, vocabulary, result)
            for ids in _shards(encoded_documents, self.tokens_per_shard):
                name = _part_name(len(result["shards"]))
                shard = write_shard(folder, name, ids)
                result["shards"].append(dataclasses.asdict(shard))
        except UserError:
            # If the text is wrong at its end, the shards of its beginning are useless.
            _clear(folder)
            raise
        return result

    def is_intact(self, result: dict[str, Any]) -> bool:
        """Whether a saved result has the form of `run`'s. Its shards may be renamed;
        `_rename` finds out whether they exist."""
        return _has_valid_shards(result) and all(
            type(result.get(name)) is int
            for name in ("sentences", "empty_documents", "unknown")
        )


@dataclasses.dataclass(frozen=True)
class ShardGroup:
    """Shards of a language that are mixed: its `number`-th group. Their names are below
    the work folder."""

    split: str
    language: str
    number: int
    shards: tuple[Shard, ...]

    @property
    def name(self) -> str:
        # Names of text files begin with their split.
        return f"{_MIXED_PREFIX}{self.split}-{self.language}-{self.number:05d}"

    @property
    def weight(self) -> int:
        return sum(shard.bytes for shard in self.shards)


def shard_groups(
    units: list[TextFile], results: list[dict[str, Any]]
) -> list[ShardGroup]:
    """The shards of each language in groups of about equal size, in random order.

    A language with one shard has no group. `results` are those of `EncodingJob.run`.
    """
    groups = []
    for (split, language), parts in _by_language(units, results):
        # The order by a hash of the content is random.
        shards = sorted(_shards_of(parts), key=lambda shard: shard.sha256)
        count = -(-len(shards) // _MIXED_SHARDS) if len(shards) > 1 else 0
        groups += [
            ShardGroup(split, language, number, tuple(shards[number::count]))
            for number in range(count)
        ]
    return groups


def _forget_other_groups(work_dir: str, groups: list[ShardGroup]) -> None:
    """Removes what a killed build with other shards has mixed."""
    group_names = {group.name for group in groups}
    for entry in gfile.listdir(work_dir):
        name = entry.rstrip("/")
        path = os.path.join(work_dir, name)
        if not name.startswith(_MIXED_PREFIX) or name.partition(".")[0] in group_names:
            continue
        if gfile.isdir(path):
            gfile.rmtree(path)
        else:
            gfile.remove(path)


@dataclasses.dataclass(frozen=True)
class MixingJob:
    """Writes the documents of a group of shards in random order, into new shards."""

    work_dir: str
    vocab_size: int
    tokens_per_shard: int

    def inputs(self, unit: ShardGroup) -> dict[str, Any]:
        shards = [shard.sha256 for shard in unit.shards]
        return {"shards": shards, "tokens_per_shard": self.tokens_per_shard}

    def run(self, unit: ShardGroup) -> dict[str, Any]:
        # Imported here: where nothing is mixed, TensorFlow loads when it is written.
        from decoupled.data import reading

        folder = files.make_folder(os.path.join(self.work_dir, unit.name))
        _clear(folder)
        advice = f"remove {self.work_dir} and run the same command again"
        with reading.named_errors(self.work_dir, advice):
            documents = [
                ids
                for shard in unit.shards
                for ids in reading.read_ids(self.work_dir, shard, self.vocab_size)
            ]
        order = sorted(
            range(len(documents)), key=lambda index: hash_bits(f"{unit.name} {index}")
        )
        batches = _shards((documents[index] for index in order), self.tokens_per_shard)
        shards = [
            write_shard(folder, _part_name(number), ids)
            for number, ids in enumerate(batches)
        ]
        return {"shards": [dataclasses.asdict(shard) for shard in shards]}

    def is_intact(self, result: dict[str, Any]) -> bool:
        return _has_valid_shards(result)


def _has_valid_shards(result: dict[str, Any]) -> bool:
    try:
        names = [read_shard(shard).name for shard in result["shards"]]
    except (KeyError, TypeError):
        return False
    return names == [_part_name(index) for index in range(len(names))]


@functools.lru_cache(maxsize=1)
def _vocabulary(path: str, fingerprint: str | None) -> Vocabulary:
    """The vocabulary; a process reads it once for all of its text files."""
    del fingerprint  # a part of the cache's key, in case the file is replaced
    return open_vocabulary(path)


def _encode(
    documents: Iterable[Document], vocabulary: Vocabulary, counts: dict[str, Any]
) -> Iterator[np.ndarray]:
    """Yields the ids of each document; counts sentences, and documents without ids."""
    documents = iter(documents)
    while batch := list(itertools.islice(documents, _BATCH)):
        sentences = [sentence for document in batch for sentence in document]
        ids_by_sentence = iter(vocabulary.encode_batch(sentences))
        for document in batch:
            parts = [next(ids_by_sentence) for _ in document]
            ids = np.array(list(itertools.chain.from_iterable(parts)), np.int32)
            if len(ids):
                counts["sentences"] += len(document)
                counts["unknown"] += int(np.count_nonzero(ids == vocabulary.unk_id))
                yield ids
            else:
                counts["empty_documents"] += 1


def _shards(documents: Iterable[np.ndarray], limit: int) -> Iterator[list[np.ndarray]]:
    shard, tokens = [], 0
    for ids in documents:
        for start in range(0, len(ids), limit):
            record = ids[start : start + limit]
            if shard and tokens + len(record) > limit:
                yield shard
                shard, tokens = [], 0
            shard.append(record)
            tokens += len(record)
    if shard:
        yield shard


def gather(
    job: EncodingJob,
    units: list[TextFile],
    results: list[dict[str, Any]],
    groups: list[ShardGroup],
    mixes: list[dict[str, Any]],
) -> dict[str, dict[str, LanguageRecords]]:
    """Gives the shards of all languages their final names; prints what has no text.

    It can be repeated after a kill. `results` are those of `job.run` for the units,
    which are in the order of the text, `mixes` those of `MixingJob.run` for the groups.
    The result is split -> language -> its records.
    """
    splits: dict[str, dict[str, LanguageRecords]] = {}
    groups_of = dict(_by_language(groups, mixes))
    for (split, language), parts in _by_language(units, results):
        name = f"{split}/{language}"
        shards = _rename(job, name, _shards_of(groups_of.get((split, language), parts)))
        if empty_count := sum(result["empty_documents"] for _, result in parts):
            console.say(f"{name}: {empty_count} documents without pieces left out")
        if not shards:
            console.say(
                f"{name}: no text; the language is in the manifest, without records"
            )
        tokens = sum(shard.tokens for shard in shards)
        unknown_count = sum(result["unknown"] for _, result in parts)
        if unknown_count > _MANY_UNKNOWN * tokens:
            console.say(
                f"{name}: {unknown_count / tokens:.0%} of the tokens are the unknown "
                "piece; the vocabulary lacks characters of this text"
            )
        splits.setdefault(split, {})[language] = LanguageRecords(
            files=shards,
            records=sum(shard.records for shard in shards),
            sentences=sum(result["sentences"] for _, result in parts),
            tokens=tokens,
        )
    return splits


def _by_language(units, results) -> Iterator[tuple[tuple[str, str], list]]:
    """(split, language) -> its units, each with its result."""
    pairs = zip(units, results, strict=True)
    groups = itertools.groupby(pairs, lambda x: (x[0].split, x[0].language))
    for key, group in groups:
        yield key, list(group)


def _shards_of(parts) -> list[Shard]:
    """The shards of units, with names below the work folder."""
    return [
        Shard(**{**fields, "name": f"{unit.name}/{fields['name']}"})
        for unit, result in parts
        for fields in result["shards"]
    ]


def _rename(job, name: str, shards: list[Shard]) -> tuple[Shard, ...]:
    folder = os.path.join(job.output_dir, name)
    gfile.makedirs(folder)
    final_shards = []
    for index, shard in enumerate(shards):
        file = f"{name}/{files.shard_name('tokens', index, len(shards), '.tfrecord')}"
        path = os.path.join(job.work_dir, shard.name)
        target = os.path.join(job.output_dir, file)
        if files.exists(path):
            gfile.rename(path, target, overwrite=True)
        elif not files.exists(target) or files.file_fingerprint(target) != shard.sha256:
            # The shard was not renamed before a kill, but was removed since.
            raise UserError(
                f"{path}: is gone, though a note in {job.work_dir} names it; remove "
                "that folder and run the same command again"
            )
        final_shards.append(dataclasses.replace(shard, name=file))
    # A killed build of other inputs may have left files.
    _clear(folder, {os.path.basename(shard.name) for shard in final_shards})
    return tuple(final_shards)


def _part_name(index: int) -> str:
    return f"part-{index:05d}.tfrecord"


def _clear(folder: str, kept_names: Iterable[str] = ()) -> None:
    files.check_is_no_link(folder)
    for entry in gfile.listdir(folder):
        if entry not in kept_names:
            gfile.remove(os.path.join(folder, entry))
