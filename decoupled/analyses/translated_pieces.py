"""Pieces of a vocabulary that translate each other, found in aligned training text.

An occurrence of a piece is a whole word if the piece begins a word and one of these
follows: a piece that begins another word, a piece that begins with a punctuation mark
or a symbol, or the end of the sentence. A piece is a whole-word piece of a language if
a given share of its occurrences are whole words. Its count is the number of sentences
in which it is a whole word.

The Dice coefficient (Dice 1945) of two pieces is 2 n(a, b) / (n(a) + n(b)), where n is
the number of sentences with the given pieces. Whole-word pieces of two languages
translate each other if each is the piece with the highest coefficient for the other.
Equal pieces (names) are left out: they would translate themselves.
"""

import itertools
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoupled.configs.analyses import WordTranslationSettings
from decoupled.core import gfile
from decoupled.core.errors import UserError
from decoupled.corpora.corpus import Corpus
from decoupled.corpora.parallel.parallel_text import TRAIN
from decoupled.corpora.parallel.sentences import read_sentences
from decoupled.data.sentencepiece_file import MARK
from decoupled.data.vocabulary import Vocabulary
from decoupled.data.words import word_pieces

# Number of occurrences whose partners are counted at once.
_BLOCK = 1 << 17


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
    """The pairs of pieces of each pair of languages; the result is deterministic.

    Memory holds the training text, and 8 bytes for every combination of pieces of a
    pair of languages.

    Args:
      corpus: of parallel text. vocabulary: of the pieces. settings: see its class.

    Raises:
      UserError: the corpus has no training sentences with ids, or no pair is found.
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
    for own in texts.values():
        for name in own:
            ids.setdefault(name, len(ids))
    kinds = _kinds(vocabulary)
    words = {}
    for language, own in texts.items():
        places = np.array([ids[name] for name in own])
        encoded = vocabulary.encode_batch(list(own.values()))
        words[language] = _whole_words(
            places, encoded, len(ids), kinds, settings.whole_word_share
        )
    found = [
        _pair(pair, *(words[language] for language in pair), vocabulary.size, settings)
        for pair in itertools.combinations(texts, 2)
    ]
    if not any(len(entry.pairs) for entry in found):
        raise UserError(
            f"{folder}: no two whole-word pieces of {vocabulary.path} translate each "
            f"other in {', '.join(texts)} (text written without spaces has none, and "
            "each must be in word_translation.min_count sentences)"
        )
    return found


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
    for one, other in words:
        above[top(one)] = top(other)
    numbers: dict[tuple[str, int], int] = {}
    return np.array([numbers.setdefault(top(one), len(numbers)) for one, _ in words])


def _kinds(vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Which pieces may be words, and before which pieces words end: bool [pieces]."""
    pieces = map(vocabulary.id_to_piece, range(vocabulary.size))
    words = [piece[0] == MARK and any(map(str.isalpha, piece)) for piece in pieces]
    ends = word_pieces(vocabulary).begins
    ends[list(vocabulary.special_ids)] = False
    return np.array(words), ends


def _whole_words(places, encoded, sentences, kinds, share) -> _Words:
    """Args: places: int64 [own], indices of the sentences; encoded: their pieces."""
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
    (one, one_counts, *one_places), (other, other_counts, *other_places) = sides
    pairs = np.zeros([0, 2], np.int64)
    if len(one) and len(other):
        both = _together(one_places, other_places, (len(one), len(other)), len(shared))
        dice = 2 * both / (one_counts[:, None] + other_counts[None, :])
        best, back = dice.argmax(1), dice.argmax(0)
        rows = np.arange(len(one))
        kept = (back[best] == rows) & (dice[rows, best] >= settings.min_dice)
        kept &= one != other[best]
        pairs = np.stack([one[kept], other[best[kept]]], axis=1)
    return TranslatedPieces(languages, int(shared.sum()), pairs, tuple(candidates))


def _together(first, second, shape, sentences) -> np.ndarray:
    """Counts of sentences with both pieces, int64 of `shape`.

    first, second: (sentence, column) of each occurrence.
    """
    begins = np.searchsorted(second[0], np.arange(sentences + 1))
    together = np.zeros(shape[0] * shape[1], np.int64)
    for start in range(0, len(first[0]), _BLOCK):
        sentence, column = (own[start : start + _BLOCK] for own in first)
        partners = begins[sentence + 1] - begins[sentence]
        # Each occurrence with all occurrences of the other language in its sentence.
        skipped = np.cumsum(partners) - partners
        places = np.arange(partners.sum()) + np.repeat(
            begins[sentence] - skipped, partners
        )
        codes = np.repeat(column, partners) * shape[1] + second[1][places]
        together += np.bincount(codes, minlength=len(together))
    return together.reshape(shape)
