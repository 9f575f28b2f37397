"""Translations found by the vectors of sentences: Tatoeba's search, BUCC's mining."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.configs import RetrievalConfig
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.metrics.mining import best_threshold, mine
from decoupled.metrics.neighbours import Matches, best_matches
from decoupled.xtreme.parallel_sentences import Bucc, Pair, Tatoeba, Text

# Sentences -> float32 [sentences, H].
Encode = Callable[[Sequence[str]], np.ndarray]


class Mined(NamedTuple):
    """Pairs of ids, the best first, and their scores, float [pairs]."""

    pairs: list[Pair]
    scores: np.ndarray


class MinedTest(NamedTuple):
    """What BUCC asks for: the pairs of the test set above the threshold.

    threshold: tuned on the dev set. dev_f1: what it gives there, in percent.
    """

    pairs: list[Pair]
    threshold: float
    dev_f1: float


def search(
    first: np.ndarray, second: np.ndarray, config: RetrievalConfig, description: str
) -> Matches:
    """Best matches in both directions by the configured scoring, with progress.

    Args:
      first, second: float32 [sentences, H]; with config.centre they are changed, so
        that millions of vectors need no second copy.
      config: what a score is.
      description: for the progress.
    """
    if config.centre:
        first -= first.mean(axis=0)
        second -= second.mean(axis=0)
    return best_matches(
        first,
        second,
        config.scoring,
        config.num_neighbours,
        progress=lambda blocks: console.track(blocks, description),
    )


def find_translations(
    languages: Sequence[Tatoeba], encode: Encode, config: RetrievalConfig
) -> dict[str, list[int]]:
    """Language -> for each of its sentences the place of the best English candidate.

    Equal sentences, also of different languages, are encoded once.
    """
    texts = {
        text: None for pair in languages for text in [*pair.sources, *pair.candidates]
    }
    places = {text: place for place, text in enumerate(texts)}
    vectors = encode(list(places))
    found = {}
    for pair in languages:
        sides = (
            vectors[[places[text] for text in side]]
            for side in (pair.sources, pair.candidates)
        )
        matches = search(*sides, config, f"searching blocks of {pair.language}")
        found[pair.language] = matches.forward.tolist()
    return found


def mine_test(
    dev: Bucc, read_test: Callable[[], Bucc], encode: Encode, config: RetrievalConfig
) -> MinedTest:
    """Mines both splits and keeps of the test set what the dev set's threshold lets in.

    Args:
      dev: with gold pairs.
      read_test: called after the dev set is done.
      encode: gives vectors.
      config: what a score is.

    Raises:
      UserError: the dev set has no gold pairs, or no sentence that stands once.
    """
    if not dev.gold:
        raise UserError(
            f"bucc2018 dev (language {dev.language}): no gold pairs; the threshold is "
            "tuned on them"
        )
    mined = mine_pairs(dev, encode, config)
    are_right = np.array([pair in dev.gold for pair in mined.pairs], bool)
    threshold = best_threshold(mined.scores, are_right, len(dev.gold))
    mined = mine_pairs(read_test(), encode, config)
    kept = int(np.sum(mined.scores >= threshold.score))
    return MinedTest(mined.pairs[:kept], threshold.score, threshold.f1)


def mine_pairs(split: Bucc, encode: Encode, config: RetrievalConfig) -> Mined:
    """Candidates for translations, no sentence twice; see `decoupled.metrics.mining`.

    A sentence that stands several times is one for the search, and is left out after
    it, since nothing tells which of its ids is meant; so does XTREME's baseline.

    Raises:
      UserError: no pair is left.
    """
    sides = [_ids_by_sentence(text) for text in (split.source, split.english)]
    vectors = [encode(list(side)) for side in sides]
    matches = search(*vectors, config, f"searching blocks of {split.language}")
    candidates = mine(matches)
    ids = [list(side.values()) for side in sides]
    pairs, kept = [], []
    for index, (left, right) in enumerate(candidates.pairs):
        pair = (ids[0][left], ids[1][right])
        if None not in pair:
            pairs.append(pair)
            kept.append(index)
    if not pairs:
        raise UserError(
            f"bucc2018 (language {split.language}): every sentence stands several times"
        )
    return Mined(pairs, candidates.scores[kept])


def _ids_by_sentence(text: Text) -> dict[str, str | None]:
    """Sentence -> its id; None where it has several."""
    times = Counter(text.sentences)
    return {
        sentence: name if times[sentence] == 1 else None
        for name, sentence in zip(text.ids, text.sentences, strict=True)
    }
