"""Corpus text -> record shards, one text file at a time, resumable after a kill.

While records are being built, `DIR/work/UNIT/` contains the shards of a text file and
`progress.json`, which says how many are complete and which document comes next. A
process that starts again continues from there. A final name contains the number of
shards of the language, so that shards are renamed when all text is encoded.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora.corpus import SPLITS, Corpus, read_documents
from decoupled.data.records import LanguageRecords, Shard, read_shard, write_shard
from decoupled.data.vocabulary import Vocabulary

WORK = "work"
_PROGRESS = "progress.json"
# Documents handed to the vocabulary at once.
_BATCH = 256


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file of the corpus: the `number`-th of its split and language.

    entry: of the corpus manifest: its name, SHA-256 and size.
    """

    split: str
    language: str
    number: int
    entry: dict[str, Any]

    @property
    def name(self) -> str:
        """A folder's name."""
        return f"{self.split}-{self.language}-{self.number:05d}"

    @property
    def weight(self) -> int:
        """Its bytes."""
        return self.entry["bytes"]


@dataclasses.dataclass(frozen=True)
class EncodingJob:
    """The settings of a build, for all text files; it is sent to worker processes.

    tokens_per_shard: most tokens in a shard. In training, one shard of each language
      must fit in memory. A longer document becomes several records.
    fingerprints: of the corpus and the vocabulary. Unfinished work with other
      fingerprints is removed and started again.
    """

    corpus_dir: str
    vocabulary_path: str
    output_dir: str
    tokens_per_shard: int
    fingerprints: dict[str, str]

    @property
    def work_dir(self) -> str:
        """The folder of unfinished work."""
        return os.path.join(self.output_dir, WORK)

    def inputs(self, unit: TextFile) -> dict[str, Any]:
        """All that the records depend on."""
        shared = {**self.fingerprints, "tokens_per_shard": self.tokens_per_shard}
        return {**shared, "text": unit.entry["name"], "sha256": unit.entry["sha256"]}

    def run(self, unit: TextFile) -> dict[str, Any]:
        """Writes the shards of a text file; continues the work of a killed process.

        Raises:
          UserError: the text cannot be read, or an id is outside the vocabulary.
        """
        folder = files.make_folder(os.path.join(self.work_dir, unit.name))
        progress = _read_progress(folder, self.inputs(unit))
        files.remove_temporaries(folder)
        vocabulary = _vocabulary(
            self.vocabulary_path, self.fingerprints.get("vocabulary")
        )
        documents = read_documents(self.corpus_dir, [unit.entry])
        try:
            _write_shards(self, folder, progress, documents, vocabulary)
        except UserError:
            # If the text is wrong at its end, the shards of its beginning are useless.
            _clear(folder)
            raise
        return {
            "shards": progress.shards,
            "sentences": progress.sentences,
            "empty_documents": progress.empty_documents,
        }

    def is_intact(self, result: dict[str, Any]) -> bool:
        """Whether a saved result has the form of ours, as its shards will be renamed.

        It is not checked whether the shards exist: those that do not have already been
        renamed.
        """
        if not isinstance(result, dict):
            return False
        counts = (result.get(name) for name in ("sentences", "empty_documents"))
        return _are_parts(result.get("shards")) and all(type(n) is int for n in counts)


class EncodedLanguage(NamedTuple):
    """A finished language; empty_documents have no pieces and no record."""

    split: str
    language: str
    records: LanguageRecords
    empty_documents: int


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


def gather(
    job: EncodingJob, units: list[TextFile], results: list[dict[str, Any]]
) -> list[EncodedLanguage]:
    """Gives the shards of all languages their final names.

    It can be repeated after a kill.

    Args:
      job: of the build. units: all text files, in the order of the text.
      results: of `job.run` for each of them.
    """
    languages = []
    pairs = zip(units, results, strict=True)
    for (split, language), own in itertools.groupby(
        pairs, lambda pair: (pair[0].split, pair[0].language)
    ):
        own = list(own)
        shards = _rename(job, f"{split}/{language}", own)
        records = LanguageRecords(
            files=shards,
            records=sum(shard.records for shard in shards),
            sentences=sum(result["sentences"] for _, result in own),
            tokens=sum(shard.tokens for shard in shards),
        )
        empty = sum(result["empty_documents"] for _, result in own)
        languages.append(EncodedLanguage(split, language, records, empty))
    return languages


def forget_progress(output_dir: str) -> None:
    """Removes the progress of `EncodingJob.run` once there is a manifest."""
    path = os.path.join(output_dir, WORK)
    if gfile.isdir(path):
        gfile.rmtree(path)


@functools.lru_cache(maxsize=1)
def _vocabulary(path: str, fingerprint: str | None) -> Vocabulary:
    """The vocabulary; a process reads it once for all of its text files."""
    del fingerprint  # a part of the cache's key, in case the file is replaced
    return Vocabulary(path)


def _rename(job, name: str, own) -> tuple[Shard, ...]:
    parts = [(unit, fields) for unit, result in own for fields in result["shards"]]
    gfile.makedirs(os.path.join(job.output_dir, name))
    shards = []
    for index, (unit, fields) in enumerate(parts):
        final = f"{name}/{files.shard_name('tokens', index, len(parts), '.tfrecord')}"
        written = os.path.join(job.work_dir, unit.name, fields["name"])
        if files.exists(written):
            target = os.path.join(job.output_dir, final)
            gfile.rename(written, target, overwrite=True)
        shards.append(Shard(**{**fields, "name": final}))
    _remove_others(os.path.join(job.output_dir, name), shards)
    return tuple(shards)


def _remove_others(folder: str, shards: list[Shard]) -> None:
    """Removes files of a killed build of other inputs."""
    own = {os.path.basename(shard.name) for shard in shards}
    files.check_is_no_link(folder)
    for name in gfile.listdir(folder):
        if name not in own:
            gfile.remove(os.path.join(folder, name))


def _write_shards(job, folder, progress, documents: Iterable[list[str]], vocabulary):
    """Writes the missing shards; saves `progress` after each of them."""
    records = _records(documents, vocabulary, job.tokens_per_shard, progress)
    held: list[_Record] = []
    tokens = 0
    for record in records:
        if not len(record.ids):
            progress.empty_documents += 1
            continue
        if held and tokens + len(record.ids) > job.tokens_per_shard:
            _write_shard(folder, progress, held, vocabulary.size)
            progress.document, progress.part = record.document, record.part
            _save(folder, progress)
            held, tokens = [], 0
        held.append(record)
        tokens += len(record.ids)
    if held:
        _write_shard(folder, progress, held, vocabulary.size)


def _records(documents, vocabulary, limit: int, progress) -> Iterator[_Record]:
    """The records from (progress.document, progress.part) on. An empty document gives a
    record without ids."""
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


def _write_shard(folder, progress, held: list[_Record], vocab_size: int) -> None:
    shard = write_shard(
        folder,
        _part_name(len(progress.shards)),
        [record.ids for record in held],
        vocab_size,
    )
    progress.shards.append(dataclasses.asdict(shard))
    progress.sentences += sum(record.sentences for record in held)


def _save(folder, progress) -> None:
    files.write_json(os.path.join(folder, _PROGRESS), dataclasses.asdict(progress))


def _read_progress(folder: str, inputs: dict) -> _Progress:
    """The progress with the same inputs; removes unfinished work of other inputs."""
    path = os.path.join(folder, _PROGRESS)
    if files.exists(path):
        saved = files.read_json(path)
        if _is_progress(saved) and saved["inputs"] == inputs:
            return _Progress(**saved)
    _clear(folder)
    return _Progress(inputs)


def _is_progress(saved: Any) -> bool:
    """Whether the value has the form that `_save` writes; the file may be edited."""
    counted = {field.name for field in dataclasses.fields(_Progress)}
    if not isinstance(saved, dict) or saved.keys() != counted:
        return False
    counts = (saved[name] for name in counted - {"inputs", "shards"})
    return _are_parts(saved["shards"]) and all(type(count) is int for count in counts)


def _part_name(index: int) -> str:
    return f"part-{index:05d}.tfrecord"


def _are_parts(shards: Any) -> bool:
    """Whether the value is a list of shards as we write it; it may be edited."""
    try:
        names = [read_shard(shard).name for shard in shards]
    except (KeyError, TypeError):
        return False
    return names == [_part_name(index) for index in range(len(names))]


def _clear(folder: str) -> None:
    files.check_is_no_link(folder)
    for entry in gfile.listdir(folder):
        gfile.remove(os.path.join(folder, entry))
