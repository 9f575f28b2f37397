"""The share of examples whose prediction is the label: XNLI, PAWS-X, Tatoeba."""

from collections.abc import Sequence


def accuracy(labels: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Accuracy in percent, as `{"accuracy": ...}`.

    Raises:
      ValueError: the numbers of labels and predictions differ, or there are none.
    """
    if len(labels) != len(predictions) or not labels:
        raise ValueError(f"{len(labels)} labels, {len(predictions)} predictions")
    right = sum(
        label == found for label, found in zip(labels, predictions, strict=True)
    )
    return {"accuracy": right / len(labels) * 100}
