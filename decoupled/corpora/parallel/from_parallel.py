"""Parallel text -> a corpus folder: text, held-out pairs, and a task on Bible verses.

Whole groups (chapters, pages) are held out together in all languages. So neither the
held-out text nor the pairs nor the task's dev and test sets have a translation in the
training text. A build that was killed resumes with the missing languages.

    parallel/train/sentences/LANGUAGE.tsv           id<TAB>text
    parallel/{dev,test}/sentences/LANGUAGE.tsv      id<TAB>text
    parallel/{dev,test}/tatoeba/L-en.{L,en}         line i of one translates line i
    tasks/books/{labels.txt,train-en.tsv,dev-L.tsv,test-L.tsv}      text<TAB>label

A held-out sentence is left out of pairs and task in all languages if in one of them its
text also occurs in the training text, or earlier in its split. Otherwise it would have
been seen in training, or would have two translations.
"""

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer
from decoupled.corpora.corpus import SPLITS
from decoupled.corpora.corpus_writer import lines
from decoupled.corpora.locales import ENGLISH
from decoupled.corpora.parallel import parallel_text
from decoupled.corpora.parallel.parallel_text import (
    BOOK_GROUPS,
    HELD_OUT,
    TRAIN,
    book_group,
    choose,
)
from decoupled.corpora.parallel.parallel_units import (
    RULES,
    KeptSentence,
    ParallelJob,
    ParallelUnit,
)
from decoupled.corpora.runners import Runner, run_units

# Below this many bytes, starting other processes takes longer than the work.
_SMALL_BYTES = 4 << 20
BOOKS = "books"
REPEATED = "held-out sentence with a repeated text, left out of pairs and tasks"
# (split, language) -> id -> text, in the order of the text.
_Texts = dict[tuple[str, str], dict[str, str]]


class ParallelBuild:
    """Builds a corpus from the parallel text of --source."""

    def __init__(
        self,
        source: str,
        settings: ParallelTextConfig,
        languages: Sequence[str],
        runner: Runner,
    ):
        """Finds the files and reads them once, for their SHA-256.

        `languages` are kept in addition to English; empty keeps all.

        Raises:
          UserError: the place holds no such text, or lacks one of the languages.
        """
        self._settings, self._runner = settings, runner
        by_language = parallel_text.find(source.removeprefix(parallel_text.PREFIX))
        if unknown := sorted(set(languages) - set(by_language)):
            raise UserError(
                f"--languages: {source} has no {', '.join(unknown)}; it has "
                f"{', '.join(by_language)}"
            )
        self._files = {
            language: file
            for language, file in by_language.items()
            if not languages or language in {ENGLISH, *languages}
        }

    def inputs(self) -> dict[str, Any]:
        """All that the text depends on, for the manifest."""
        return {
            "source": "aligned",
            "rules": RULES,
            "settings": dataclasses.asdict(self._settings),
            "languages": {
                # Manifests of earlier versions have "part".
                language: {"sha256": file.sha256, "part": ""}
                for language, file in self._files.items()
            },
        }

    def write(self, folder: str, inputs: Mapping[str, Any]) -> None:
        """Writes the corpus; `corpus_writer.building` surrounds it.

        Raises:
          UserError: a text is bad (all others are finished and kept for the next build)
            or empty, languages share no ids, or the folder cannot be written.
        """
        job = ParallelJob(folder, self._settings)
        units = [ParallelUnit(*entry) for entry in self._files.items()]
        results = run_units(
            job, units, self._runner, "reading parallel text", _SMALL_BYTES
        )
        for unit, result in zip(units, results, strict=True):
            _check_text(unit, result)
        by_language = dict(zip(self._files, results, strict=True))
        held_out = {name: job.held_out(result) for name, result in by_language.items()}
        texts, repeated = gather(held_out)
        contents, pairs = pair_files(texts, self._settings)
        copies = {
            f"parallel/{TRAIN}/sentences/{language}.tsv": job.training_path(result)
            for language, result in by_language.items()
        }
        tasks = {}
        if all(result["bible"] for result in results) and ENGLISH in by_language:
            texts[TRAIN, ENGLISH] = _read_training(job, by_language[ENGLISH])
            if task := task_files(texts, self._settings):
                task_contents, tasks[BOOKS] = task
                contents |= task_contents
        corpus_writer.write_further_files(folder, contents, copies)
        if not any(pairs.values()):
            console.say(
                f"no pairs: these need held-out text of {ENGLISH} and of another "
                "language; parallel/ has the held-out sentences with their ids"
            )
        dropped = collections.Counter()
        for result in results:
            dropped.update(result["dropped"])
        if repeated:
            dropped[REPEATED] = len(repeated)
        corpus_writer.write_manifest(
            folder,
            source="parallel text (aligned)",
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
                language: {
                    "inputs": [{**file._asdict(), "path": os.path.basename(file.path)}],
                    "dropped": by_language[language]["dropped"],
                }
                for language, file in self._files.items()
            },
            pairs=pairs,
        )


def _check_text(unit: ParallelUnit, result: Mapping[str, Any]) -> None:
    if not result["splits"]:
        raise UserError(f"{unit.file.path}: no text of {unit.language}")
    if TRAIN not in result["splits"]:
        raise UserError(
            f"{unit.file.path}: all text of {unit.language} is held out; the ids may "
            "have too few groups, see ParallelTextConfig.group"
        )


def _read_training(job: ParallelJob, result: Mapping[str, Any]) -> dict[str, str]:
    lines = parallel_text.read(job.training_path(result))
    return {line.id: line.text for line in lines}


def gather(held_out: Mapping[str, Sequence[KeptSentence]]) -> tuple[_Texts, set[str]]:
    """The held-out sentences of each language, without ids that any language repeats.

    Returns:
      the sentences, and the ids that are left out.
    """
    repeated = {row.id for rows in held_out.values() for row in rows if row.repeated}
    texts: _Texts = {}
    for language, rows in held_out.items():
        for row in rows:
            if row.id not in repeated:
                texts.setdefault((row.split, language), {})[row.id] = row.text
    return texts, repeated


def pair_files(
    texts: _Texts, settings: ParallelTextConfig
) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Held-out sentences and their pairs with English.

    Returns:
      name below the corpus folder -> content; split -> language -> number of pairs.

    Raises:
      UserError: a language shares no held-out id with English, though both have some.
    """
    contents: dict[str, str] = {}
    pairs: dict[str, dict[str, int]] = {split: {} for split in HELD_OUT}
    for (split, language), by_id in sorted(texts.items()):
        contents[f"parallel/{split}/sentences/{language}.tsv"] = lines(
            f"{identifier}\t{text}" for identifier, text in by_id.items()
        )
        english = texts.get((split, ENGLISH))
        if language == ENGLISH or not english:
            continue
        shared = [identifier for identifier in english if identifier in by_id]
        if not shared:
            raise UserError(
                f"{language}: shares no id with {ENGLISH} in {split} (it has "
                f"{next(iter(by_id))!r}, {ENGLISH} has {next(iter(english))!r}); ids "
                "have to be the same in all languages"
            )
        chosen = choose(shared, settings.max_pairs, settings.seed)
        for side, side_texts in ((language, by_id), (ENGLISH, english)):
            name = f"parallel/{split}/tatoeba/{language}-{ENGLISH}.{side}"
            contents[name] = lines(side_texts[identifier] for identifier in chosen)
        pairs[split][language] = len(chosen)
    return contents, pairs


def task_files(
    texts: _Texts, settings: ParallelTextConfig
) -> tuple[dict[str, str], dict[str, Any]] | None:
    """The files of the task, which is to tell the group of books of a verse.

    Models are trained on English verses of the training text and tested in every
    language.

    Returns:
      name below the corpus folder -> content; the manifest's entry of the task. None if
      English has no verse in one of the splits, or only one label in train.
    """
    limits = {TRAIN: settings.max_train_examples}
    chosen = {
        (split, language): choose(
            list(by_id), limits.get(split, settings.max_test_examples), settings.seed
        )
        for (split, language), by_id in sorted(texts.items())
    }
    trained = {book_group(name) for name in chosen.get((TRAIN, ENGLISH), ())}
    if len(trained) < 2 or not all(chosen.get((s, ENGLISH)) for s in HELD_OUT):
        return None
    used = {book_group(identifier) for ids in chosen.values() for identifier in ids}
    labels = [label for label in BOOK_GROUPS if label in used]
    examples = {
        (split, language): [(texts[split, language][i], book_group(i)) for i in ids]
        for (split, language), ids in chosen.items()
    }
    return corpus_writer.labelled_files(BOOKS, labels, examples)
