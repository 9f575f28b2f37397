"""The training loss of a pre-training run by step, and when it left the plateau.

A masked-LM model first learns how frequent words are: its loss falls to about the
unigram entropy of the text, in nats a predicted token, and stays there for a while.
Then it learns to use the context, and the loss falls again. A comparison of a run that
has left this plateau with one that has not shows only when each left it. So runs are
compared only if each crosses: from some step on, its smoothed loss stays below the
unigram entropy minus CROSSED_BELOW (`crossing`). `decoupled.studies.verdicts` has the
bounds.

The logged loss of a step is the mean over the predicted tokens of that step's batch.
BERT's masks leave a tenth of these tokens unchanged. A model that knows only
frequencies therefore has a training loss about 0.5 nats below the unigram entropy (5.42
against 5.96 on Bible text in four languages and 4,000 pieces). CROSSED_BELOW puts the
level some 0.5 nats below that plateau.

The smoothed loss at step s of a run whose last logged step is S is the mean of the
losses that were logged at steps in (s - WINDOW * S, s], always including s. It lags
half a window behind the loss, so that a crossing is noticed late, never early.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from decoupled.core.errors import UserError
from decoupled.training.events import PERCENT, read_scalars

LOSS, ACCURACY = "loss", "masked_lm_accuracy"
WINDOW = 0.05
CROSSED_BELOW = 1.0


class Curve(NamedTuple):
    """The training loss of a run: logged steps, rising, and nats a predicted token."""

    steps: np.ndarray
    loss: np.ndarray


def entropy(counts: np.ndarray) -> float:
    """The entropy of the distribution that `counts`, [V], are drawn from, in nats.

    The entropy of the shares is too low by about (pieces seen - 1) / (2 n) for n draws;
    this bias is corrected (Miller 1955). 0 if all counts are 0.
    """
    seen = counts[counts > 0].astype(np.float64)
    if not len(seen):
        return 0.0
    shares = seen / seen.sum()
    return float(-(shares * np.log(shares)).sum() + (len(seen) - 1) / (2 * seen.sum()))


def read_curve(folder: str) -> Curve:
    """The training loss of the run in `folder`, from its event files.

    A resumed run gives one curve. Losses of steps that were lost and repeated are
    dropped. A file that a kill cut off is read up to its last whole record.
    """
    values = read_scalars(folder, LOSS, whole=True)
    if not values:
        raise UserError(
            f"{folder}: no training loss in event files here; give the folder of a "
            "pre-training run"
        )
    steps = np.array(sorted(values), np.int64)
    loss = np.array([values[step] for step in steps.tolist()], np.float64)
    if steps[0] < 1 or not np.isfinite(loss).all():
        wrong_index = int(np.argmax((steps < 1) | ~np.isfinite(loss)))
        raise UserError(
            f"{folder}: its event files say that the loss was {loss[wrong_index]} at "
            f"step {steps[wrong_index]}, which no run of ours writes"
        )
    return Curve(steps, loss)


def read_accuracy(folder: str) -> dict[int, float]:
    """step -> masked-LM accuracy in percent of the run in `folder` while it trained."""
    shares = read_scalars(folder, ACCURACY)
    percentages = read_scalars(folder, f"{ACCURACY}{PERCENT}")
    return {step: 100 * share for step, share in shares.items()} | percentages


def smoothed(curve: Curve) -> np.ndarray:
    """The smoothed loss at each logged step; see the module."""
    sums = np.concatenate([[0.0], np.cumsum(curve.loss)])
    window = max(1.0, WINDOW * curve.steps[-1])
    start = np.searchsorted(curve.steps, curve.steps - window, side="right")
    end = np.arange(1, len(curve.steps) + 1)
    return (sums[end] - sums[start]) / (end - start)


def crossing(curve: Curve, level: float) -> int | None:
    """The first logged step from which the smoothed loss stays below `level`, in nats.

    None where the curve, that of a whole run, does not end below the level.
    """
    indexes_above = np.flatnonzero(~(smoothed(curve) < level))
    index = int(indexes_above[-1]) + 1 if len(indexes_above) else 0
    return int(curve.steps[index]) if index < len(curve.steps) else None


def crossing_level(
    unigram_entropy: Mapping[str, float], shares: Mapping[str, float] | None = None
) -> float:
    """The loss below which a run has left the plateau, nats a token.

    This is the mean of the languages' unigram entropies, as `decoupled analyze
    masked_lm` gives them, minus CROSSED_BELOW. Its weights are the languages' shares of
    the training sequences, up to a common factor; None is equal shares.
    """
    languages = sorted(unigram_entropy)
    weights = [1.0 if shares is None else shares[lang] for lang in languages]
    entropies = [unigram_entropy[lang] for lang in languages]
    return float(np.average(entropies, weights=weights)) - CROSSED_BELOW
