"""One measure of all models, with a value for each seed and each item.

An item is the unit of sampling of the text: a verse in all languages, a sentence, or a
word. Values of one item and one model are averaged before.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core.errors import UserError

POINTS, NATS, LOGITS, RANKS = "points", "nats", "logits", "MRR x 100"
# Prefix of a row's name for its control: the row after one step of pre-training.
CONTROL = "control:"

# Component -> values of its items.
Components = Mapping[str, np.ndarray]


class Measured(NamedTuple):
    """One measure of all models.

    The value of a model is the mean over its components of the mean over items.

    name: in the document. unit: POINTS (accuracies x 100), NATS, LOGITS or RANKS.
    seeds: of all rows; a seed that is missing in one row is left out of all.
    values: row -> component -> float64 [seeds, items]. Each component has its own
    items, the same in every row. Rows that begin with `CONTROL` are controls.
    baseline: the value of a trivial baseline (word lookup, majority class, unigram
    entropy), or None. better: +1 if higher is better, -1 for losses.
    """

    name: str
    unit: str
    seeds: tuple[int, ...]
    values: Mapping[str, Components]
    baseline: float | None
    better: int

    def by_seed(self, row: str) -> np.ndarray:
        """The value of a row for each seed, float64 [seeds]."""
        return np.mean([one.mean(axis=1) for one in self.values[row].values()], axis=0)


def checked(measured: Measured, rows: Iterable[str]) -> dict[str, Components]:
    """The values of some rows, after checks of their shapes.

    Raises:
      UserError: a row is missing, differs from the first one in components, seeds or
        items, or has values that are not finite.
    """
    found: dict[str, Components] = {}
    shapes = None
    for row in rows:
        where = f"{measured.name}, row {row}"
        if row not in measured.values:
            raise UserError(f"{where}: it was not measured; run its jobs")
        components = {
            name: np.asarray(one, np.float64)
            for name, one in measured.values[row].items()
        }
        own = {name: one.shape for name, one in components.items()}
        count = len(measured.seeds)
        if not own or any(
            len(s) != 2 or s[0] != count or not s[1] for s in own.values()
        ):
            raise UserError(
                f"{where}: its values have the shapes {own}, but there are {count} "
                "seeds; leave seeds out of all rows that are missing in one"
            )
        if shapes is not None and own != shapes:
            raise UserError(
                f"{where}: its components and items {own} are not those of the other "
                f"rows, {shapes}; run the analysis again for all rows together"
            )
        shapes = own
        for name, one in components.items():
            if not np.isfinite(one).all():
                seed = measured.seeds[int(np.argmin(np.isfinite(one).all(axis=1)))]
                raise UserError(
                    f"{where}, seed {seed}, {name}: a value is not a finite number; "
                    "look at that run and train it again"
                )
        found[row] = components
    return found


def average(name: str, measures: Sequence[Measured]) -> Measured:
    """The mean of several measures, each with the same weight.

    Components keep their own items. The mean has the seeds and the rows that all
    measures have, and a baseline if all have one. If measures differ in the number of
    components, items are scaled so that the plain mean over components still gives
    each measure the same weight.

    Raises:
      ValueError: there is no measure, or they differ in unit or direction.
    """
    if len({(one.unit, one.better) for one in measures}) != 1:
        raise ValueError(f"{name}: measures of one unit and one direction are averaged")
    seeds = [s for s in measures[0].seeds if all(s in one.seeds for one in measures)]
    rows = [r for r in measures[0].values if all(r in one.values for one in measures)]
    values: dict[str, Components] = {}
    for row in rows:
        total = sum(len(one.values[row]) for one in measures)
        values[row] = {
            f"{one.name}: {component}": items[[one.seeds.index(s) for s in seeds]]
            * (total / (len(measures) * len(one.values[row])))
            for one in measures
            for component, items in one.values[row].items()
        }
    baselines = [one.baseline for one in measures if one.baseline is not None]
    baseline = float(np.mean(baselines)) if len(baselines) == len(measures) else None
    unit, better = measures[0].unit, measures[0].better
    return Measured(name, unit, tuple(seeds), values, baseline, better)


def ratios(correct: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Pseudo-values of a ratio of sums, such as an accuracy over tokens of sentences.

    p + (correct_i - p n_i) / mean(n): their mean is p = sum(correct) / sum(n), and
    their spread that of p by the delta method (Cochran 1977, Sampling Techniques,
    section 6.3).

    Args:
      correct: [seeds, items], sums over an item. counts: [seeds, items] or [items], the
        number of summands; 0 is allowed, but not for all items.

    Returns:
      float64 [seeds, items].
    """
    correct = np.asarray(correct, np.float64)
    counts = np.broadcast_to(np.asarray(counts, np.float64), correct.shape)
    share = correct.sum(axis=1, keepdims=True) / counts.sum(axis=1, keepdims=True)
    return share + (correct - share * counts) / counts.mean(axis=1, keepdims=True)


def logits(hits: np.ndarray) -> np.ndarray:
    """Pseudo-values of the logit of a share of hits.

    logit(p) + (x_i - p) / (p (1 - p)): their mean is logit(p), and their spread that
    of logit(p) by the delta method. A share of 0 or 1 has no logit. So p is kept at
    least half an item away from 0 and from 1.

    Args:
      hits: [seeds, items], each from 0 to 1.

    Returns:
      float64 [seeds, items].
    """
    hits = np.asarray(hits, np.float64)
    mean = hits.mean(axis=1, keepdims=True)
    nearest = 0.5 / hits.shape[1]
    share = np.clip(mean, nearest, 1 - nearest)
    return np.log(share / (1 - share)) + (hits - mean) / (share * (1 - share))
