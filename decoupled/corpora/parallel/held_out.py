"""What is made of held-out sentences: parallel files, and the task `books`.

    parallel/{dev,test}/sentences/LANGUAGE.tsv      id<TAB>text
    parallel/{dev,test}/tatoeba/L-en.{L,en}         line i of one translates line i
    tasks/books/{labels.txt,train-en.tsv,dev-L.tsv,test-L.tsv}      text<TAB>label

A sentence is left out in all languages where in one of them its text stands in the
training text as well, or further up in its split: it would have been seen in training,
or have two translations.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core.errors import UserError
from decoupled.corpora.locales import ENGLISH
from decoupled.corpora.parallel.parallel_text import (
    BOOK_GROUPS,
    DEV,
    HELD_OUT,
    TEST,
    TRAIN,
    book_group,
    choose,
)
from decoupled.corpora.parallel.parallel_units import Sentence

BOOKS = "books"
REPEATED = "held-out sentence with a repeated text, left out of pairs and tasks"

# id -> text, in the order of the text.
_Texts = dict[str, str]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The sentences with ids of all languages.

    texts: (split, language) -> id -> text; of "train" only English verses, for the
    task. repeated: ids that are left out.
    """

    texts: dict[tuple[str, str], _Texts]
    repeated: set[str]


def gather(sentences: Mapping[str, Sequence[Sentence]]) -> HeldOut:
    """The sentences of each language, without those that one of them repeats."""
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
    """The files of the task: from which group of books is a verse?

    Trained on English verses of the training text, tested in every language.

    Returns:
      name below `tasks/` -> content; what the manifest says of the task. None where
      English has no verse in one of the splits, or one label alone to train on.
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
