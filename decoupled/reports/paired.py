"""Differences between two models over the seeds that both have, and what they say.

Runs of one seed see the same data in the same order, so that their difference varies
less than either score. The mean of n differences has Student's t distribution with
n - 1 degrees of freedom; its 95% interval is what verdicts look at.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple

CONFIDENCE = 0.95

SUPPORTED = "supported"
NOT_SUPPORTED = "not supported"
UNDECIDED = "undecided at this scale"

# Halvings of an interval of 1.6: far below the rounding of a float.
_HALVINGS = 60


class Paired(NamedTuple):
    """Differences of two models, one for each seed.

    mean: of the differences. low, high: its 95% interval, None with fewer than two
    seeds. count: seeds.
    """

    mean: float
    low: float | None
    high: float | None
    count: int


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Paired | None:
    """first - second over the seeds of both; None where they share none.

    Args:
      first, second: seed -> score.
    """
    seeds = sorted(set(first) & set(second))
    if not seeds:
        return None
    return _summary([first[seed] - second[seed] for seed in seeds])


def above(found: Paired | None, bound: float = 0.0) -> str:
    """The verdict on "the difference is above `bound`"."""
    if found is None or found.low is None:
        return UNDECIDED
    if found.low > bound:
        return SUPPORTED
    return NOT_SUPPORTED if found.high < bound else UNDECIDED


def below(found: Paired | None, bound: float) -> str:
    """The verdict on "the difference is below `bound`"."""
    if found is None or found.low is None:
        return UNDECIDED
    if found.high < bound:
        return SUPPORTED
    return NOT_SUPPORTED if found.low > bound else UNDECIDED


def within(found: Paired | None, margin: float) -> str:
    """The verdict on "the difference is at most `margin` to either side".

    Supported where the whole interval lies within, which is stricter than two one-sided
    tests at 5% (they take the 90% interval); not supported where all of it lies on one
    side outside.
    """
    sides = {below(found, margin), above(found, -margin)}
    return combined(sides)


def combined(verdicts: Iterable[str]) -> str:
    """Of a claim that needs all of its parts: one that fails decides it."""
    verdicts = set(verdicts)
    if NOT_SUPPORTED in verdicts:
        return NOT_SUPPORTED
    return SUPPORTED if verdicts == {SUPPORTED} else UNDECIDED


def student_quantile(probability: float, freedom: int) -> float:
    """The t below which a share `probability` of Student's distribution lies.

    Args:
      probability: above 0 and below 1. freedom: degrees of freedom, 1 or more.
    """
    if not 0 < probability < 1 or freedom < 1:
        raise ValueError(f"no quantile {probability} of {freedom} degrees of freedom")
    if probability < 0.5:
        return -student_quantile(1 - probability, freedom)
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _central_share(middle, freedom) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _summary(values):
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return Paired(mean, None, None, count)
    error = statistics.stdev(values) / math.sqrt(count)
    width = student_quantile((1 + CONFIDENCE) / 2, count - 1) * error
    return Paired(mean, mean - width, mean + width, count)


def _central_share(angle, freedom):
    """Share between -t and t, with angle = atan(t / sqrt(freedom)).

    The finite series of Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even).
    """
    cosine, term, total = math.cos(angle), 1.0, 0.0
    if freedom % 2:
        term = cosine
        for power in range(1, freedom - 1, 2):
            total += term
            term *= cosine**2 * (power + 1) / (power + 2)
        return 2 / math.pi * (angle + math.sin(angle) * total)
    for power in range(0, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return math.sin(angle) * total
