"""A corpus and vocabularies for tests of encoding, made of a few invented words."""

import random

from decoupled.configs import VocabularyConfig
from decoupled.corpora.corpus_writer import write_corpus
from decoupled.data.vocabulary_training import train_vocabulary

WORDS = {
    "en": "the record holds text of one language and every word is kept here".split(),
    "sw": "rekodi ina maandishi ya lugha moja na kila neno limewekwa hapa".split(),
}


def documents(language, count, seed=0):
    """`count` documents of one to four sentences."""
    rng = random.Random(f"{language}/{seed}")
    return [
        [
            " ".join(rng.choices(WORDS[language], k=rng.randint(3, 9)))
            for _ in range(rng.randint(1, 4))
        ]
        for _ in range(count)
    ]


def make_corpus(folder, train=(("en", 60), ("sw", 8)), evaluation=(("en", 5),)):
    """Writes a corpus folder with so many documents per language; returns it."""
    counts_by_split = {"train": dict(train), "eval": dict(evaluation)}
    languages = [
        (
            language,
            [
                (split, document)
                for split, counts in counts_by_split.items()
                for document in documents(language, counts.get(language, 0), split)
            ],
        )
        for language in WORDS
    ]
    return write_corpus(str(folder), "invented", {}, languages, {}, {}, {})


def make_vocabulary(path, size=54, byte_fallback=False):
    """Trains a vocabulary on the invented words."""
    sentences = [s for name in WORDS for d in documents(name, 100) for s in d]
    return train_vocabulary(
        sentences, str(path), VocabularyConfig(size, 1.0, byte_fallback, 99, 10**6, 16)
    )
