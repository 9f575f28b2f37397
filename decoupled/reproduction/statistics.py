"""Measures by seed and item, and differences of models estimated over both.

An item is the unit of sampling of the text: a verse in all languages, a sentence, or a
word. Values of one item and one model are averaged before.

All rows have the same seeds and the same items, and both are samples: another training
would have other seeds, and another text other items. So the variance of a difference of
two rows has a component for seeds, a component for items, and a residual (Searle,
Casella and McCulloch 1992, Variance Components, chapter 4). A paired test over seeds
alone treats the items as fixed: with 5 seeds its 95% interval covers only 84% if items
matter.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

from decoupled.core.errors import UserError

POINTS, NATS, LOGITS, RANKS = "points", "nats", "logits", "MRR x 100"
# Prefix of a row's name for its control: the row after one step of pre-training.
CONTROL = "control:"
CONFIDENCE = 0.95
ALPHA = 0.05
POWER = 0.8
REPLICATES = 2000
# The seed of the bootstrap, so that the same values give the same interval.
_SEED = 20210503
# Number of values that are resampled at a time.
_CHUNK = 4_000_000
# A spread over seeds that is rounding error, relative to the values.
_ROUNDING = 1e-12
# Number of points for the integral over the estimated standard error.
_GRID = 600

# Component -> values of its items.
Components = Mapping[str, np.ndarray]


class Measured(NamedTuple):
    """One measure of all models.

    The value of a model is the mean over its components of the mean over items.

    name: on the page. unit: POINTS (accuracies x 100), NATS, LOGITS or RANKS.
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
        return np.mean(
            [component.mean(axis=1) for component in self.values[row].values()], axis=0
        )


def checked(measured: Measured, rows: Iterable[str]) -> dict[str, Components]:
    """The values of some rows, after checks of their shapes.

    Raises:
      UserError: a row is missing, differs from the first one in components, seeds or
        items, or has values that are not finite.
    """
    values: dict[str, Components] = {}
    first, count = None, len(measured.seeds)
    for row in rows:
        where = f"{measured.name}, row {row}"
        if row not in measured.values:
            raise UserError(f"{where}: it was not measured; run its jobs")
        components = {
            name: np.asarray(component, np.float64)
            for name, component in measured.values[row].items()
        }
        shapes = {name: component.shape for name, component in components.items()}
        if not shapes or any(
            len(s) != 2 or s[0] != count or not s[1] for s in shapes.values()
        ):
            raise UserError(
                f"{where}: its values have the shapes {shapes}, but there are {count} "
                "seeds; leave seeds out of all rows that are missing in one"
            )
        if first is not None and shapes != first:
            raise UserError(
                f"{where}: its components and items {shapes} are not those of the "
                f"other rows, {first}; run the analysis again for all rows together"
            )
        first = shapes
        for name, component in components.items():
            if not np.isfinite(component).all():
                seed = measured.seeds[
                    int(np.argmin(np.isfinite(component).all(axis=1)))
                ]
                raise UserError(
                    f"{where}, seed {seed}, {name}: a value is not a finite number; "
                    "look at that run and train it again"
                )
        values[row] = components
    return values


def average(name: str, measures: Sequence[Measured]) -> Measured:
    """The mean of several measures, each with the same weight.

    The mean has the seeds and the rows that all measures have, and a baseline if all
    have one. Components keep their own items. They are scaled so that the plain mean
    over components gives each measure the same weight.

    Raises:
      ValueError: there is no measure, or they differ in unit or direction.
    """
    if len({(measure.unit, measure.better) for measure in measures}) != 1:
        raise ValueError(f"{name}: measures of one unit and one direction are averaged")
    seeds = [
        s for s in measures[0].seeds if all(s in measure.seeds for measure in measures)
    ]
    rows = [
        r
        for r in measures[0].values
        if all(r in measure.values for measure in measures)
    ]
    values: dict[str, Components] = {}
    for row in rows:
        total = sum(len(measure.values[row]) for measure in measures)
        values[row] = {
            f"{measure.name}: {component}": items[
                [measure.seeds.index(s) for s in seeds]
            ]
            * (total / (len(measures) * len(measure.values[row])))
            for measure in measures
            for component, items in measure.values[row].items()
        }
    baselines = [
        measure.baseline for measure in measures if measure.baseline is not None
    ]
    baseline = float(np.mean(baselines)) if len(baselines) == len(measures) else None
    unit, better = measures[0].unit, measures[0].better
    return Measured(name, unit, tuple(seeds), values, baseline, better)


def ratios(correct: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Pseudo-values of a ratio of sums, such as an accuracy over tokens of sentences.

    Their mean is p = sum(correct) / sum(n), their spread that of p (the delta method:
    Cochran 1977, Sampling Techniques, section 6.3).
    """
    correct = np.asarray(correct, np.float64)
    counts = np.broadcast_to(np.asarray(counts, np.float64), correct.shape)
    share = correct.sum(axis=1, keepdims=True) / counts.sum(axis=1, keepdims=True)
    return share + (correct - share * counts) / counts.mean(axis=1, keepdims=True)


def logits(hits: np.ndarray) -> np.ndarray:
    """Pseudo-values of the logit of a share of hits, [seeds, items] each from 0 to 1.

    Their mean is logit(p), and their spread that of logit(p) by the delta method.
    """
    # A share of 0 or 1 has no logit: p is kept half an item away from both.
    hits = np.asarray(hits, np.float64)
    mean = hits.mean(axis=1, keepdims=True)
    nearest = 0.5 / hits.shape[1]
    share = np.clip(mean, nearest, 1 - nearest)
    return np.log(share / (1 - share)) + (hits - mean) / (share * (1 - share))


class Estimate(NamedTuple):
    """A difference, or any linear combination of rows.

    error: standard error of the value. It is infinite if the value is exactly the same
    for all seeds: then the runs are copies of each other, or the measure is constant,
    and nothing can be inferred. freedom: degrees of freedom of Student's t. items: of
    all components together.
    """

    value: float
    error: float
    freedom: float
    seeds: int
    items: int

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The two-sided confidence interval."""
        width = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * self.error
        return self.value - width, self.value + width

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p: small if the value is above `bound`."""
        return float(stats.t.sf((self.value - bound) / self.error, self.freedom))

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p: small if the value is below `bound`."""
        return float(stats.t.sf((bound - self.value) / self.error, self.freedom))

    def p_differs(self, bound: float = 0.0) -> float:
        """Two-sided p: small if the value differs from `bound`."""
        return min(1.0, 2 * min(self.p_above(bound), self.p_below(bound)))

    def p_within(self, margin: float) -> float:
        """p of equivalence within `margin` of 0: the larger of two one-sided tests."""
        # Schuirmann 1987. At level a it agrees with the interval of confidence 1 - 2 a.
        return max(self.p_above(-margin), self.p_below(margin))

    def smallest_effect(self, alpha: float = ALPHA, power: float = POWER) -> float:
        """The distance from the bound that a two-sided test detects with this power."""
        critical = stats.t.ppf(1 - alpha / 2, self.freedom)
        return self.error * _smallest(special.ndtr, critical, self.freedom, power)

    def smallest_margin(self, alpha: float = ALPHA, power: float = POWER) -> float:
        """The smallest margin for which a true 0 passes `p_within` with this power."""
        critical = stats.t.ppf(1 - alpha, self.freedom)

        def both_sides(distance: np.ndarray) -> np.ndarray:
            return np.maximum(0.0, 2 * special.ndtr(distance) - 1)

        return self.error * _smallest(both_sides, critical, self.freedom, power)


def estimate(measured: Measured, weights: Mapping[str, float]) -> Estimate:
    """A linear combination of rows with its standard error.

    For one component with S seeds and I items the variance of the mean is
    (MS_seed + MS_item - MS_rest) / (S I). Several components share seeds but not items.
    Then the term of the seeds is the variance over seeds of the mean of the components
    / S, and each component with weight w adds w^2 (MS_item - MS_rest) / (S I). Degrees
    of freedom are Satterthwaite's (1946) over the mean squares.

    A negative term of a component is set to 0. So the variance is too large on average
    if items do not matter, by at most 0.4 sqrt(2 S / ((S - 1) I)) of MS_rest. This is
    2% with 5 seeds and 1,000 items, and intervals are slightly too wide. A component
    with one item (a measure without items) has no such term, which leaves the paired t
    test over seeds.

    `weights` are those of the rows: {"a": 1, "b": -1} is the difference a - b.

    Raises:
      UserError: see `checked`.
      ValueError: fewer than two seeds.
    """
    differences = combined(measured, weights)
    seeds, share = len(measured.seeds), 1 / len(differences)
    if seeds < 2:
        raise ValueError(f"{measured.name}: {seeds} seeds give no standard error")
    by_seed = share * sum(
        items_of_seeds.mean(axis=1) for items_of_seeds in differences.values()
    )
    items = sum(items_of_seeds.shape[1] for items_of_seeds in differences.values())
    value = float(by_seed.mean())
    scale = max(
        np.abs(items_of_seeds).max() * abs(weight)
        for row, weight in weights.items()
        for items_of_seeds in measured.values[row].values()
    )
    if np.ptp(by_seed) <= _ROUNDING * scale:
        return Estimate(value, math.inf, seeds - 1.0, seeds, items)
    of_seeds = float(by_seed.var(ddof=1)) / seeds
    variance, squares = of_seeds, of_seeds**2 / (seeds - 1)
    for items_of_seeds in differences.values():
        of_items, of_rest, freedom = _mean_squares(items_of_seeds)
        if of_items > of_rest:
            factor = share**2 / items_of_seeds.size
            variance += factor * (of_items - of_rest)
            squares += (factor * of_items) ** 2 / freedom
            squares += (factor * of_rest) ** 2 / (freedom * (seeds - 1))
    return Estimate(value, math.sqrt(variance), variance**2 / squares, seeds, items)


def bootstrap(
    measured: Measured, weights: Mapping[str, float], replicates: int = REPLICATES
) -> tuple[float, float]:
    """The 95% percentile interval of a bootstrap over seeds and over items.

    Seeds are drawn with replacement for all components together, items for each
    component. The interval is reported with `estimate` and decides nothing: with 5
    seeds it covers 99% if items matter and 91% if seeds matter.
    """
    differences = combined(measured, weights)
    generator = np.random.default_rng(_SEED)
    seeds = len(measured.seeds)
    drawn = _counts(generator, seeds, replicates) / seeds
    means = np.zeros(replicates)
    for difference in differences.values():
        items = difference.shape[1]
        step = max(1, _CHUNK // items)
        for start in range(0, replicates, step):
            chosen = drawn[start : start + step]
            counts = _counts(generator, items, len(chosen)) / items
            means[start : start + step] += np.sum(
                chosen * (counts @ difference.T), axis=1
            )
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means / len(differences), [tail, 1 - tail])
    return float(low), float(high)


def combined(measured: Measured, weights: Mapping[str, float]) -> dict[str, np.ndarray]:
    """The linear combination of rows: component -> float64 [seeds, items].

    Raises:
      UserError: see `checked`.
    """
    rows = checked(measured, weights)
    return {
        component: sum(weight * rows[row][component] for row, weight in weights.items())
        for component in next(iter(rows.values()))
    }


def holm(p_values: Mapping[Hashable, float]) -> dict[Hashable, float]:
    """p values corrected for multiple tests, by Holm's method (1979).

    A corrected value of at most alpha is significant with a family-wise error of alpha,
    for any dependence between the tests.
    """
    corrected, largest = {}, 0.0
    ordered = sorted(p_values.items(), key=lambda pair: pair[1])
    for place, (name, p_value) in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - place) * p_value))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


def _smallest(shown, critical, freedom, power):
    """The distance in standard errors at which the mean of `shown` is the power.

    This is the mean of shown(distance - critical s) over the estimated standard error
    s, where s^2 is chi square distributed, divided by its degrees of freedom. If
    `shown` is the normal distribution function, it is the power of the non-central t.
    """
    wide = 7 / math.sqrt(2 * freedom)
    logarithm = np.linspace(-21 / freedom - wide, wide, _GRID)
    errors = np.exp(logarithm)
    density = np.exp(freedom * (logarithm - (errors**2 - 1) / 2))
    density /= density.sum()

    def above_power(distance):
        return density @ shown(distance - critical * errors) - power

    high = 2 * critical + 2
    while above_power(high) < 0:
        high *= 2
    return float(optimize.brentq(above_power, 0.0, high))


def _mean_squares(values):
    """Mean squares of items and of the rest, and the items' degrees of freedom."""
    seeds, items = values.shape
    if items == 1:
        return 0.0, 0.0, 0
    by_item = values.mean(axis=0)
    by_seed = values.mean(axis=1, keepdims=True)
    rest = values - by_item - by_seed + values.mean()
    of_items = seeds * float(by_item.var(ddof=1))
    of_rest = float(np.sum(rest**2)) / ((seeds - 1) * (items - 1))
    return of_items, of_rest, items - 1


def _counts(generator, size, replicates):
    """How often each of `size` elements is drawn: [replicates, size]."""
    drawn = generator.integers(size, size=(replicates, size))
    drawn += size * np.arange(replicates)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=replicates * size)
    return counts.reshape(replicates, size)
