"""Sentences and their translations: XTREME's Tatoeba and BUCC, and any parallel files.

Below --data_dir, L being a language other than English:

  tatoeba/L-en.L, tatoeba/L-en.en
      one sentence per line. XTREME sorts the English side; a prediction is an index in
      the sorted side. If it is unsorted, line i translates line i. Labels can also be
      in tatoeba/test-L.tsv. The folder may be called tatoeba_parallel.
  bucc2018/L-en.dev.L, .dev.en, .dev.gold, L-en.test.L, .test.en
      id, tab, sentence; in .gold id, tab, id. Gold pairs of the test set are optional:
      L-en.test.gold or test-L.tsv.
"""

import os
from collections import Counter
from typing import NamedTuple

from decoupled.core import files, gfile
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS
from decoupled.xtreme import official
from decoupled.xtreme.files import (
    LanguageFile,
    languages_of,
    read_labels,
    sorted_positions,
)

DEV, TEST = "dev", "test"

_PARTS = {
    "tatoeba": "{language} en",
    "bucc2018": "dev.{language} dev.en dev.gold test.{language} test.en",
}
_ADVICE = "get it with scripts/download_data.sh of XTREME"

Pair = tuple[str, str]


class Tatoeba(NamedTuple):
    """A language of Tatoeba.

    sources: its sentences. candidates: the English sentences, sorted. gold: for each
    source the index of its translation among the candidates, or None if not known.
    """

    language: str
    sources: list[str]
    candidates: list[str]
    gold: list[int] | None


class Text(NamedTuple):
    """Sentences and their ids."""

    ids: list[str]
    sentences: list[str]


class Bucc(NamedTuple):
    """A split of a language of BUCC; `gold` are pairs of ids, None if not known."""

    language: str
    source: Text
    english: Text
    gold: set[Pair] | None


def task_folder(task: str, data_dir: str) -> str:
    """The folder of a task below `data_dir`."""
    for name in official.TASKS[task].folders:
        folder = os.path.join(data_dir, name)
        if gfile.isdir(folder):
            return folder
    raise UserError(f"{data_dir}: has no folder {task}; {_ADVICE}")


def languages(task: str, data_dir: str) -> list[str]:
    """The languages that have a file of the task, by name, in XTREME or not."""
    folder = task_folder(task, data_dir)
    templates = [f"{{language}}-en.{part}" for part in _PARTS[task].split()]
    names = languages_of(folder, *templates)
    if not names:
        example = {"tatoeba": "sw-en.sw", "bucc2018": "de-en.test.de"}[task]
        raise UserError(f"{folder}: has no files such as {example}; {_ADVICE}")
    return names


def language_files(task: str, data_dir: str, language: str) -> list[str]:
    """All files of a language that are read; files with labels may be missing."""
    folder = task_folder(task, data_dir)
    paths = [
        os.path.join(folder, f"{language}-en.{part}")
        for part in _PARTS[task].format(language=language).split()
    ]
    if missing := [path for path in paths if not files.exists(path)]:
        raise _missing_files(task, missing, language)
    labels = [f"test-{language}.tsv", f"{language}-en.test.gold"]
    label_paths = (os.path.join(folder, name) for name in labels)
    return [*paths, *(path for path in label_paths if files.exists(path))]


def check_language(task: str, data_dir: str, language: str) -> None:
    """Reads all files of a language, so that their mistakes are found early."""
    language_files(task, data_dir, language)
    if task == "tatoeba":
        read_tatoeba(data_dir, language)
        return
    for split in (DEV, TEST):
        read_bucc(data_dir, split, language)


def read_tatoeba(data_dir: str, language: str) -> Tatoeba:
    """The sentences of a language and, if known, their translations."""
    folder = task_folder("tatoeba", data_dir)
    source, english = (
        _file("tatoeba", os.path.join(folder, f"{language}-en.{side}"), language)
        for side in (language, "en")
    )
    sources = [line.strip() for line in source.lines()]
    sentences = [line.strip() for line in english.lines()]
    if not sources:
        raise source.error("empty")
    if len(sources) != len(sentences):
        raise english.error(
            f"{len(sentences)} lines, but {source.path} has {len(sources)}"
        )
    for file, side in ((source, sources), (english, sentences)):
        if "" in side:
            raise file.error("holds no sentence", side.index("") + 1)
    gold = _gold_places(folder, language, sentences)
    return Tatoeba(language, sources, sorted(sentences), gold)


def _gold_places(folder, language, sentences):
    labels = LanguageFile(
        os.path.join(folder, f"test-{language}.tsv"), "tatoeba", language
    )
    positions = sorted_positions(sentences)
    if not files.exists(labels.path):
        return None if positions == sorted(positions) else positions
    gold = [int(label) for label in read_labels(labels)]
    if len(gold) != len(sentences) or max(gold) >= len(sentences):
        raise labels.error(f"does not fit the {len(sentences)} sentences in {folder}")
    is_aligned = positions != sorted(positions)
    sorted_sentences = sorted(sentences)
    for number, place in enumerate(gold):
        if is_aligned and sorted_sentences[place] != sentences[number]:
            raise labels.error(
                f"{place} is not the place of English sentence {number + 1} among all "
                f"sorted by code points ({positions[number]}). In an English file that "
                "is not sorted so, the lines must be the translations: sort it with "
                "LC_ALL=C sort, or remove labels that say something else",
                number + 1,
            )
    return gold


def read_bucc(data_dir: str, split: str, language: str) -> Bucc:
    """A split of a language.

    Raises:
      UserError: a file is missing, empty or malformed, gives an id twice, or the gold
        pairs name an id that the texts do not have.
    """
    folder = task_folder("bucc2018", data_dir)
    source, english = (
        _read_text(os.path.join(folder, f"{language}-en.{split}.{side}"), language)
        for side in (language, "en")
    )
    return Bucc(
        language, source, english, _gold_pairs(folder, split, language, source, english)
    )


def _read_text(path, language):
    file = _file("bucc2018", path, language)
    ids, sentences = [], []
    for number, line in enumerate(file.lines(), start=1):
        identifier, tab, sentence = line.partition("\t")
        if not (tab and identifier.strip(BLANKS)):
            raise file.error("not id, tab, sentence", number)
        if not sentence.strip():
            raise file.error("holds no sentence", number)
        ids.append(identifier.strip(BLANKS))
        sentences.append(sentence.strip())
    if not ids:
        raise file.error("empty")
    name, times = Counter(ids).most_common(1)[0]
    if times > 1:
        raise file.error(f"id {quoted(name)} occurs {times} times")
    return Text(ids, sentences)


def _gold_pairs(folder, split, language, source, english):
    names = [f"{language}-en.{split}.gold"]
    if split == TEST:
        names.append(f"test-{language}.tsv")
    for name in names:
        file = LanguageFile(os.path.join(folder, name), "bucc2018", language)
        if files.exists(file.path):
            pairs = read_labels(file)
            text_ids = set(source.ids), set(english.ids)
            for number, pair in enumerate(pairs, start=1):
                for identifier, ids in zip(pair, text_ids, strict=True):
                    if identifier not in ids:
                        problem = f"no sentence has id {quoted(identifier)}"
                        raise file.error(problem, number)
            return set(pairs)
    return None


def read_parallel(
    source_path: str, target_path: str, language: str, max_pairs: int
) -> tuple[list[str], list[str]]:
    """The first pairs, at most `max_pairs` (0 for all), of two files of which line i
    translates line i; those with an empty side are left out.
    """
    source, target = (
        LanguageFile(path, "tatoeba", language) for path in (source_path, target_path)
    )
    sides = [[line.strip() for line in file.lines()] for file in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise target.error(
            f"{len(sides[1])} lines, but {source_path} has {len(sides[0])}; line i of "
            "one must translate line i of the other"
        )
    pairs = [pair for pair in zip(*sides, strict=True) if all(pair)]
    pairs = pairs[: max_pairs or None]
    if not pairs:
        raise source.error("has no pair of sentences")
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    return sources, targets


def _file(task, path, language):
    if not files.exists(path):
        raise _missing_files(task, [path], language)
    return LanguageFile(path, task, language)


def _missing_files(task, paths, language):
    return UserError(
        f"{', '.join(paths)}: missing; {task} needs all of its files in language "
        f"{language!r}; {_ADVICE}"
    )
