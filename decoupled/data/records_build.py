"""Builds a records folder from a corpus and a vocabulary."""

import os
from collections.abc import Sequence

from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.corpora.corpus import SPLITS, Corpus, without_held_out
from decoupled.corpora.runners import LOCAL, Runner, run_units
from decoupled.data import encoding, records
from decoupled.data.vocabulary import Vocabulary

# Below this many bytes of text, starting worker processes takes longer than the work.
_SMALL_TEXT_BYTES = 50_000_000


def build_records(
    corpus_dir: str,
    vocabulary_path: str,
    output_dir: str,
    tokens_per_shard: int,
    workers: int,
    runner: str = LOCAL.name,
    beam_options: Sequence[str] = (),
) -> records.RecordsManifest:
    """Encodes a corpus; resumes a build that was killed, or reuses a complete one.

    Args:
      corpus_dir, vocabulary_path, output_dir: what is read and written.
      tokens_per_shard: most tokens in a file.
      workers: processes; 0 chooses: one per core, or one for a small corpus.
      runner, beam_options: see `decoupled.corpora.runners.Runner`.

    Raises:
      UserError: corpus, vocabulary or output folder cannot be used, or the folder holds
        records of other inputs.
    """
    where = Runner(runner, workers, tuple(beam_options))
    vocabulary = Vocabulary(vocabulary_path)
    corpus = Corpus(corpus_dir)
    job = encoding.EncodingJob(
        corpus_dir,
        vocabulary_path,
        output_dir,
        tokens_per_shard,
        {"corpus": corpus.fingerprint, "vocabulary": vocabulary.fingerprint},
    )
    if files.exists(os.path.join(output_dir, records.MANIFEST)):
        manifest = _complete(job)
    else:
        done = _encode(job, corpus, where)
        manifest = records.RecordsManifest(
            folder=output_dir,
            vocabulary_fingerprint=vocabulary.fingerprint,
            vocab_size=vocabulary.size,
            corpus_fingerprint=corpus.fingerprint,
            splits=_by_split(done),
        )
        records.write_manifest(manifest)
    encoding.forget_progress(output_dir)
    _print_table(manifest)
    train, held_out = (
        [
            name
            for name, entry in manifest.splits.get(split, {}).items()
            if entry.records
        ]
        for split in SPLITS
    )
    if warning := without_held_out(train, held_out):
        console.say(warning)
    return manifest


def _complete(job: encoding.EncodingJob) -> records.RecordsManifest:
    """The existing manifest, which must have the same inputs."""
    manifest = records.read_manifest(job.output_dir)
    found = {
        "corpus": manifest.corpus_fingerprint,
        "vocabulary": manifest.vocabulary_fingerprint,
    }
    for name, fingerprint in job.fingerprints.items():
        if found[name] != fingerprint:
            raise UserError(
                f"{job.output_dir}: holds records of another {name} "
                f"({found[name][:12]}, not {fingerprint[:12]}); give another "
                "--output_dir or remove it"
            )
    console.say(f"{job.output_dir}: complete already, reused")
    return manifest


def _encode(job, corpus: Corpus, runner: Runner) -> list[encoding.EncodedLanguage]:
    files.make_folder(job.work_dir)
    texts = encoding.text_files(corpus)
    results = run_units(job, texts, runner, "encoding text", _SMALL_TEXT_BYTES)
    done = encoding.gather(job, texts, results)
    for item in done:
        _tell(item)
    return done


def _tell(item: encoding.EncodedLanguage) -> None:
    name = f"{item.split}/{item.language}"
    if item.empty_documents:
        console.say(f"{name}: {item.empty_documents} documents without pieces left out")
    if not item.records.records:
        console.say(
            f"{name}: no text; the language is in the manifest, without records"
        )


def _by_split(done: list[encoding.EncodedLanguage]) -> dict:
    splits: dict[str, dict[str, records.LanguageRecords]] = {}
    for item in done:
        splits.setdefault(item.split, {})[item.language] = item.records
    return splits


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
    columns = [
        "split",
        "language",
        "sentences",
        "documents",
        "tokens",
        "bytes",
        "files",
    ]
    console.table(f"Records in {manifest.folder}", columns, rows)
