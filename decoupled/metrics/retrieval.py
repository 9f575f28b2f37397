"""Retrieval: pairs of sentences that were mined from two texts (BUCC).

The score of Tatoeba is an accuracy, of line numbers.
"""

from collections.abc import Iterable

Pair = tuple[str, ...]


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
