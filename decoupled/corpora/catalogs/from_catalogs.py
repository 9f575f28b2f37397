"""Message catalogs -> a corpus folder: text, a labelled zero-shot task, parallel pairs.

The task is to tell which catalog a message comes from. Models are trained on English
only and tested in every language. The first package gives the labels; the others give
more text. A message's split depends on its English text alone, so that it is never in
train in one language and in dev or test in another. The text of all dev and test
messages is left out of the `train` split of the corpus and is its `eval` split.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from decoupled.configs.corpora import CorpusSettings
from decoupled.core.errors import UserError
from decoupled.corpora import locales
from decoupled.corpora.catalogs import catalog_files
from decoupled.corpora.catalogs.catalog_files import Message, message_key
from decoupled.corpora.corpus import SPLITS, Document, hash_bits, split_at
from decoupled.corpora.corpus_writer import lines, write_corpus

_PREFIX = "catalogs:"


class CatalogTask(NamedTuple):
    """labels: sorted. examples: ("train" | "dev" | "test", language) -> texts with
    their labels."""

    labels: list[str]
    examples: dict[tuple[str, str], list[tuple[str, str]]]


class CatalogsBuild:
    """Builds a corpus from the catalogs of --source."""

    def __init__(self, source: str, settings: CorpusSettings, languages: Sequence[str]):
        """Checks that the packages of "catalogs:PACKAGE,..." are there.

        Args:
          languages: to keep in addition to English; empty keeps all.
        """
        packages = source.removeprefix(_PREFIX).split(",")
        if not source.startswith(_PREFIX) or len(set(packages)) != len(packages):
            raise UserError(
                f"--source={source}: not of the form catalogs:PACKAGE,..., nor one of "
                "the others that --help lists"
            )
        catalog_files.check_installed(packages)
        self._source, self._packages = source, packages
        self._settings, self._languages = settings, languages

    def inputs(self) -> dict[str, Any]:
        """All that the text depends on, for the manifest."""
        return {
            "source": self._source,
            "rules": catalog_files.RULES,
            "libraries": catalog_files.libraries(),
            "settings": self._settings.catalog_settings(),
            "languages": sorted(self._languages),
            "files": catalog_files.fingerprint_catalogs(self._packages),
        }

    def write(self, folder: str, inputs: Mapping[str, Any]) -> None:
        """Writes the corpus; `corpus_writer.building` surrounds it.

        Raises:
          UserError: the catalogs have no such language or too little text for the task,
            or the folder cannot be written.
        """
        messages, dropped = catalog_files.read_catalogs(self._packages)
        if self._languages:
            messages = _in_languages(messages, self._languages)
        task = make_task(messages, self._settings)
        texts = make_text(messages, self._settings)
        pairs = make_pairs(messages, self._settings)
        write_corpus(
            folder,
            source=self._source,
            inputs=inputs,
            languages=_message_documents(texts),
            dropped=dropped,
            contents=_task_files(task) | _pair_files(pairs),
            tasks={"catalogs": _task_entry(task)},
        )


def make_task(messages: list[Message], settings: CorpusSettings) -> CatalogTask:
    """The zero-shot task.

    It leaves out messages that several catalogs share (their label would be ambiguous),
    catalogs that are too small for a label, and regional variants (an average over
    languages would count Spanish five times).

    Raises:
      UserError: fewer than two labels remain, or a split of English is empty.
    """
    task_messages = _task_messages(messages, settings)
    labels = sorted({message.catalog for message in task_messages})
    examples = collections.defaultdict(list)
    for message in task_messages:
        split = split_of(message.key, settings)
        languages = [locales.ENGLISH] if split == "train" else message.translations
        for language in languages:
            if not locales.is_variant(language):
                example = (message.translations[language], message.catalog)
                examples[split, language].append(example)
    _check_task(labels, examples, settings)
    task_languages = {
        language
        for _, language in examples
        if language == locales.ENGLISH
        or min(len(examples.get((split, language), ())) for split in ("dev", "test"))
        >= settings.min_language_examples
    }
    rows = {key: x for key, x in sorted(examples.items()) if key[1] in task_languages}
    return CatalogTask(labels, rows)


def split_of(key: str, settings: CorpusSettings) -> str:
    """The split of a message, a function of its English key and the settings only."""
    place = hash_bits(key) / 2**64
    return split_at(place, settings.test_share, settings.dev_share)


def make_text(
    messages: list[Message], settings: CorpusSettings
) -> dict[str, dict[str, list[str]]]:
    """split -> language -> texts in catalog order, each text once per language.

    `eval` holds the dev and test messages of the task, and `train` holds everything
    else. A text in a language's `eval` is never in its `train`, even if two English
    messages share a translation.
    """
    held_out_keys = _held_out_keys(messages, settings)
    text = {"train": {}, "eval": {}}
    seen = collections.defaultdict(set)
    # Eval first, so that a text that occurs in both belongs to eval.
    for split in ("eval", "train"):
        for message in messages:
            if (message.key in held_out_keys) != (split == "eval"):
                continue
            for language, sentence in message.translations.items():
                key = message_key(sentence)
                if key not in seen[language]:
                    seen[language].add(key)
                    text[split].setdefault(language, []).append(sentence)
    return {split: dict(sorted(languages.items())) for split, languages in text.items()}


def make_pairs(
    messages: list[Message], settings: CorpusSettings
) -> dict[str, list[tuple[str, str]]]:
    """language -> (text, English text) of the held-out messages, in catalog order."""
    held_out_keys = _held_out_keys(messages, settings)
    pairs = collections.defaultdict(list)
    seen = set()
    for message in messages:
        if message.key not in held_out_keys or message.key in seen:
            continue
        seen.add(message.key)
        for language, text in message.translations.items():
            if language != locales.ENGLISH:
                pairs[language].append((text, message.translations[locales.ENGLISH]))
    return dict(sorted(pairs.items()))


def _task_messages(messages: list[Message], settings: CorpusSettings) -> list[Message]:
    messages = [m for m in messages if m.package == messages[0].package]
    catalogs = collections.Counter(message.key for message in messages)
    unique_messages = [message for message in messages if catalogs[message.key] == 1]
    sizes = collections.Counter(message.catalog for message in unique_messages)
    return [
        message
        for message in unique_messages
        if sizes[message.catalog] >= settings.min_label_messages
    ]


def _held_out_keys(messages: list[Message], settings: CorpusSettings) -> set[str]:
    return {
        message.key
        for message in _task_messages(messages, settings)
        if split_of(message.key, settings) != "train"
    }


def _check_task(labels, examples, settings: CorpusSettings) -> None:
    if len(labels) < 2:
        raise UserError(
            f"catalogs: {len(labels)} of them have {settings.min_label_messages} "
            "English messages that no other has, but the task needs two labels; lower "
            "min_label_messages or add packages"
        )
    for split in ("train", "dev", "test"):
        if not examples.get((split, locales.ENGLISH)):
            raise UserError(
                f"catalogs: no English message falls into {split}; add packages or "
                "change dev_share and test_share"
            )


def _in_languages(messages: list[Message], languages: Sequence[str]) -> list[Message]:
    """The messages with the translations into some languages, and the English text."""
    known_codes = set().union(*(message.translations for message in messages))
    unknown = sorted(set(languages) - known_codes)
    if unknown:
        raise UserError(
            f"--languages: the catalogs have no {', '.join(unknown)}; "
            f"they have {', '.join(sorted(known_codes))}"
        )
    codes = {locales.ENGLISH, *languages}
    return [
        message._replace(
            translations={k: v for k, v in message.translations.items() if k in codes}
        )
        for message in messages
    ]


def _message_documents(
    texts: dict[str, dict[str, list[str]]],
) -> Iterator[tuple[str, Iterable[tuple[str, Document]]]]:
    languages = sorted({language for split in texts.values() for language in split})
    for language in languages:
        yield (
            language,
            [
                (split, [sentence])
                for split in SPLITS
                for sentence in texts[split].get(language, [])
            ],
        )


def _task_files(task: CatalogTask) -> dict[str, str]:
    contents = {"tasks/catalogs/labels.txt": lines(task.labels)}
    for (split, language), rows in task.examples.items():
        contents[f"tasks/catalogs/{split}-{language}.tsv"] = lines(map("\t".join, rows))
    return contents


def _task_entry(task: CatalogTask) -> dict[str, Any]:
    """What the manifest says of the task."""
    counts: dict[str, dict[str, int]] = {"train": {}, "dev": {}, "test": {}}
    for (split, language), rows in task.examples.items():
        counts[split][language] = len(rows)
    return {"labels": task.labels, "examples": counts}


def _pair_files(pairs: dict[str, list[tuple[str, str]]]) -> dict[str, str]:
    contents = {}
    for language, language_pairs in pairs.items():
        for index, side in enumerate((language, "en")):
            content = lines(pair[index] for pair in language_pairs)
            contents[f"parallel/{language}-en.{side}"] = content
    return contents
