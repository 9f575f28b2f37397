"""Pairs of translations mined from two texts, as for BUCC: candidates to scores.

The score of Tatoeba is an accuracy, of line numbers: `decoupled.metrics.labels`.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from decoupled.metrics.neighbours import Matches

Pair = tuple[str, ...]


class Candidates(NamedTuple):
    """Pairs of places in two texts, the best first; no place stands in two pairs.

    pairs: int64 [pairs, 2]. scores: [pairs].
    """

    pairs: np.ndarray
    scores: np.ndarray


class Threshold(NamedTuple):
    """The lowest score of a pair that is kept, and the F1 (percent) that it gives."""

    score: float
    f1: float


def mine(matches: Matches) -> Candidates:
    """Pairs of best matches, of both directions, taken greedily by score.

    The retrieval "max" of Artetxe and Schwenk (ACL 2019) and of XTREME's baseline: of
    all pairs of a vector and its best match, the best whose vectors are both still free
    is taken, until none is left.
    """
    first, second = len(matches.forward), len(matches.backward)
    pairs = np.concatenate(
        [
            np.stack([np.arange(first), matches.forward], axis=1),
            np.stack([matches.backward, np.arange(second)], axis=1),
        ]
    )
    scores = np.concatenate([matches.forward_scores, matches.backward_scores])
    order = np.argsort(-scores, kind="stable")
    free_first, free_second = np.ones(first, bool), np.ones(second, bool)
    taken = []
    for index in order:
        left, right = pairs[index]
        if free_first[left] and free_second[right]:
            free_first[left] = free_second[right] = False
            taken.append(index)
    return Candidates(pairs[taken], scores[taken])


def best_threshold(
    scores: np.ndarray, are_right: np.ndarray, num_gold: int
) -> Threshold:
    """The threshold with the highest F1; of several, the highest threshold.

    It lies halfway between the last score that is kept and the next one, or at the
    lowest score where all are kept.

    Args:
      scores: of candidates, descending, at least one.
      are_right: bool [candidates], which of them are translations.
      num_gold: number of translations that are to be found, at least one.
    """
    scores = scores.astype(np.float64)
    extracted = np.arange(1, len(scores) + 1)
    # 2 * right / (extracted + gold) is the harmonic mean of precision and recall.
    f1 = 2 * np.cumsum(are_right) / (extracted + num_gold)
    # No threshold can tell equal scores apart.
    last_of_equals = np.append(scores[:-1] != scores[1:], True)
    best = int(np.argmax(np.where(last_of_equals, f1, -1.0)))
    following = scores[best + 1] if best + 1 < len(scores) else scores[best]
    return Threshold(float((scores[best] + following) / 2), 100 * float(f1[best]))


def pair_scores(gold: Iterable[Pair], predictions: Iterable[Pair]) -> dict[str, float]:
    """F1, precision and recall in percent of the set of predicted pairs.

    A pair that is given twice counts once. All three are 0 where no pair is right.
    """
    gold, predictions = set(gold), set(predictions)
    right = len(gold & predictions)
    if right == 0:
        return {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    precision, recall = right / len(predictions), right / len(gold)
    f1 = 2 * precision * recall / (precision + recall)
    return {"f1": f1 * 100, "precision": precision * 100, "recall": recall * 100}
