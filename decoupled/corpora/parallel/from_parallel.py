"""Parallel text -> a corpus folder: text, held-out pairs, and a task of Bibles.

Whole groups (chapters, pages) are held out together in all languages, so that neither
the held-out text nor the pairs nor the task's dev and test sets have a translation in
the training text, whose sentences with their ids are in parallel/train/sentences. A
build that was killed goes on with the languages that are missing.
"""

import collections
import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer
from decoupled.corpora.corpus import SPLITS, Corpus
from decoupled.corpora.locales import ENGLISH
from decoupled.corpora.parallel import held_out
from decoupled.corpora.parallel.kinds import KINDS
from decoupled.corpora.parallel.parallel_text import TRAIN, ParallelText
from decoupled.corpora.parallel.parallel_units import RULES, ParallelJob, ParallelUnit
from decoupled.corpora.runners import Runner, run_units

# Below this many bytes, other processes would start for longer than they work.
_SMALL_BYTES = 4 << 20


class ParallelBuild:
    """Builds a corpus from the parallel text of --source."""

    def __init__(
        self,
        source: str,
        settings: ParallelTextConfig,
        languages: Sequence[str],
        runner: Runner,
    ):
        """Finds the texts and reads them once, for their SHA-256.

        Args:
          source: "KIND:PLACE", KIND one of `KINDS`.
          languages: those to keep beside English; empty keeps all.
          runner: who reads the texts.

        Raises:
          UserError: the place holds no such text, or lacks one of the languages.
        """
        self._kind, _, place = source.partition(":")
        self._settings, self._runner = settings, runner
        found = KINDS[self._kind].find(place, settings)
        there = {text.language for text in found}
        if unknown := sorted(set(languages) - there):
            raise UserError(
                f"--languages: {source} has no {', '.join(unknown)}; it has "
                f"{', '.join(sorted(there))}"
            )
        wanted = {ENGLISH, *languages} if languages else there
        self._texts = sorted(
            (text for text in found if text.language in wanted),
            key=lambda text: text.language,
        )

    def inputs(self) -> dict[str, Any]:
        """All that the text depends on, for the manifest."""
        return {
            "source": self._kind,
            "rules": [RULES, KINDS[self._kind].rules],
            "settings": dataclasses.asdict(self._settings),
            "languages": {
                text.language: {"sha256": text.sha256, "part": text.part}
                for text in self._texts
            },
        }

    def write(self, folder: str, inputs: Mapping[str, Any]) -> Corpus:
        """Builds the corpus in `folder`.

        Args:
          inputs: of this build.

        Raises:
          UserError: a text is bad (all others are done, and kept for the next try) or
            empty, languages share no ids, or the folder cannot be written.
        """
        job = ParallelJob(folder, self._kind, self._settings)
        existed = gfile.isdir(folder)
        corpus_writer.mark_unfinished(folder)
        files.remove_temporaries(folder)
        gfile.makedirs(job.work_dir)
        corpus_writer.note_inputs(job.work_dir, inputs)
        try:
            units = [ParallelUnit(text) for text in self._texts]
            results = run_units(
                job, units, self._runner, "reading parallel text", _SMALL_BYTES
            )
            self._check_text(results)
            self._write_rest(folder, inputs, job, results)
        except UserError:
            corpus_writer.forget_without_text(folder, existed)
            raise
        corpus_writer.clean_up(folder)
        return Corpus(folder)

    def _check_text(self, results: list[dict[str, Any]]) -> None:
        for text, result in zip(self._texts, results, strict=True):
            if not result["splits"]:
                raise UserError(f"{text.path}: no text of {text.language}")
            if TRAIN not in result["splits"]:
                raise UserError(
                    f"{text.path}: all text of {text.language} is held out; the ids "
                    "may have too few groups, see ParallelTextConfig.group"
                )

    def _write_rest(self, folder, inputs, job, results) -> None:
        """Writes pairs, the task and, last, the manifest."""
        languages = [text.language for text in self._texts]
        by_language = dict(zip(languages, results, strict=True))
        gathered = held_out.gather(
            {language: job.sentences(by_language[language]) for language in languages}
        )
        named, pairs = held_out.pair_files(gathered, self._settings)
        training = {
            f"{TRAIN}/sentences/{language}.tsv": job.training_path(result)
            for language, result in by_language.items()
        }
        _write_folder(os.path.join(folder, "parallel"), named, training)
        named, tasks = {}, {}
        if all(result["bible"] for result in results):
            if task := held_out.task_files(gathered, self._settings):
                named, tasks[held_out.BOOKS] = task
        _write_folder(os.path.join(folder, "tasks"), named)
        if not any(pairs.values()):
            console.say(
                f"no pairs: these need held-out text of {ENGLISH} and of another "
                "language; parallel/ has the held-out sentences with their ids"
            )
        dropped = collections.Counter()
        for result in results:
            dropped.update(result["dropped"])
        if gathered.repeated:
            dropped[held_out.REPEATED] = len(gathered.repeated)
        corpus_writer.write_manifest(
            folder,
            source=f"parallel text ({self._kind})",
            inputs=inputs,
            splits={
                split: {
                    language: result["splits"][split]
                    for language, result in by_language.items()
                    if split in result["splits"]
                }
                for split in SPLITS
            },
            dropped=dict(sorted(dropped.items())),
            tasks=tasks,
            languages={
                text.language: _describe(text, by_language[text.language])
                for text in self._texts
            },
            pairs=pairs,
        )


def _write_folder(
    path: str, named: Mapping[str, str], copied: Mapping[str, str] | None = None
) -> None:
    """Writes a folder that appears with all of its files.

    Args:
      named: name -> content. copied: name -> path of a file with the content.
    """
    if gfile.isdir(path):
        gfile.rmtree(path)
    if not named and not copied:
        return
    with files.atomic_path(path) as temporary:
        for name in (*named, *(copied or ())):
            gfile.makedirs(os.path.join(temporary, os.path.dirname(name)))
        for name, content in named.items():
            files.write_text(os.path.join(temporary, name), content)
        for name, source in (copied or {}).items():
            # Renamed instead, it would be missing where a killed build goes on.
            with (
                gfile.GFile(source, "rb") as read,
                files.atomic_write(os.path.join(temporary, name), "wb") as written,
            ):
                shutil.copyfileobj(read, written)


def _describe(text: ParallelText, result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": text.title,
        "licence": text.licence,
        "inputs": [
            {
                "path": os.path.basename(text.path),
                "sha256": text.sha256,
                "size": text.size,
            }
        ],
        "dropped": result["dropped"],
    }
