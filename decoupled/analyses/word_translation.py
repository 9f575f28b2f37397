"""Do the rows of the input and the output embedding translate words?

Two pieces of the vocabulary that are whole words translate each other if each has its
highest Dice coefficient with the other, in the training sentences of two languages.
Equal pieces, such as names, are left out. Each piece of a pair is a query for the other
among the frequent whole words of the other language, by dot product.
Prints the mean reciprocal rank x 100 of both directions with its 95% interval.

  decoupled analyze word_translation --model_dir=runs/e_out_128 \\
      --model_dir=runs/e_out_768 --corpus_dir=data/corpus --output_dir=results

--corpus_dir is a corpus of parallel text, such as one that
`decoupled build_corpus --source=aligned:FOLDER` wrote. word_translation.items.npz has
the reciprocal rank of every pair.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import describe, open_models
from decoupled.analyses.output import Line, Panel, Picture, Table, with_interval
from decoupled.configs.analyses import WordTranslationSettings
from decoupled.core import console, gfile
from decoupled.core.errors import UserError
from decoupled.corpora.corpus import Corpus
from decoupled.corpora.parallel.parallel_text import TRAIN, read_sentences
from decoupled.data.sentencepiece_file import MARK
from decoupled.data.vocabulary import WORDPIECE, Vocabulary
from decoupled.data.words import word_tables
from decoupled.metrics.neighbours import mean_interval
from decoupled.runs.saved_run import INPUT, OUTPUT, Model

# Number of occurrences whose partners are counted at once.
_BLOCK = 1 << 17
# Number of queries that are ranked at once.
_QUERIES = 1024


class TranslatedPieces(NamedTuple):
    """The pairs of two languages.

    languages: codes. sentences: the number that both have. pairs: ids of pieces, int64
    [pairs, 2], sorted. candidates: ids of the frequent whole-word pieces of each
    language, int64, sorted; they include the pieces of `pairs`.
    """

    languages: tuple[str, str]
    sentences: int
    pairs: np.ndarray
    candidates: tuple[np.ndarray, np.ndarray]


class _Words(NamedTuple):
    """The whole-word pieces of a language's sentences.

    has: bool [sentences], whether the language has the sentence. sentence, piece: int64
    [occurrences], sorted; each piece of a sentence occurs once.
    """

    has: np.ndarray
    sentence: np.ndarray
    piece: np.ndarray


def translated_pieces(
    corpus: Corpus, vocabulary: Vocabulary, settings: WordTranslationSettings
) -> list[TranslatedPieces]:
    """The pairs of pieces of each pair of languages.

    Memory holds the training text, and 8 bytes for every combination of pieces of a
    pair of languages.
    """
    folder = os.path.join(corpus.folder, "parallel", TRAIN, "sentences")
    if not gfile.isdir(folder):
        raise UserError(
            f"{folder}: missing; translations of words are found in parallel text that "
            "decoupled build_corpus --source=aligned:FOLDER builds (a corpus of an "
            "earlier version lacks them: build it again)"
        )
    texts = read_sentences(folder)
    ids: dict[str, int] = {}
    for by_id in texts.values():
        for name in by_id:
            ids.setdefault(name, len(ids))
    kinds = _kinds(vocabulary)
    words = {}
    for language, by_id in texts.items():
        places = np.array([ids[name] for name in by_id])
        encoded = vocabulary.encode_batch(list(by_id.values()))
        words[language] = _whole_words(
            places, encoded, len(ids), kinds, settings.whole_word_share
        )
    translated = [
        _pair(pair, *(words[language] for language in pair), vocabulary.size, settings)
        for pair in itertools.combinations(texts, 2)
    ]
    if not any(len(entry.pairs) for entry in translated):
        raise UserError(
            f"{folder}: no two whole-word pieces of {vocabulary.path} translate each "
            f"other in {', '.join(texts)} (text written without spaces has none, and "
            "each must be in word_translation.min_count sentences)"
        )
    return translated


def word_groups(translated: Sequence[TranslatedPieces]) -> np.ndarray:
    """The groups of pairs that share words: int64 [all pairs], the index of the group.

    Two pairs are in one group if they share a piece of the same language: "und and",
    "and y", "und et". The values of such pairs are not independent.
    """
    above: dict[tuple[str, int], tuple[str, int]] = {}

    def top(word):
        while (higher := above.setdefault(word, word)) != word:
            word = higher
        return word

    words = [
        tuple(zip(entry.languages, pair, strict=True))
        for entry in translated
        for pair in entry.pairs.tolist()
    ]
    for left, right in words:
        above[top(left)] = top(right)
    numbers: dict[tuple[str, int], int] = {}
    return np.array([numbers.setdefault(top(left), len(numbers)) for left, _ in words])


def _kinds(vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Which pieces may be words, and before which pieces words end: bool [pieces]."""
    pieces = [*map(vocabulary.id_to_piece, range(vocabulary.size))]
    has_letters = np.array([any(map(str.isalpha, piece)) for piece in pieces])
    ends = word_tables(vocabulary).begins
    begins = ends.copy()
    if vocabulary.kind != WORDPIECE:
        begins = np.array([piece[0] == MARK for piece in pieces])
    ends[list(vocabulary.special_ids)] = False
    return begins & has_letters, ends


def _whole_words(places, encoded, sentences, kinds, share) -> _Words:
    """The whole-word pieces of encoded sentences.

    An occurrence of a piece is a whole word if the piece begins a word and one of these
    follows: a piece that begins another word, or begins with a punctuation mark or a
    symbol, or the end of the sentence. A piece is a whole-word piece if this holds for
    the given share of its occurrences.
    """
    words, ends = kinds
    lengths = np.array([len(pieces) for pieces in encoded], np.int64)
    pieces = np.fromiter(itertools.chain.from_iterable(encoded), np.int64)
    before_end = np.ones(len(pieces), bool)
    before_end[:-1] = ends[pieces[1:]]
    before_end[np.cumsum(lengths)[lengths > 0] - 1] = True
    whole = words[pieces] & before_end
    counts = np.bincount(pieces, minlength=len(words))
    whole_counts = np.bincount(pieces[whole], minlength=len(words))
    kept = whole & (whole_counts >= share * counts)[pieces]
    sentence = np.repeat(places, lengths)[kept]
    codes = np.unique(sentence * len(words) + pieces[kept])
    has = np.zeros(sentences, bool)
    has[places] = True
    return _Words(has, *np.divmod(codes, len(words)))


def _pair(languages, first, second, size, settings) -> TranslatedPieces:
    shared = first.has & second.has
    sides, candidates = [], []
    for words in (first, second):
        in_shared = shared[words.sentence]
        counts = np.bincount(words.piece[in_shared], minlength=size)
        candidates.append(np.flatnonzero(counts >= settings.min_candidate_count))
        frequent = np.flatnonzero(counts >= settings.min_count)
        kept = in_shared & (counts >= settings.min_count)[words.piece]
        columns = np.searchsorted(frequent, words.piece[kept])
        sides.append((frequent, counts[frequent], words.sentence[kept], columns))
    (left, left_counts, *left_places), (right, right_counts, *right_places) = sides
    pairs = np.zeros([0, 2], np.int64)
    if len(left) and len(right):
        both = _together(
            left_places, right_places, (len(left), len(right)), len(shared)
        )
        dice = 2 * both / (left_counts[:, None] + right_counts[None, :])
        best, back = dice.argmax(1), dice.argmax(0)
        rows = np.arange(len(left))
        kept = (back[best] == rows) & (dice[rows, best] >= settings.min_dice)
        kept &= left != right[best]
        pairs = np.stack([left[kept], right[best[kept]]], axis=1)
    return TranslatedPieces(languages, int(shared.sum()), pairs, tuple(candidates))


def _together(first, second, shape, sentences) -> np.ndarray:
    """Counts of sentences with both pieces, int64 of `shape`.

    `first` and `second` are (sentence, column) of each occurrence.
    """
    begins = np.searchsorted(second[0], np.arange(sentences + 1))
    together = np.zeros(shape[0] * shape[1], np.int64)
    for start in range(0, len(first[0]), _BLOCK):
        sentence, column = (values[start : start + _BLOCK] for values in first)
        partners = begins[sentence + 1] - begins[sentence]
        # Each occurrence with all occurrences of the other language in its sentence.
        skipped = np.cumsum(partners) - partners
        places = np.arange(partners.sum()) + np.repeat(
            begins[sentence] - skipped, partners
        )
        codes = np.repeat(column, partners) * shape[1] + second[1][places]
        together += np.bincount(codes, minlength=len(together))
    return together.reshape(shape)


def run(flags: Any, settings: WordTranslationSettings) -> dict[str, Any]:
    """The result of the command's flags."""
    models = open_models(flags.model_dir)
    return measure(models, Corpus(flags.corpus_dir), settings)


def reciprocal_ranks(
    table: np.ndarray, translated: TranslatedPieces, centre: bool
) -> np.ndarray:
    """The reciprocal rank of each pair, averaged over both directions, float32 [pairs].

    Half of the equal scores count as better. The table, float [V, E], has a row for
    each piece. `centre` subtracts the mean row of each language's candidates.
    """
    sides = []
    for ids, candidates in zip(translated.pairs.T, translated.candidates, strict=True):
        frequent = table[candidates].astype(np.float64)
        mean = frequent.mean(0) if centre else 0.0
        asking = table[ids].astype(np.float64) - mean
        frequent -= mean
        sides.append(_Side(ids, candidates, asking, frequent))
    first, second = sides
    both = [_one_direction(first, second), _one_direction(second, first)]
    return np.mean(both, axis=0).astype(np.float32)


def measure(
    models: Sequence[Model], corpus: Corpus, settings: WordTranslationSettings
) -> dict[str, Any]:
    """Mean reciprocal ranks of all models' embeddings.

    Returns:
      `corpus`, its fingerprint; `settings`; `pairs`: for each pair of languages
      `languages` ("de-en"), `sentences`, `items`, `candidates` and `random_order`, the
      mean reciprocal rank x 100 of a random order; `items`: both pieces and the
      languages of each item; `groups`: for each item the index of its group of items
      that share words (`word_groups`); `models`: the entries of `describe`, with
      `embeddings`, a list of entries with `embedding`, `mrr` (x 100, over all items),
      `interval` (95%, over the groups), `pairs`: languages -> `mrr`. `arrays`:
      "MODELINDEX/input", "/output": float32 [items]. The output embedding of a coupled
      model is its input embedding.
    """
    vocabulary = models[0].vocabulary
    for model in models:
        if model.vocabulary.fingerprint != vocabulary.fingerprint:
            raise UserError(
                f"{model.folder}: has another vocabulary than {models[0].folder}; "
                "pieces are compared, so give models of one vocabulary"
            )
    translated = [
        entry
        for entry in translated_pieces(corpus, vocabulary, settings)
        if len(entry.pairs)
    ]
    groups = word_groups(translated)
    results, arrays = [], {}
    for index, model in enumerate(console.track(models, "ranking translations")):
        embeddings = []
        for kind in (INPUT, OUTPUT):
            stored = INPUT if model.config.coupled else kind
            if stored not in model.embeddings:
                continue
            table = model.embedding(stored)
            ranks = [
                reciprocal_ranks(table, entry, settings.centre) for entry in translated
            ]
            arrays[f"{index}/{kind}"] = np.concatenate(ranks)
            summary = _summary(translated, ranks, groups)
            embeddings.append({"embedding": kind, **summary})
        results.append({**describe(model), "embeddings": embeddings})
    return {
        "analysis": "word_translation",
        "corpus": {"folder": corpus.folder, "fingerprint": corpus.fingerprint},
        "settings": dataclasses.asdict(settings),
        "pairs": [
            {
                "languages": "-".join(entry.languages),
                "sentences": entry.sentences,
                "items": len(entry.pairs),
                "candidates": [len(pieces) for pieces in entry.candidates],
                "random_order": float(
                    np.mean([_random_order(len(pieces)) for pieces in entry.candidates])
                ),
            }
            for entry in translated
        ],
        "items": [
            [*map(vocabulary.id_to_piece, pair), "-".join(entry.languages)]
            for entry in translated
            for pair in entry.pairs.tolist()
        ],
        "groups": groups.tolist(),
        "models": results,
        "arrays": arrays,
    }


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """The pairs of languages, and a line per embedding."""
    pairs = result["pairs"]
    yield Table(
        "Pieces that translate each other in the training text",
        ["languages", "sentences", "pairs", "candidates", "MRR of a random order"],
        [
            [
                *(entry[name] for name in ("languages", "sentences", "items")),
                "; ".join(f"{count:,}" for count in entry["candidates"]),
                f"{entry['random_order']:.1f}",
            ]
            for entry in pairs
        ],
    )
    languages = [entry["languages"] for entry in pairs]
    yield Table(
        "Translation of words by embeddings, MRR x 100 (95% interval) of "
        f"{len(result['items']):,} pairs",
        ["model", "embedding", "all", *languages],
        [
            [
                *(model["name"], entry["embedding"]),
                with_interval(entry["mrr"], entry["interval"]),
                *(f"{entry['pairs'][name]:.1f}" for name in languages),
            ]
            for model in result["models"]
            for entry in model["embeddings"]
        ],
    )


def picture(result: dict[str, Any]) -> Picture:
    """A row per model."""

    def line(kind):
        entries = [
            (place, entry)
            for place, model in enumerate(result["models"])
            for entry in model["embeddings"]
            if entry["embedding"] == kind
        ]
        return Line(
            f"{kind} embedding",
            [entry["mrr"] for _, entry in entries],
            [place for place, _ in entries],
            [entry["interval"][0] for _, entry in entries],
            [entry["interval"][1] for _, entry in entries],
        )

    names = [model["name"] for model in result["models"]]
    lines = [line(kind) for kind in (INPUT, OUTPUT)]
    panel = Panel(lines, "MRR x 100", rows=names, from_zero=True)
    return Picture("Translation of words by embeddings; bars: 95%", [[panel]])


class _Side(NamedTuple):
    """A language: the ids of the queries and of the candidates, and their rows."""

    ids: np.ndarray
    candidates: np.ndarray
    asking: np.ndarray
    frequent: np.ndarray


def _one_direction(side: _Side, other: _Side) -> np.ndarray:
    """Reciprocal ranks, float64 [pairs], of the other side's pieces."""
    ranks = np.zeros(len(side.ids))
    for start in range(0, len(side.ids), _QUERIES):
        block = slice(start, start + _QUERIES)
        scores = side.asking[block] @ other.frequent.T
        scores[side.ids[block, None] == other.candidates] = -np.inf
        right = np.searchsorted(other.candidates, other.ids[block])
        translation = scores[np.arange(len(scores)), right][:, None]
        better = (scores > translation).sum(1)
        # The translation itself is not counted.
        equal = (scores == translation).sum(1) - 1
        ranks[block] = 1 / (1 + better + equal / 2)
    return ranks


def _summary(translated, ranks, groups) -> dict[str, Any]:
    together = 100 * np.concatenate(ranks).astype(np.float64)
    return {
        "mrr": float(together.mean()),
        "interval": mean_interval(together, groups),
        "pairs": {
            "-".join(entry.languages): 100 * float(reciprocals.mean())
            for entry, reciprocals in zip(translated, ranks, strict=True)
        },
    }


def _random_order(candidates: int) -> float:
    return float(100 * np.mean(1 / np.arange(1, candidates + 1)))
