"""Accuracy in percent."""

import pytest

from decoupled.metrics.accuracy import accuracy


@pytest.mark.parametrize(
    "labels, predictions, expected",
    [
        ("neutral", "neutral", 100.0),
        ("neutral entailment neutral", "neutral neutral neutral", 66.66666666666666),
        ("0 1", "1 0", 0.0),
        ("10", "010", 0.0),
    ],
)
def test_share_of_equal_strings(labels, predictions, expected):
    found = accuracy(labels.split(), predictions.split())
    assert found == {"accuracy": pytest.approx(expected, abs=1e-12)}


@pytest.mark.parametrize("labels, predictions", [(["a"], ["a", "a"]), ([], [])])
def test_counts_must_match(labels, predictions):
    with pytest.raises(ValueError, match="labels"):
        accuracy(labels, predictions)
