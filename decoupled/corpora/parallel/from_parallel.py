"""Parallel text -> a corpus folder: text, and held-out pairs.

Whole groups (chapters, pages) are held out together in all languages. So neither the
held-out text nor the pairs have a translation in the training text. One process reads
the languages one after the other; memory holds one group, the held-out sentences, and 8
bytes for each other sentence.

    text/{train,eval}/LANGUAGE/         a group is a document; eval has those held out
    parallel/{dev,test}/sentences/LANGUAGE.tsv      id<TAB>text
    parallel/{dev,test}/tatoeba/L-en.{L,en}         line i of one translates line i

A held-out sentence is in neither file, in any language, if in one language its text
also occurs in the training text, or earlier in its split. Otherwise it would have been
seen in training, or would have two translations.
"""

import array
import collections
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer, text_units
from decoupled.corpora.corpus import SPLITS, Document
from decoupled.corpora.corpus_writer import lines
from decoupled.corpora.input_files import InputFile
from decoupled.corpora.locales import ENGLISH
from decoupled.corpora.parallel import parallel_text
from decoupled.corpora.parallel.parallel_text import (
    HELD_OUT,
    TRAIN,
    SentenceLine,
    choose,
    group_of,
    split_of,
)

# Increased when the same input gives other text or other files than before. (The second
# number is from a time when there were several kinds of parallel text.)
RULES = [4, 2]
# Manifests of earlier versions have these settings of a task that was removed.
_OLD_SETTINGS = {"max_train_examples": 4000, "max_test_examples": 1000}
# They are also left out of sentences/, but a corpus's fingerprint has these words.
REPEATED = "held-out sentence with a repeated text, left out of pairs"
# The reason for dropping empty lines, and dashes for verses that a translation lacks.
WITHOUT_WORDS = "sentence without letters"
_WORD = re.compile(r"[^\W_]")
# (split, language) -> id -> text, in the order of the text.
_Texts = dict[tuple[str, str], dict[str, str]]


class ParallelBuild:
    """Builds a corpus from the parallel text of --source."""

    def __init__(
        self, source: str, settings: ParallelTextConfig, languages: Sequence[str]
    ):
        """Finds the files and reads them once, for their SHA-256.

        `languages` are kept in addition to English; empty keeps all.
        """
        self._settings = settings
        files = parallel_text.find(source.removeprefix(parallel_text.PREFIX))
        if unknown := sorted(set(languages) - set(files)):
            raise UserError(
                f"--languages: {source} has no {', '.join(unknown)}; it has "
                f"{', '.join(files)}"
            )
        self._files = {
            language: file
            for language, file in files.items()
            if not languages or language in {ENGLISH, *languages}
        }

    def inputs(self) -> dict[str, Any]:
        """All that the text depends on, for the manifest."""
        return {
            "source": "aligned",
            "rules": RULES,
            "settings": dataclasses.asdict(self._settings) | _OLD_SETTINGS,
            "languages": {
                # Manifests of earlier versions have "part".
                language: {"sha256": file.sha256, "part": ""}
                for language, file in self._files.items()
            },
        }

    def write(self, folder: str, inputs: Mapping[str, Any]) -> None:
        """Writes the corpus; `corpus_writer.building` surrounds it.

        Raises:
          UserError: a text is bad or empty, languages share no ids, or the folder
            cannot be written.
        """
        with corpus_writer.all_or_nothing(folder):
            items = console.track(self._files.items(), "reading parallel text")
            texts = {name: self._read(folder, name, file) for name, file in items}
            repeats = set().union(*(text.repeated_ids() for text in texts.values()))
            held_out = _held_out_texts(texts, repeats)
            contents, pairs = pair_files(held_out, self._settings)
            corpus_writer.write_further_files(folder, contents)
            if not any(pairs.values()):
                console.say(
                    f"no pairs: these need held-out text of {ENGLISH} and of another "
                    "language; parallel/ has the held-out sentences with their ids"
                )
            dropped = collections.Counter({REPEATED: len(repeats)} if repeats else {})
            for text in texts.values():
                dropped.update(text.dropped)
            corpus_writer.write_manifest(
                folder,
                source="parallel text (aligned)",
                inputs=inputs,
                splits={
                    split: {
                        language: text.splits[split]
                        for language, text in texts.items()
                        if split in text.splits
                    }
                    for split in SPLITS
                },
                dropped=dict(sorted(dropped.items())),
                tasks={},
                languages={
                    name: {
                        "inputs": [{**f._asdict(), "path": os.path.basename(f.path)}],
                        "dropped": dict(texts[name].dropped),
                    }
                    for name, f in self._files.items()
                },
                pairs=pairs,
            )

    def _read(self, folder: str, language: str, file: InputFile) -> "_LanguageText":
        """Writes the text of a language."""
        text = _LanguageText()
        documents = text.documents(parallel_text.read(file.path), self._settings)
        text.splits = corpus_writer.write_documents(folder, language, documents)
        if not text.splits:
            raise UserError(f"{file.path}: no text of {language}")
        if TRAIN not in text.splits:
            raise UserError(
                f"{file.path}: all text of {language} is held out; the ids may have "
                "too few groups, see ParallelTextConfig.group"
            )
        return text


class _LanguageText:
    """What memory holds of a language.

    splits: counts by split. dropped: sentences by reason. held_out: split -> id ->
    text, in the order of the text.
    """

    def __init__(self):
        # Of the sentences of the training text.
        self._digests = array.array("Q")
        self.splits: dict[str, Any] = {}
        self.dropped = collections.Counter()
        self.held_out: dict[str, dict[str, str]] = {split: {} for split in HELD_OUT}

    def documents(
        self, lines: Iterator[SentenceLine], settings: ParallelTextConfig
    ) -> Iterator[tuple[str, Document]]:
        """Yields each group as a document with its split."""
        for group, members in _groups(lines, settings.group):
            sentences = [line for line in members if _WORD.search(line.text)]
            if len(sentences) < len(members):
                self.dropped[WITHOUT_WORDS] += len(members) - len(sentences)
            if not sentences:
                continue
            split = split_of(group, settings)
            if split == TRAIN:
                self._digests.extend(text_units.digest([s.text]) for s in sentences)
            else:
                self.held_out[split].update((s.id, s.text) for s in sentences)
            yield "train" if split == TRAIN else "eval", [s.text for s in sentences]

    def repeated_ids(self) -> set[str]:
        """The ids of held-out sentences of which a text of the same normal form is in
        the training text, or earlier in their split."""
        digests = {
            split: {name: text_units.digest([text]) for name, text in texts.items()}
            for split, texts in self.held_out.items()
        }
        held_out = {digest for by_id in digests.values() for digest in by_id.values()}
        train_digests = held_out.intersection(self._digests)
        repeated_ids = set()
        for by_id in digests.values():
            seen = set(train_digests)
            for identifier, digest in by_id.items():
                if digest in seen:
                    repeated_ids.add(identifier)
                seen.add(digest)
        return repeated_ids


def _groups(
    lines: Iterator[SentenceLine], pattern: str | None
) -> Iterator[tuple[str, list[SentenceLine]]]:
    seen: set[str] = set()
    current_group, members = None, {}
    for line in lines:
        group = group_of(line.id, pattern, line.place)
        if group != current_group:
            if members:
                yield current_group, list(members.values())
            if group in seen:
                raise UserError(
                    f"{line.place}: {group!r} begins again with the id {line.id!r}; "
                    "sort the file by id, so that each group stands together"
                )
            seen.add(group)
            current_group, members = group, {}
        if line.id in members:
            raise UserError(
                f"{line.place}: the id {line.id!r} is also in {members[line.id].place}"
            )
        members[line.id] = line
    if members:
        yield current_group, list(members.values())


def _held_out_texts(texts: Mapping[str, _LanguageText], repeats: set[str]) -> _Texts:
    """The held-out sentences, without ids that any language repeats."""
    held_out: _Texts = {}
    for language, text in texts.items():
        for split, by_id in text.held_out.items():
            sentences = {x: by_id[x] for x in by_id if x not in repeats}
            if sentences:
                held_out[split, language] = sentences
    return held_out


def pair_files(
    texts: _Texts, settings: ParallelTextConfig
) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Held-out sentences and their pairs with English.

    Returns:
      name below the corpus folder -> content; split -> language -> number of pairs.
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
        pair_ids = choose(shared, settings.max_pairs, settings.seed)
        for side, side_texts in ((language, by_id), (ENGLISH, english)):
            name = f"parallel/{split}/tatoeba/{language}-{ENGLISH}.{side}"
            contents[name] = lines(side_texts[identifier] for identifier in pair_ids)
        pairs[split][language] = len(pair_ids)
    return contents, pairs
