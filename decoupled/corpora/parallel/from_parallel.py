"""Parallel text -> a corpus folder: text, held-out pairs, and a task on Bible verses.

Whole groups (chapters, pages) are held out together in all languages. So neither the
held-out text nor the pairs nor the task's dev and test sets have a translation in the
training text. The training sentences with their ids are in parallel/train/sentences. A
build that was killed resumes with the missing languages.

Held-out sentences become parallel files and the task `books`:

    parallel/{dev,test}/sentences/LANGUAGE.tsv      id<TAB>text
    parallel/{dev,test}/tatoeba/L-en.{L,en}         line i of one translates line i
    tasks/books/{labels.txt,train-en.tsv,dev-L.tsv,test-L.tsv}      text<TAB>label

A held-out sentence is left out in all languages if in one of them its text also occurs
in the training text, or earlier in its split. Otherwise it would have been seen in
training, or would have two translations.
"""

import collections
import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer
from decoupled.corpora.corpus import SPLITS, Corpus
from decoupled.corpora.locales import ENGLISH
from decoupled.corpora.parallel.kinds import KINDS
from decoupled.corpora.parallel.parallel_text import (
    BOOK_GROUPS,
    DEV,
    HELD_OUT,
    TEST,
    TRAIN,
    ParallelText,
    book_group,
    choose,
)
from decoupled.corpora.parallel.parallel_units import (
    RULES,
    ParallelJob,
    ParallelUnit,
    Sentence,
)
from decoupled.corpora.runners import Runner, run_units

# Below this many bytes, starting other processes takes longer than the work.
_SMALL_BYTES = 4 << 20
BOOKS = "books"
REPEATED = "held-out sentence with a repeated text, left out of pairs and tasks"
# id -> text, in the order of the text.
_Texts = dict[str, str]


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
          languages: the languages to keep in addition to English; empty keeps all.
          runner: where the texts are read.

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
          UserError: a text is bad (all others are finished and kept for the next build)
            or empty, languages share no ids, or the folder cannot be written.
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
        gathered = gather(
            {language: job.sentences(by_language[language]) for language in languages}
        )
        named, pairs = pair_files(gathered, self._settings)
        training = {
            f"{TRAIN}/sentences/{language}.tsv": job.training_path(result)
            for language, result in by_language.items()
        }
        _write_folder(os.path.join(folder, "parallel"), named, training)
        named, tasks = {}, {}
        if all(result["bible"] for result in results):
            if task := task_files(gathered, self._settings):
                named, tasks[BOOKS] = task
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
            dropped[REPEATED] = len(gathered.repeated)
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
    """Writes a folder atomically: it appears with all of its files.

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
            # Copied, not renamed: a build that was killed needs the file to resume.
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


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The sentences with ids of all languages.

    texts: (split, language) -> id -> text; "train" has only English verses, for the
    task. repeated: ids that are left out.
    """

    texts: dict[tuple[str, str], _Texts]
    repeated: set[str]


def gather(sentences: Mapping[str, Sequence[Sentence]]) -> HeldOut:
    """The sentences of each language, without ids that are repeated in any language."""
    repeated = {row.id for rows in sentences.values() for row in rows if row.repeated}
    texts: dict[tuple[str, str], _Texts] = {}
    for language, rows in sentences.items():
        for row in rows:
            if row.id not in repeated:
                texts.setdefault((row.split, language), {})[row.id] = row.text
    return HeldOut(texts, repeated)


def pair_files(
    held_out: HeldOut, settings: ParallelTextConfig
) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """The files of `parallel/`.

    Returns:
      name below `parallel/` -> content; split -> language -> pairs with English.

    Raises:
      UserError: a language shares no held-out id with English, though both have some.
    """
    named: dict[str, str] = {}
    pairs: dict[str, dict[str, int]] = {split: {} for split in HELD_OUT}
    for (split, language), texts in sorted(held_out.texts.items()):
        if split == TRAIN:
            continue
        named[f"{split}/sentences/{language}.tsv"] = _lines(
            f"{identifier}\t{text}" for identifier, text in texts.items()
        )
        english = held_out.texts.get((split, ENGLISH))
        if language == ENGLISH or not english:
            continue
        shared = [identifier for identifier in english if identifier in texts]
        if not shared:
            raise UserError(
                f"{language}: shares no id with {ENGLISH} in {split} (it has "
                f"{next(iter(texts))!r}, {ENGLISH} has {next(iter(english))!r}); ids "
                "have to be the same in all languages"
            )
        chosen = choose(shared, settings.max_pairs, settings.seed)
        for side, own in ((language, texts), (ENGLISH, english)):
            name = f"{split}/tatoeba/{language}-{ENGLISH}.{side}"
            named[name] = _lines(own[identifier] for identifier in chosen)
        pairs[split][language] = len(chosen)
    return named, pairs


def task_files(
    held_out: HeldOut, settings: ParallelTextConfig
) -> tuple[dict[str, str], dict[str, Any]] | None:
    """The files of the task, which is to tell the group of books of a verse.

    Models are trained on English verses of the training text and tested in every
    language.

    Returns:
      name below `tasks/` -> content; the manifest's entry of the task. None if English
      has no verse in one of the splits, or only one label in train.
    """
    chosen = {
        (split, language): choose(
            list(texts),
            settings.max_train_examples
            if split == TRAIN
            else settings.max_test_examples,
            settings.seed,
        )
        for (split, language), texts in sorted(held_out.texts.items())
    }
    trained = {
        book_group(identifier) for identifier in chosen.get((TRAIN, ENGLISH), ())
    }
    if len(trained) < 2 or not all(chosen.get((s, ENGLISH)) for s in HELD_OUT):
        return None
    found = {book_group(identifier) for ids in chosen.values() for identifier in ids}
    labels = [label for label in BOOK_GROUPS if label in found]
    named = {f"{BOOKS}/labels.txt": _lines(labels)}
    examples: dict[str, dict[str, int]] = {TRAIN: {}, DEV: {}, TEST: {}}
    for (split, language), ids in chosen.items():
        texts = held_out.texts[split, language]
        named[f"{BOOKS}/{split}-{language}.tsv"] = _lines(
            f"{texts[identifier]}\t{book_group(identifier)}" for identifier in ids
        )
        examples[split][language] = len(ids)
    return named, {"labels": labels, "examples": examples}


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
