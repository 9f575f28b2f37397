"""Mined pairs: sets of them, in percent."""

import pytest

from decoupled.metrics.retrieval import pair_scores

GOLD = [("de-1", "en-7"), ("de-2", "en-8"), ("de-3", "en-9"), ("de-4", "en-1")]


@pytest.mark.parametrize(
    "predictions, f1, precision, recall",
    [
        (GOLD, 100, 100, 100),
        (GOLD[::-1] + GOLD, 100, 100, 100),
        (GOLD[:1] + [("de-2", "en-9")], 100 / 3, 50, 25),
        (GOLD[:3] + [("de-9", "en-9")] * 3, 75, 75, 75),
        ([tuple(reversed(pair)) for pair in GOLD], 0, 0, 0),
        ([], 0, 0, 0),
    ],
)
def test_sets_of_pairs(predictions, f1, precision, recall):
    expected = {"f1": f1, "precision": precision, "recall": recall}
    assert pair_scores(GOLD, predictions) == pytest.approx(expected, abs=1e-12)
